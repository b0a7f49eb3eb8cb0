"""Vectors are replayed as they are written, and what they expect is compared."""

from pathlib import Path
from typing import Any

import pytest

from kvconform.oracle import Model
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.traces.codec import TraceReader, read_vector
from kvconform.traces.expect import NOTHING, Expect, Expectations, Mismatch, Seen
from kvconform.vectors.runner import ExpectationFailed, Outcome, run_vector
from kvref.manager import Manager
from kvspec import events
from kvspec.events import Config, ExtendAnswer, ReleaseAnswer
from tests.conformance.helpers import (
    HEADER,
    LIFE,
    RECORDED,
    VECTOR,
    CannotBeMade,
    KeepsPages,
    Raises,
    check_trace,
    write,
)

TURNS: list[dict[str, Any]] = [
    {"op": "open_session", "session": "s"},
    LIFE[0] | {"session": "s"},
    *LIFE[1:],
    {"op": "submit", "req": "r2", "tokens": [1, 2, 3, 4, 5, 6, 7, 8], "session": "s"},
    {"op": "match_prefix", "req": "r2"},
    {"op": "extend", "reqs": [["r2", 8]]},
]


def outcome(tmp_path: Path, *steps: dict[str, Any], implementation: Any = Manager) -> Outcome:
    return run_vector(read_vector(write(tmp_path / "v.jsonl", VECTOR, *steps)), implementation)


def after(step: int, **expect: Any) -> list[dict[str, Any]]:
    return [*LIFE[:step], {"op": "expect", **expect}, *LIFE[step:]]


HOLDS = {
    "an answer": after(2, answer={"prefix_len": 0, "protected_len": 0, "freed": 0}),
    "a number of pages": after(3, answer={"pages": {"r": 2, "stranger": 0}}),
    "lengths": after(3, lengths={"r": [0, 6, 6]}),
    "no lengths": after(2, lengths={"r": None}),
    "figures": after(3, figures={"available": 56, "uncached": 8, "rows_requests": 1}),
    "freed pages": after(6, answer={"freed": 1}, figures={"evictable": 4}),
    "a refusal": [*LIFE, LIFE[5], {"op": "expect", "refused": "OP-1"}],
    "a capacity miss": [
        LIFE[0] | {"tokens": list(range(64))},
        {"op": "submit", "req": "q", "tokens": [7, 8, 9]},
        LIFE[1],
        LIFE[1] | {"req": "q"},
        {"op": "extend", "reqs": [["r", 64], ["q", 3]]},
        {"op": "expect", "refused": "CAP-1", "pages_short": 1, "rows_short": 0},
    ],
    "evicted pages": [*LIFE, {"op": "evict", "n": 1}, {"op": "expect", "answer": {"evicted": 1}}],
    "own figures": [*LIFE, {"op": "report"}, {"op": "expect", "answer": {"available": 60}}],
    "the same row": [*TURNS, {"op": "expect", "same_row": {"r2": "r"}}],
    "another row": [
        *LIFE[:4],
        LIFE[0] | {"req": "q"},
        LIFE[1] | {"req": "q"},
        {"op": "extend", "reqs": [["q", 6]]},
        {"op": "expect", "different_row": {"q": "r"}},
    ],
}


@pytest.mark.parametrize("steps", HOLDS.values(), ids=HOLDS.keys())
def test_an_expectation_that_holds_passes(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    assert outcome(tmp_path, *steps).finding is None


def with_expect(steps: list[dict[str, Any]], **expect: Any) -> list[dict[str, Any]]:
    """The steps up to and including their expect line, which now says something else."""
    place = next(place for place, step in enumerate(steps) if step["op"] == "expect")
    return [*steps[:place], {"op": "expect", **expect}]


FAILS = {
    "an answer": ("an answer", {"answer": {"prefix_len": 4}}, "prefix_len", 4, 0),
    "freed": ("freed pages", {"answer": {"freed": 2}}, "the number of pages freed", 2, 1),
    "pages": ("a number of pages", {"answer": {"pages": {"r": 3}}}, "the number of pages given to r", 3, 2),
    "pages of a stranger": (
        "a number of pages",
        {"answer": {"pages": {"stranger": 1}}},
        "the number of pages given to stranger",
        1,
        0,
    ),
    "lengths": (
        "lengths",
        {"lengths": {"r": [0, 6, 8]}},
        "protected, committed and allocated length of r",
        (0, 6, 8),
        (0, 6, 6),
    ),
    "no lengths": (
        "lengths",
        {"lengths": {"r": None}},
        "protected, committed and allocated length of r",
        None,
        (0, 6, 6),
    ),
    "figures": ("figures", {"figures": {"available": 58}}, "the figure available", 58, 56),
    "evicted": ("evicted pages", {"answer": {"evicted": 2}}, "the number of pages evicted", 2, 1),
    "own figures": ("own figures", {"answer": {"available": 64}}, "available", 64, 60),
    "another rule": ("a refusal", {"refused": "CAP-1"}, "the rule of the refusal", "CAP-1", "OP-1"),
    "pages short": ("a capacity miss", {"refused": "CAP-1", "pages_short": 2}, "pages_short", 2, 1),
    "rows short": ("a capacity miss", {"refused": "CAP-1", "rows_short": 1}, "rows_short", 1, 0),
    "refusal": ("an answer", {"refused": "OP-1"}, "the operation", "refused by OP-1", "carried out"),
    "same row": ("another row", {"same_row": {"q": "r"}}, "the row of q", 0, 1),
    "different row": ("the same row", {"different_row": {"r2": "r"}}, "the row of r2", "another than r's", 0),
}


@pytest.mark.parametrize(("base", "expect", "what", "expected", "observed"), FAILS.values(), ids=FAILS.keys())
def test_an_expectation_that_fails_is_noticed(
    base: str, expect: dict[str, Any], what: str, expected: object, observed: object, tmp_path: Path
) -> None:
    steps = with_expect(HOLDS[base], **expect)
    found = outcome(tmp_path, *steps)
    assert isinstance(found.finding, ExpectationFailed)
    assert found.finding.mismatch.what == what
    assert (found.finding.mismatch.expected, found.finding.mismatch.observed) == (expected, observed)
    assert found.operations == found.finding.step == len(steps) - 1
    assert found.line == len(steps)


def test_an_unexpected_refusal_is_noticed(tmp_path: Path) -> None:
    found = outcome(tmp_path, *LIFE, LIFE[5])
    assert isinstance(found.finding, ExpectationFailed)
    assert found.finding.mismatch.expected == "carried out"


def test_unreported_values_are_not_compared(tmp_path: Path) -> None:
    class Reticent(Manager):
        def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
            super().extend(reqs)
            return ExtendAnswer()

        def finish(self, req: str) -> ReleaseAnswer:
            super().finish(req)
            return ReleaseAnswer()

        def snapshot(self) -> Any:
            return type(super().snapshot())()

    for steps in (
        after(3, answer={"pages": {"r": 99}}),
        after(6, answer={"freed": 99}),
        [*TURNS, {"op": "expect", "same_row": {"r2": "r"}}],
    ):
        found = outcome(tmp_path, *steps, implementation=Reticent)
        assert found.finding is None
        assert found.evidence.unchecked["PAGE-1"]


def test_each_vector_runs_on_an_implementation_of_its_own_sizes(tmp_path: Path) -> None:
    made: list[Config] = []

    def factory(config: Config) -> Manager:
        made.append(config)
        return Manager(config)

    for _ in range(2):
        assert outcome(tmp_path, *LIFE, implementation=factory).finding is None
    assert made == [Config(**HEADER["config"])] * 2


def test_a_vector_stays_as_it_was_read(tmp_path: Path) -> None:
    vector = read_vector(write(tmp_path / "v.jsonl", VECTOR, *LIFE))
    run_vector(vector, Manager)
    assert vector == read_vector(vector.path)


def test_a_broken_rule_ends_the_vector_at_its_line(tmp_path: Path) -> None:
    found = outcome(tmp_path, *after(3, lengths={"r": [0, 6, 6]}), LIFE[0], implementation=KeepsPages)
    assert isinstance(found.finding, RuleBroken)
    assert (found.finding.step, found.operations, found.line) == (6, 6, 8)


def test_a_failing_implementation_is_a_finding(tmp_path: Path) -> None:
    found = outcome(tmp_path, *LIFE, implementation=Raises)
    assert isinstance(found.finding, ImplementationFailed)
    assert (found.finding.step, found.line) == (6, 7)
    found = outcome(tmp_path, *LIFE, implementation=CannotBeMade)
    assert isinstance(found.finding, ImplementationFailed)
    assert (found.finding.step, found.finding.op, found.line) == (0, None, 1)


def test_the_state_is_compared_after_every_operation(tmp_path: Path) -> None:
    class LosesTheRow(Manager):
        """The answers are right, the state is not."""

        def snapshot(self) -> Any:
            state = super().snapshot()
            state.rows = {}
            return state

    found = outcome(tmp_path, *LIFE, implementation=LosesTheRow)
    assert isinstance(found.finding, RuleBroken)
    assert found.finding.rule.id == "ROW-1"
    assert found.operations == 3


def test_a_recorded_trace_passes_and_one_page_changed_does_not(tmp_path: Path) -> None:
    def checked(*events: dict[str, Any]) -> Outcome:
        with TraceReader(write(tmp_path / "t.jsonl", HEADER, *events)) as trace:
            return check_trace(trace)

    good = checked(*RECORDED)
    assert good.finding is None
    assert (good.operations, good.line) == (6, 7)
    assert good.evidence.checked["PAGE-1"]
    changed = checked(*RECORDED[:5], RECORDED[5] | {"obs": {"freed": [1]}}, RECORDED[0])
    assert isinstance(changed.finding, RuleBroken)
    assert changed.finding.rule.id == "STORE-5"
    assert (changed.operations, changed.line, changed.finding.step) == (6, 7, 6)


def test_an_expect_line_is_about_the_implementations_values_where_it_reported_some() -> None:
    model = Model(Config(page_size=4, num_pages=16, num_rows=2, max_context_len=64))
    op = events.Extend([("r", 6)])
    for done in (events.Submit("r", [1, 2, 3, 4, 5, 6]), events.MatchPrefix("r"), op):
        model.step(done)
    right = Expect(lengths={"r": (0, 6, 6)}, figures=events.Figures(uncached=8, available=56))

    def seen(allocated: int, uncached: int | None) -> Seen:
        view = events.HolderView(0, 0, 6, allocated)
        return Seen(events.SnapshotAnswer(requests={"r": view}, sessions={}), events.Figures(uncached=uncached))

    for reported in (NOTHING, seen(6, None), seen(6, 8)):
        Expectations().check(op, right, model, reported)
    for reported in (seen(7, 8), seen(6, 4), Seen(events.SnapshotAnswer(requests={}, sessions={}), events.Figures())):
        with pytest.raises(Mismatch):
            Expectations().check(op, right, model, reported)
    slot = events.SnapshotAnswer(requests={}, sessions={"s": events.HolderView(0, 0, 3, 4)})
    turn: list[events.Event] = [
        events.OpenSession("s"),
        events.Submit("t", [7, 8, 9], "s"),
        events.MatchPrefix("t"),
        events.Extend([("t", 3)]),
        events.Launch(1, ["r", "t"]),
        events.Complete(1, {"r": 1, "t": 1}),
        events.Finish("t"),
    ]
    for one in turn:
        model.step(one)
    idle = Expect(lengths={"s": (0, 3, 3)})
    Expectations().check(turn[-1], idle, model, Seen(slot, events.Figures()))
    assert slot.sessions is not None
    slot.sessions["s"].committed_len = 2
    with pytest.raises(Mismatch):
        Expectations().check(turn[-1], idle, model, Seen(slot, events.Figures()))
