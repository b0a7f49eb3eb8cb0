"""Puts the defects of `kvref_mutants.py` or `kvref_rare.py` into kvref, one at a time, and prints what finds each.

    python -m tests.mutation.kvref [TEXT] [--rare] [--operations 20000] [--seed 0] [--processes 1]

Each defect is in a process of its own, whose kvref is changed as it is imported. Exit status 1 where one of the two
finds nothing.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder, SourceFileLoader

from tests.mutation.defects import KVREF, ROOT, changed
from tests.mutation.kvref_mutants import MUTANTS, Mutant
from tests.mutation.kvref_rare import RARE


class Changing(PathFinder):
    """Imports one module of kvref with a defect."""

    mutant: Mutant

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """The module's spec, whose loader changes the source."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and fullname == "kvref." + cls.mutant.module.removesuffix(".py").replace("/", "."):
            assert spec.origin is not None
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname):  # type: ignore[no-untyped-def]
        return compile(changed(KVREF, Changing.mutant), self.path, "exec")


def attempt(mutant: Mutant, operations: int, seed: int) -> None:
    """Print what finds a defect: the first vector, and after how many operations the fuzzer does."""
    Changing.mutant = mutant
    sys.meta_path.insert(0, Changing)
    from kvconform.fuzzing.fuzz import Budget, fuzz
    from kvconform.vectors.files import read_vectors
    from kvconform.vectors.runner import run_vector
    from kvref.manager import Manager

    by_vector = "no vector"
    for vector in read_vectors():
        outcome = run_vector(vector, Manager)
        if outcome.finding is not None:
            by_vector = f"{vector.name} ({_cause(outcome.finding)})"
            break
    fuzzed = fuzz(Manager, Budget(operations=operations), seed, lambda *_: None)
    failure = fuzzed.failure
    by_fuzzing = f"not in {operations:,} operations"
    if failure is not None:
        by_fuzzing = f"{fuzzed.tally.steps:,} operations ({_cause(failure.finding)})"
    print(f"{by_vector}; {by_fuzzing}")


def _cause(finding: object) -> str:
    rule = getattr(finding, "rule", None)
    return str(rule.id) if rule is not None else type(getattr(finding, "original", finding)).__name__


def main() -> int:
    """Try all mutants, or those with a text in them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--rare", action="store_true", help="those that show only under a rare condition")
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    mutants = RARE if options.rare else MUTANTS
    if options.one is not None:
        attempt(mutants[options.one], options.operations, options.seed)
        return 0
    chosen = [i for i, mutant in enumerate(mutants) if options.text in mutant.what + mutant.module + mutant.new]

    def one(i: int) -> str:
        command = [
            sys.executable,
            "-m",
            "tests.mutation.kvref",
            "--one",
            str(i),
            "--operations",
            str(options.operations),
        ]
        command += ["--seed", str(options.seed), *["--rare"] * options.rare]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        return done.stdout.strip() if done.returncode == 0 else f"no verdict: {done.stderr.strip()[-400:]}"

    missed = 0
    with ThreadPoolExecutor(options.processes) as pool:
        for i, verdict in zip(chosen, pool.map(one, chosen), strict=True):
            missed += verdict.startswith("no v") or "; not in" in verdict
            print(f"{mutants[i].what}\n    {verdict}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} are found by a vector and by the fuzzer")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
