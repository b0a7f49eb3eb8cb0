"""The pytest plugin: vectors as tests of an implementation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvconform.vectors.files import vector_files
from tests.conformance.helpers import LIFE, VECTOR, write

pytest_plugins = ["pytester"]

ENGINE = """
from kvref.manager import Manager
from kvspec.events import ReleaseAnswer

class Good(Manager):
    pass

class KeepsPages(Manager):
    def finish(self, req):
        super().finish(req)
        return ReleaseAnswer(())

class NoSessions(Manager):
    lacks = frozenset({"sessions"})

class Flies(Manager):
    lacks = frozenset({"wings"})
"""


@pytest.fixture
def engine(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(my_engine=ENGINE)
    write(pytester.path / "life.jsonl", VECTOR, *LIFE)
    return pytester


def test_every_vector_is_a_test_with_a_readable_id(engine: pytest.Pytester) -> None:
    result = engine.runpytest_inprocess("--kvspec-impl", "my_engine:Good", "--collect-only", "-q")
    names = {line for line in result.outlines if line.startswith("kvspec::")}
    assert names == {f"kvspec::{path.stem}" for path in vector_files()}
    assert "kvspec::tail_freed_after_retract_p4" in names


def test_a_good_implementation_passes(engine: pytest.Pytester) -> None:
    result = engine.runpytest_inprocess("--kvspec-impl", "my_engine:Good", "--kvspec-vectors", "life.jsonl", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*kvspec::life PASSED*"])


def test_a_failure_is_reported_in_kvspecs_own_words(engine: pytest.Pytester) -> None:
    arguments = "--kvspec-impl", "my_engine:KeepsPages", "--kvspec-vectors", "life.jsonl"
    result = engine.runpytest_inprocess(*arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "A request lives.",
            "PAGE-1 is broken at *life.jsonl:7, finish",
            "  finding *page(s) 2 were not freed and have no holder",
            "*The shortest operations that still show it (5 of 6). In a memory of *",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_what_is_lacking_is_skipped_with_a_reason(engine: pytest.Pytester) -> None:
    result = engine.runpytest_inprocess("--kvspec-impl", "my_engine:NoSessions", "-rs", "-k", "session_discipline")
    result.assert_outcomes(skipped=1, deselected=len(vector_files()) - 1)
    result.stdout.fnmatch_lines(["SKIPPED * not supported: no streaming sessions: *"])


def test_one_vector_can_be_picked_by_its_id(engine: pytest.Pytester) -> None:
    engine.makepyfile(test_own="def test_own(): pass")
    result = engine.runpytest_inprocess("--kvspec-impl", "my_engine:Good", "kvspec::logit_reserve")
    result.assert_outcomes(passed=1)
    unknown = engine.runpytest_inprocess("--kvspec-impl", "my_engine:Good", "kvspec::no_such_vector")
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR
    unknown.stderr.fnmatch_lines(["*there is no vector 'no_such_vector'"])


def test_the_engines_own_tests_run_as_well(engine: pytest.Pytester) -> None:
    engine.makepyfile(test_own="def test_own(): pass")
    result = engine.runpytest_inprocess("--kvspec-impl", "my_engine:Good", "--kvspec-vectors", ".")
    result.assert_outcomes(passed=2)


def test_a_known_failure_can_be_marked_from_a_conftest(engine: pytest.Pytester) -> None:
    engine.makeconftest(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        if item.nodeid == 'kvspec::life':\n"
        "            item.add_marker(pytest.mark.xfail(strict=True))\n"
    )
    arguments = "--kvspec-impl", "my_engine:KeepsPages", "--kvspec-vectors", "life.jsonl"
    engine.runpytest_inprocess(*arguments).assert_outcomes(xfailed=1)


@pytest.mark.parametrize(
    ("implementation", "reason"),
    [
        ("no_such_engine:Adapter", "*cannot be imported*"),
        ("my_engine:Missing", "*cannot be imported*"),
        ("my_engine:Flies", "*no feature 'wings'; there are rows,*"),
    ],
)
def test_a_wrong_call_is_one_line(engine: pytest.Pytester, implementation: str, reason: str) -> None:
    result = engine.runpytest_inprocess("--kvspec-impl", implementation)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([reason])


def test_without_the_option_nothing_is_collected_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own():\n"
        "    assert 'kvconform.pytest_plugin' in sys.modules\n"
        "    heavy = ('kvspec', 'msgspec', 'rich', 'typer', 'kvconform.traces.codec', 'kvconform.vectors.runner')\n"
        "    assert not [name for name in heavy if name in sys.modules]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "kvconform.pytest_plugin"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_plugin_is_found_by_its_entry_point() -> None:
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group="pytest11") if point.name == "kvspec"]
    if not found:
        pytest.skip("kvspec was installed before it had the entry point; install it again")
    assert found[0].load().__name__ == "kvconform.pytest_plugin"
