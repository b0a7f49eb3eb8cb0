"""Puts the mistakes of `node_mutants.py` into a copy of the Rust node, one at a time, and prints what finds each.

python -m tests.mutation.node [TEXT]    # TEXT: only mutants with it in their module, texts or sentence

Vectors first, and then 20,000 random operations, whether vectors find it or not. Exit status 1 where neither finds a
mutant.
"""

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from kvconform.features import vector_under
from kvconform.fuzzing.fuzz import Budget, fuzz
from kvconform.implementations import load
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.traces.codec import Vector
from kvconform.vectors.files import read_vectors
from kvconform.vectors.runner import Failure, run_vector
from tests.mutation.defects import NODE, changed
from tests.mutation.node_mutants import MUTANTS, Mutant

OPERATIONS = 20_000
SEED = 1


class Found(NamedTuple):
    """The vectors and the random operations that find a mutant."""

    vectors: Counter[str]
    """How many vectors, by what they blame."""
    operations: int
    """Random operations until something broke."""
    rule: str
    """The rule that broke then; empty if none did."""


def built(source: Path, node: Path) -> str:
    """The name under which kvspec runs a node that is compiled from the folder `source`."""
    subprocess.run(["rustc", "--edition", "2021", "-D", "warnings", "-o", node, source / "main.rs"], check=True)
    return f"exec:{node}"


def mistaken(mutant: Mutant, folder: Path) -> str:
    """The name of a node with a mistake in it, built in an empty folder."""
    source = shutil.copytree(NODE, folder / "source")
    (source / mutant.module).write_text(changed(NODE, mutant), encoding="utf-8")
    return built(source, folder / "node")


def by_vectors(node: str, vectors: list[Vector]) -> Counter[str]:
    """The rules or failures that vectors blame, each with their number."""
    factory = load(node)
    findings = [run_vector(vector_under(factory, vector), factory).finding for vector in vectors]
    return Counter(_blamed(finding) for finding in findings if finding is not None)


def _blamed(finding: Failure) -> str:
    match finding:
        case RuleBroken():
            return finding.rule.id
        case ImplementationFailed():
            return type(finding.original).__name__
        case _:
            return "expectation"


def look_for(mutant: Mutant) -> Found:
    """Compile a mutant, and see what finds it."""
    with tempfile.TemporaryDirectory() as folder:
        node = mistaken(mutant, Path(folder))
        vectors = by_vectors(node, read_vectors())
        fuzzed = fuzz(load(node), Budget(operations=OPERATIONS), SEED, lambda *_: None)
    failure = fuzzed.failure
    return Found(vectors, fuzzed.tally.steps, "" if failure is None else _blamed(failure.finding))


def main(wanted: str = "") -> int:
    """Look for all mutants, or those with `wanted` in them; the exit status."""
    unfound = 0
    for mutant in (mutant for mutant in MUTANTS if wanted in " ".join(mutant)):
        found = look_for(mutant)
        unfound += not found.vectors and not found.rule
        rules = ", ".join(f"{rule} ({count})" for rule, count in found.vectors.most_common(3))
        fuzzed = f"{found.operations:,} operations, {found.rule}" if found.rule else f"not in {found.operations:,}"
        print(
            f"{mutant.mistake}\n    vectors: {found.vectors.total()}  {rules or 'none'}\n    fuzzed: {fuzzed}",
            flush=True,
        )
    return int(unfound > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
