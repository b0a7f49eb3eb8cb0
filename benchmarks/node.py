"""How many operations a second implementations answer: those of all vectors, asked in turn and not checked.

    python benchmarks/node.py [IMPLEMENTATION ...]

Without arguments a node that answers all by nothing, the reference behind a pipe, and the reference in this process.
Seconds are of the clock and the best of twenty runs counts, since a busy machine moves them.
"""

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

from kvconform.features import lacks, needs
from kvconform.implementations import load
from kvconform.protocol import perform
from kvconform.vectors.files import read_vectors
from kvconform.vectors.runner import unanswered
from kvspec.events import Refusal

EMPTY = """
import sys
print('{"kvspec": 2, "name": "empty", "reset": true}', flush=True)
for line in sys.stdin:
    if line.startswith('{"op"'):
        op = line.split('"', 4)[3]
        print('{"op": "%s", "obs": {%s}}' % (op, '"evicted": []' * (op == "evict")), flush=True)
"""
REFERENCE = Path(__file__).resolve().parents[1] / "tests/conformance/nodes/reference.py"
NODES = [f"exec:{shlex.join([sys.executable, *command])}" for command in (["-c", EMPTY], [str(REFERENCE)])]
RUNS = 20


def rate(impl: str) -> float:
    """Operations a second, in the best of some runs."""
    factory, best = load(impl), 0.0
    vectors = [vector for vector in read_vectors() if not needs(vector) & lacks(factory)]
    for _ in range(RUNS):
        asked = [(vector.header.config, [unanswered(step.op) for step in vector.steps]) for vector in vectors]
        begun = time.perf_counter()
        for config, operations in asked:
            manager = factory(config)
            for op in operations:
                with suppress(Refusal):
                    perform(manager, op)
        best = max(best, sum(len(operations) for _, operations in asked) / (time.perf_counter() - begun))
    return best


def main() -> None:
    """Print a line for each implementation."""
    named = ("the node that answers nothing", "the reference behind a pipe", "the reference in this process")
    given = sys.argv[1:]
    rates = {name: rate(impl) for name, impl in zip(given or named, given or [*NODES, "reference"], strict=True)}
    *_, last = rates.values()
    for name, found in rates.items():
        print(f"{name}: {found:,.0f} operations a second, {found / last:.2f} of the last")


if __name__ == "__main__":
    main()
