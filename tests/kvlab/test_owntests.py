"""An engine's own tests beside kvspec: which of them count, and what is said of them."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvlab.owntests import results
from kvlab.owntests.results import VARIABLE, Comparison, Listed, Outcome, Suite, read_tests

TESTS = """
import pytest
from kvattach.hooks import Hooks, RuleBroken
from kvattach.switch import Strict
from kvspec.memory import Pool
from kvspec.memory.events import Release, Take

trace = Strict()
hooks = Hooks(trace)

def made():
    trace.header("engine", {"kv": Pool(1, 8, 0)})

def test_right():
    made()
    hooks.emit(Take("a", "kv", [1]))

def test_caught():
    made()
    with pytest.raises(RuleBroken):
        hooks.emit(Release("a", "kv", [1]))

def test_reported_no_more():
    hooks.guarded(lambda: 1 / 0)

def test_reported_again():
    made()
    hooks.emit(Take("a", "kv", [1]))
    hooks.emit(Take("b", "kv", [2]))

def test_skipped():
    pytest.skip("no device")

def test_wrong():
    assert 1 == 2
"""


def passed(name: str, **more: object) -> Outcome:
    return msgspec.convert({"name": name, "outcome": "passed", **more}, Outcome)


def test_each_test_is_reported_with_its_events_findings_and_problems(tmp_path: Path) -> None:
    (tmp_path / "test_engine.py").write_text(TESTS)
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "kvlab.owntests.plugin", "."]
    environment = {**os.environ, VARIABLE: str(results)}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    tests = {name.rpartition("::")[2]: test for name, test in read_tests(results).items()}
    assert tests["test_right"].events == 1 and not tests["test_right"].found
    assert tests["test_caught"].outcome == "passed"
    assert tests["test_caught"].found[0].startswith("MEM-RELEASE")
    assert "ZeroDivisionError" in tests["test_reported_no_more"].problems[0]
    assert tests["test_reported_again"].events == 2 and not tests["test_reported_again"].problems
    assert tests["test_skipped"].outcome == "skipped"
    assert tests["test_wrong"].said == "assert 1 == 2"


def test_only_tests_that_pass_without_kvspec_are_compared() -> None:
    suite = Suite([], unreached=[Listed("it injects a defect", ["t::injected", "t::gone"])])
    plain = {name: passed(name) for name in ("t::a", "t::injected[1]", "t::found", "t::ended", "t::lost")}
    plain["t::broken"] = Outcome("t::broken", "failed")
    beside = {
        "t::a": passed("t::a", events=5),
        "t::injected[1]": Outcome("t::injected[1]", "failed", "RuleBroken", 2, ["MEM-LEAK: page 1"]),
        "t::found": passed("t::found", found=["MEM-USE: page 2"]),
        "t::ended": passed("t::ended", problems=["KeyError"]),
        "t::broken": Outcome("t::broken", "failed"),
    }
    compared = Comparison(suite, plain, beside)
    assert (compared.passed, compared.unreached, compared.known, compared.events, compared.driving) == (1, 1, 0, 7, 2)
    assert compared.wrong == [
        "t::found: MEM-USE: page 2",
        "t::ended: recording ended: KeyError",
        "t::lost: it did not run",
    ]
    assert compared.stale == ["t::gone"]


@pytest.mark.parametrize("path", sorted(Path(results.__file__).parent.glob("*.toml")), ids=lambda path: path.stem)
def test_each_listed_test_has_a_reason(path: Path) -> None:
    suite = msgspec.toml.decode(path.read_bytes(), type=Suite)
    assert suite.tests
    listed = [name for one in (*suite.unreached, *suite.known) for name in one.tests]
    assert len(listed) == len(set(listed))
    assert all(one.reason for one in (*suite.unreached, *suite.known))
