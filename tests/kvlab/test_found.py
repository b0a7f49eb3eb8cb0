"""The tables of known issues: their traces, pages and fixes."""

import re
from pathlib import Path

import msgspec
import pytest

from kvcheck import Checker, Finding
from kvconform.traces.memory import MemoryReader, open_trace
from kvlab.issues import Issue, issues_of, options_of, path_of
from kvlab.lmcache import fixes as lmcache_fixes
from kvlab.lmcache.driver import Shape as LmcacheShape
from kvlab.matrix.findings import RAISES
from kvlab.matrix.table import MARKS
from kvlab.max import fixes as max_fixes
from kvlab.max.driver import Shape as MaxShape
from kvlab.mini_sglang.driver import Shape as MiniShape
from kvlab.mini_sglang.fixes import FIXES
from kvlab.pages import ENGINES, page_of
from kvlab.sglang import fixes, fixes_keys, fixes_pairs, fixes_sessions
from kvlab.sglang.driver import Shape
from kvlab.sglang_jax.driver import Shape as JaxShape
from kvlab.tokens import CODES as SENTENCES
from kvlab.tokens import RULE as TOKENS
from kvlab.transformers.fixes import fix as transformers_fix
from kvlab.vllm import issues as vllm_issues
from kvlab.vllm.faults import names_without_content
from kvlab.vllm.workload import Workload
from kvspec.rules import CODES, MEMORY_RULES, RULES
from tests.spec.memory.once import Once

FOUND = Path(__file__).parents[2] / "conformance" / "found"
ISSUES = [(engine, issue) for engine in ENGINES for issue in issues_of(engine).issues]
TRACES = {f"{engine}/{trace}": issue for engine, issue in ISSUES for trace in issue.traces}
OPTIONS = {
    "lmcache": LmcacheShape,
    "max": MaxShape,
    "vllm": Workload,
    "sglang": Shape,
    "sglang-jax": JaxShape,
    "mini-sglang": MiniShape,
}


@pytest.mark.parametrize(("name", "issue"), TRACES.items(), ids=TRACES)
def test_the_last_event_of_a_trace_shows_its_issue_and_no_earlier_event_breaks_a_rule(name: str, issue: Issue) -> None:
    with open_trace(FOUND / name) as trace:
        assert isinstance(trace, MemoryReader)
        checker = Checker(trace.header.pools)
        *before, last = [checker.step(event) for _, event in trace]
    assert any(issue.fits(finding) for finding in last)
    assert {finding.rule for finding in last} == {issue.rule}
    earlier = {finding.rule for found in before for finding in found}
    assert earlier <= ({"MEM-WRITTEN"} if name.startswith("vllm") else set())


@pytest.mark.parametrize("name", TRACES)
def test_both_checkers_find_the_same_in_a_trace(name: str) -> None:
    with open_trace(FOUND / name) as trace:
        assert isinstance(trace, MemoryReader)
        checker, fast = Once(trace.header.pools), Checker(trace.header.pools)
        for _, event in trace:
            due, found = (
                {(one.rule, one.pool, one.page) for one in watching.step(event)} for watching in (checker, fast)
            )
            again = {(one.rule, one.pool, one.page) for one in checker.repeated}
            assert due <= found <= due | again


def test_every_trace_is_of_an_issue() -> None:
    assert {path.relative_to(FOUND).as_posix() for path in FOUND.rglob("*.jsonl")} == TRACES.keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_committed_page_is_made_of_the_table(engine: str) -> None:
    assert (FOUND / f"{engine}.md").read_text(encoding="utf-8") == page_of(engine), "run 'make found'"


@pytest.mark.parametrize("engine", ENGINES)
def test_an_issue_that_is_described_is_on_the_page_once(engine: str) -> None:
    table = issues_of(engine)
    sections = [section for section in table.page if section.columns]
    shown = [
        (section.level, name)
        for section in sections
        for name in section.issues or [issue.id for issue in table.at(section.level)]
    ]
    described = sorted((issue.level, issue.id) for issue in table.issues if issue.description)
    assert sorted(shown) == described, "each id has to stand in one [[page]] of the table"
    assert len({(issue.level, issue.id) for issue in table.issues}) == len(table.issues)


def test_every_table_has_a_page_and_every_page_a_table() -> None:
    assert {path.stem for path in FOUND.glob("*.md")} == set(ENGINES)
    assert set(path_of("vllm").parents[1].glob("*/issues.toml")) == {path_of(engine) for engine in ENGINES}


@pytest.mark.parametrize(("engine", "issue"), ISSUES, ids=lambda one: one.id if isinstance(one, Issue) else one)
def test_an_issue_names_rules_codes_and_options_that_exist(engine: str, issue: Issue) -> None:
    if issue.level == "memory":
        assert issue.rule in {"", TOKENS.id, *MEMORY_RULES} and not issue.when
        assert not issue.code or (issue.code in CODES | SENTENCES and issue.code.startswith(f"{issue.rule}/"))
    else:
        assert issue.when and not issue.rule
        assert {rule for symptom in issue.when for rule in symptom.rules} <= {*RULES, RAISES}
        assert all(line.startswith("srt/") and line.rpartition(":")[2].isdigit() for line in issue.lines)
    if issue.workload:
        options_of(issues_of(engine).workload(issue), OPTIONS[engine])


def test_a_fix_is_one_of_the_engines_and_each_fix_is_of_an_issue() -> None:
    named = {engine: {issue.fix for issue in issues_of(engine).issues} - {""} for engine in ENGINES}
    assert named["sglang"] == {
        fix.__name__ for fix in (*fixes.FIXES, *fixes_keys.FIXES, *fixes_sessions.FIXES, *fixes_pairs.FIXES)
    }
    assert named["mini-sglang"] == FIXES.keys()
    assert named["transformers"] == {transformers_fix.__name__}
    assert named["lmcache"] == lmcache_fixes.FIXES.keys()
    assert named["max"] == max_fixes.FIXES.keys()
    assert named["vllm"] == {fix.__name__ for fix in (names_without_content, *vllm_issues.FIXES)}


def test_there_is_a_letter_for_each_issue_of_an_engine() -> None:
    assert all(len(issues_of(engine).at("requests")) <= len(set(MARKS)) for engine in ENGINES)


def test_a_finding_of_the_memory_level_fits_by_code_details_and_place() -> None:
    known = {issue.id: issue for issue in issues_of("vllm").at("memory")}
    with open_trace(FOUND / "vllm" / "freed-in-flight.jsonl") as trace:
        assert isinstance(trace, MemoryReader)
        checker = Checker(trace.header.pools)
        finding = [found for _, event in trace for found in checker.step(event)][-1]
    freed = known["freed-in-flight"]
    assert freed.specific and freed.fits(finding)
    assert not known["aborted-load"].fits(finding)
    assert not msgspec.structs.replace(freed, where={"stream": "^host"}).fits(finding)
    assert not msgspec.structs.replace(freed, places=("nowhere",)).fits(finding)
    assert not msgspec.structs.replace(freed, where={}).specific


RANGES = [
    (issue, found)
    for _, issue in ISSUES
    if (found := re.match(r"(0[.\d]+\d) (?:to|and) (0[.\d]+\d)", issue.description))
]


@pytest.mark.parametrize(("issue", "found"), RANGES, ids=[issue.id for issue, _ in RANGES])
def test_a_description_names_the_releases_that_its_issue_covers(issue: Issue, found: re.Match[str]) -> None:
    first, last = found.groups()
    assert issue.since == first
    assert issue.covers(last)


@pytest.mark.parametrize("at", ["states", "postprocess_mamba"])
def test_a_step_that_advances_a_state_while_it_is_stored_is_an_issue_of_0_29(at: str) -> None:
    found = Finding("MEM-RACE/write", 1, at, "kv", 5, stream="store", did="reads", earlier="store")
    issue = next(issue for issue in issues_of("vllm").at("memory") if issue.specific and issue.fits(found))
    assert [issue.covers(release) for release in ("0.26.0", "0.29.0", "0.32.0")] == [True, True, False]


def test_an_issue_is_in_the_releases_from_its_first_until_its_fix() -> None:
    issue = Issue("i", "", "memory", since="0.5.9", fixed="0.5.11", pull="7")
    assert [issue.covers(release) for release in ("0.5.8", "0.5.9", "0.5.10.post1", "0.5.11", "installed")] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert not issue.covers("0.5.9", frozenset({"7"}))
    assert [issue.fixed_in(release) for release in ("0.5.8", "0.5.11", "mine", "24e19642")] == [
        False,
        True,
        False,
        False,
    ]
