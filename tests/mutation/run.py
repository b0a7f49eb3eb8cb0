"""Changes a package in one place at a time, as mutmut does, and prints what the tests notice.

    python tests/mutation/run.py kvspec [--minutes 55] [--processes 2] [--seed 0] [--only TEXT...] [--tests TEST...]

The mutants are tried in an order drawn with the seed, until all are tried or the time is over: the score is that of a
random sample then, and is reported with its size. Tests are collected once; each mutant has a forked process. It runs
the tests that call the changed function, those first that noticed others of it or are cheap, and ends at the first
that fails. The comparison with `tests/spec/verdicts`, which the model wrote itself, goes last and is counted apart.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ROOT / "build" / "mutation"
PACKAGES = ("spec", "reference", "cuda_impl", "conformance")


class Target(NamedTuple):
    """A package, and what must notice that it is changed."""

    folder: str
    left_out: tuple[str, ...]
    """Code that is not changed: tables, code that runs while a module is imported, code that no rule checks."""
    tests: tuple[str, ...]
    deselected: tuple[str, ...] = ()
    golden: tuple[str, ...] = ()
    """The test that compares with `tests/spec/verdicts`."""


def _all_but(name: str) -> tuple[str, ...]:
    """The contents of kvconform besides one package."""
    return tuple(path.name for path in (ROOT / "conformance/kvconform").iterdir() if path.name != name)


_MODEL = Target(
    "spec/kvspec",
    ("rules.py", "contracts.py", "memory/proofs"),
    (
        "tests/spec",
        "tests/mutation/verdicts.py",
        "tests/reference/test_model_agrees.py::test_reference_and_model_refuse_the_same_for_the_same_rule",
        "tests/conformance/levels/memory/test_memory_vectors.py",
        "tests/conformance/vectors/test_vectors.py::test_the_reference_conforms_to",
        "tests/conformance/vectors/test_vectors.py::test_vectors_are_not_stricter_than_the_rules",
        "tests/conformance/vectors/test_vectors.py::test_of_the_reference_nothing_is_left_unchecked",
    ),
    (
        "tests/spec/test_docs.py",
        "tests/spec/memory/test_moves.py",
        "tests/spec/memory/test_proofs.py",
        "tests/spec/test_lengths.py::test_contracts_are_checked_in_tests",
        "tests/spec/test_model.py::test_walks_get_somewhere",
        "tests/spec/test_refinement.py::test_walks_reach_all_rules_of_the_memory_model",
        "tests/spec/test_refinement.py::test_a_broken_model_breaks_the_memory_model",
    ),
    ("tests/spec/test_findings.py",),
)

TARGETS = {
    "kvspec": _MODEL,
    "answers": _MODEL._replace(
        folder="conformance/kvconform",
        left_out=_all_but("oracle"),
        tests=(*_MODEL.tests, "tests/conformance/oracle"),
    ),
    "kvcheck": Target(
        "conformance/kvcheck",
        (),
        (
            "tests/kvcheck",
            "tests/conformance/levels/memory/test_memory_vectors.py",
            "tests/conformance/oracle/test_fastpath.py",
            "tests/spec/memory",
            "tests/spec/test_refinement.py",
        ),
        (
            "tests/spec/memory/test_moves.py",
            "tests/spec/memory/test_proofs.py",
            "tests/spec/test_refinement.py::test_walks_reach_all_rules_of_the_memory_model",
            "tests/spec/test_refinement.py::test_a_broken_model_breaks_the_memory_model",
        ),
    ),
    "quick": Target(
        "conformance/kvconform",
        _all_but("oracle"),
        ("tests/conformance/oracle/test_fastpath.py",),
    ),
    "kvref": Target(
        "reference/kvref",
        ("scheduler", "tiers", "parts.py"),
        ("tests/conformance/vectors/test_vectors.py::test_the_reference_conforms_to", "tests/reference"),
        (
            "tests/reference/test_policy.py",
            "tests/reference/test_scheduler.py",
            "tests/reference/test_scheduler_hybrid.py",
            "tests/reference/test_scheduler_overlap.py",
            "tests/reference/test_shortage.py",
        ),
    ),
}
"""No rule checks what the scheduler decides; the host tier has mutants of its own (`kvspec tiers`). Of kvconform
the parts that check as kvspec does are changed: the check of answers, and the quick model."""


def prepare(target: Target, copy: Path) -> int:
    """Copy the tree, the package with all its mutants in it; how many files are changed."""
    shutil.rmtree(copy, ignore_errors=True)
    for folder in (*PACKAGES, "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = (ROOT / "pyproject.toml").read_text()
    (copy / "pyproject.toml").write_text(settings + '[tool.mutmut]\nsource_paths = ["."]\n')
    os.chdir(copy)  # mutmut reads its settings where it is
    from mutmut.mutation.file_mutation import mutate_file_contents

    from tests.mutation.undecorated import undecorated

    files = 0
    for path in sorted((copy / target.folder).rglob("*.py")):
        name = str(path.relative_to(copy / target.folder))
        if name.startswith(target.left_out):
            continue
        source = undecorated(path.read_text())
        made = FOLDERS / "changed" / hashlib.sha256(source.encode()).hexdigest()  # making it takes longest
        if not made.exists():
            changed = mutate_file_contents(name, source).code
            made.parent.mkdir(exist_ok=True)
            made.write_text(
                changed.replace("from mutmut.mutation.trampoline import", "from tests.mutation.switch import")
            )
        path.write_text(made.read_text())
        files += "tests.mutation.switch" in path.read_text()
    return files


def main() -> int:
    """Try the mutants of a package; 1 where the tests fail without any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="these mutants, and those of functions with these texts")
    parser.add_argument("--tests", nargs="*", help="these tests, in place of the package's own")
    chosen = parser.parse_args()
    target = TARGETS[chosen.package]
    copy = FOLDERS / chosen.package
    print(f"{prepare(target, copy)} files of {chosen.package} are changed", flush=True)
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(str(copy / folder) for folder in (*PACKAGES, ".")),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CI": "1",  # the same draws for each mutant
        "KVSPEC_CONTRACTS": "0",
        "KVSPEC_TEST_SEEDS": "8",
        "KVSPEC_MUTATION": " ".join(
            [str(chosen.minutes), str(chosen.processes), str(chosen.seed), str(len(target.golden)), *target.golden]
        ),
        "KVSPEC_MUTATION_ONLY": " ".join(chosen.only),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.mutation.trying", "-p", "no:cacheprovider"]
    command += ["-p", "no:unraisableexception", "--no-header", "--no-summary"]
    command += ["--tb=no", "--assert=plain"]  # saying how large states differ takes longer than the tests
    command += chosen.tests or target.tests
    command += [f"--deselect={test}" for test in target.deselected]
    return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
