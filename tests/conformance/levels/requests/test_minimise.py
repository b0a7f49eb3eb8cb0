"""A finding is shown by the fewest operations."""

import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from kvconform.gallery.mutants import BUGS
from kvconform.levels.minimising import Effort
from kvconform.levels.requests import minimise as shrink_module
from kvconform.levels.requests.minimise import (
    about,
    effort_for,
    effort_for_one,
    kind,
    shortest_of_run,
    shortest_of_trace,
    shrink,
    words,
)
from kvconform.oracle import Model
from kvconform.proxy import OracleProxy
from kvconform.traces.codec import TraceReader, read_vector
from kvconform.vectors.runner import Counterexample, check_again, names_in, run_vector, try_out
from kvref.manager import Manager
from kvspec.events import (
    CacheUnfinished,
    Complete,
    Config,
    Decode,
    DecodeAnswer,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Report,
    Retract,
    Submit,
)
from tests.conformance.helpers import (
    HEADER,
    LIFE,
    RECORDED,
    VECTOR,
    KeepsPages,
    Raises,
    RaisesAtLaunch,
    check_trace,
    write,
)

CONFIG = Config(page_size=4, num_pages=64, num_rows=8, max_context_len=64)


def busy() -> list[Operation[Any]]:
    """Three requests in shared batches, of which only `b` is retracted."""
    names = ["a", "b", "c"]
    return [
        OpenSession("s"),
        Submit("a", [1, 2, 3, 4, 5], "s"),
        Submit("b", [1, 2, 3, 4, 5, 6]),
        Submit("c", [9, 8, 7]),
        *(MatchPrefix(name) for name in names),
        Extend([("a", 5), ("b", 6), ("c", 3)]),
        Launch(1, names),
        Complete(1, {"a": 1, "b": 2, "c": 3}),
        Report(),
        *(CacheUnfinished(name) for name in names),
        Decode(names),
        Launch(2, names),
        Complete(2, {"a": 1, "b": 2, "c": 3}),
        Finish("a"),
        Retract("b"),
        Finish("c"),
    ]


class KeepsTheRow(Manager):
    """Counts one free row too few once something was retracted."""

    retracted = False

    def retract(self, req: str) -> Any:
        answer = super().retract(req)
        self.retracted = True
        return answer

    def report(self, mode: Literal["idle", "busy"] = "busy") -> Any:
        figures = super().report(mode)
        if self.retracted and figures.rows_available is not None:
            figures.rows_available -= 1
        return figures


def tags(shown: Counterexample) -> list[str]:
    return [str(op.__struct_config__.tag) for op in shown.operations]


def test_an_injected_failure_shrinks_to_its_known_minimum() -> None:
    operations = [*busy(), Report(), OpenSession("t")]
    shrunk = shrink(operations, partial(try_out, config=CONFIG, factory=KeepsTheRow), kind, effort_for_one())
    assert shrunk is not None and shrunk.complete
    # A retract needs a request that was extended, and nothing else.
    assert tags(shrunk.counterexample) == ["submit", "match_prefix", "extend", "retract", "report"]
    submitted = shrunk.counterexample.operations[0]
    assert isinstance(submitted, Submit) and submitted.req == "b"
    extended = shrunk.counterexample.operations[2]
    assert isinstance(extended, Extend) and extended.reqs == [("b", 6)]
    assert all(op.obs is not None for op in shrunk.counterexample.operations)


def test_a_failure_of_the_whole_state_shrinks_too() -> None:
    class LosesTheStore(Manager):
        def snapshot(self) -> Any:
            state = super().snapshot()
            state.store_pages = []
            return state

    shrunk = shrink(busy(), partial(try_out, config=CONFIG, factory=LosesTheStore), kind, effort_for_one())
    assert shrunk is not None and shrunk.complete
    # The first publish is that of the turn `a`, so its session is needed as well.
    assert tags(shrunk.counterexample) == [
        "open_session",
        "submit",
        "match_prefix",
        "extend",
        "launch",
        "complete",
        "cache_unfinished",
        "snapshot",
    ]


def test_an_exception_shrinks_to_a_case_that_should_have_worked() -> None:
    """Launching nothing raises as well, but there the implementation was only asked for nonsense."""
    shrunk = shrink(busy(), partial(try_out, config=CONFIG, factory=RaisesAtLaunch), kind, effort_for_one())
    assert shrunk is not None and shrunk.complete
    assert tags(shrunk.counterexample) == ["submit", "match_prefix", "extend", "launch"]


def recorded(operations: list[Operation[Any]]) -> list[Operation[Any]]:
    """The operations with the answers of the reference."""
    done: list[Operation[Any]] = []
    proxy = OracleProxy(Manager(CONFIG), Model(CONFIG), record=done.append, snapshot_every=1)
    for op in operations:
        proxy(op)
    return done


def test_recorded_answers_shrink_to_those_that_explain_the_finding() -> None:
    operations = recorded(busy()[:15])
    decode = next(op for op in operations if isinstance(op, Decode))
    given = next(op.obs.pages for op in operations if isinstance(op, Extend) and op.obs is not None)
    assert given is not None
    decode.obs = DecodeAnswer({"c": given["b"]})  # pages of b, to c, which needs none
    operations = operations[: operations.index(decode) + 1]
    whole = check_again(operations, CONFIG)
    assert whole is not None
    shrunk = shrink(operations, partial(check_again, config=CONFIG), words, effort_for_one())
    assert shrunk is not None and shrunk.complete
    assert words(shrunk.counterexample) == words(whole)
    batches = [op.reqs for op in shrunk.counterexample.operations if isinstance(op, Extend)]
    assert batches == [[("c", 3)]], "what was given to c, and nothing of the others"


def test_recorded_answers_do_not_shrink_to_another_finding() -> None:
    """Without the publish, the match of 8 tokens is wrong as well, but not in the same way."""
    operations = recorded([*busy()[:14], Submit("d", [1, 2, 3, 4, 5, 6, 7, 8, 9]), MatchPrefix("d")])
    matched = operations[-2]
    assert isinstance(matched, MatchPrefix) and matched.obs is not None
    assert matched.obs.prefix_len == 4
    matched.obs.prefix_len = 8
    shrunk = shrink(operations, partial(check_again, config=CONFIG), words, effort_for_one())
    assert shrunk is not None
    finding = shrunk.counterexample.finding
    assert getattr(finding, "expected", None) == 4
    assert "cache_unfinished" in tags(shrunk.counterexample)


def test_what_can_go_only_once_something_later_has_gone_goes_too() -> None:
    operations = recorded([*busy()[:8], Launch(1, ["a", "b", "c"]), Complete(1, {"a": 1, "b": 2, "c": 3}), Report()])
    report = operations[-2]
    assert isinstance(report, Report) and report.obs is not None
    report.obs.rows_requests = 7
    shrunk = shrink(operations[:-1], partial(check_again, config=CONFIG), words, effort_for_one())
    assert shrunk is not None and shrunk.complete
    assert "launch" not in tags(shrunk.counterexample)


@pytest.mark.parametrize("names", [{"a", "s"}, {"b"}, {"c"}, {"a", "s", "c"}, {"b", "c"}])
def test_requests_can_be_left_out_of_a_trace_that_conforms(names: set[str]) -> None:
    """Each of the three has launches of its own, beside those that they share, and none has a prefix of another."""
    operations = busy()
    operations[2] = Submit("b", [4, 4, 4, 4, 5, 6])
    for name in ("a", "b", "c"):
        operations[17:17] = [Decode([name]), Launch(3, [name]), Complete(3, {name: 1})]
    done = [op for op in recorded(operations) if op.__struct_config__.tag not in ("snapshot", "report")]
    rest = about(done, names)
    assert {name for op in rest for name in names_in(op)} == names
    assert check_again(rest, CONFIG) is None
    assert len([op for op in rest if isinstance(op, Launch)]) == 2 + len(names - {"s"})


def test_a_failure_that_does_not_show_again_is_reported() -> None:
    assert shrink(busy(), partial(try_out, config=CONFIG, factory=Manager), kind, effort_for_one()) is None


def test_the_search_ends_when_its_effort_is_spent_and_however_slow_the_machine_is() -> None:
    def shown(seconds: float) -> list[str]:
        tried = list[int]()

        def attempt(operations: Any) -> Counterexample | None:
            tried.append(len(operations))
            time.sleep(seconds)
            return try_out(operations, CONFIG, KeepsTheRow)

        shrunk = shrink([*busy(), Report()], attempt, kind, Effort(80, 60))
        assert sum(tried[:-1]) < 80 <= sum(tried)
        assert shrunk is not None and not shrunk.complete and len(tags(shrunk.counterexample)) > 5
        return tags(shrunk.counterexample)

    assert shown(0) == shown(0.01)


def test_the_search_ends_when_its_time_is_up() -> None:
    def slow(operations: Any) -> Counterexample | None:
        time.sleep(0.05)
        return try_out(operations, CONFIG, KeepsTheRow)

    started = time.monotonic()
    shrunk = shrink([*busy(), Report()], slow, kind, effort_for_one(0.2))
    assert time.monotonic() - started < 2
    assert shrunk is not None and not shrunk.complete
    assert shrunk.counterexample.finding.op is not None


def test_the_note_says_how_short_and_whether_the_search_was_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = {"op": "open_session", "session": "s"}
    vector = read_vector(write(tmp_path / "v.jsonl", VECTOR, noise, *LIFE))
    shortest = shortest_of_run(vector, run_vector(vector, KeepsPages), KeepsPages)
    assert shortest.note == "The shortest operations that still show it (5 of 7)."
    monkeypatch.setattr(shrink_module, "UNITS", 0)
    shortest = shortest_of_run(vector, run_vector(vector, Raises), Raises)
    assert shortest.note == "Fewer operations that still show it (7 of 7); the search was stopped."
    monkeypatch.setattr(shrink_module, "LONGEST", 6)
    shortest = shortest_of_run(vector, run_vector(vector, Raises), Raises)
    assert shortest == (None, "7 operations are too many to look for fewer that show it (6 at most).")


def test_the_look_that_shows_it_is_counted_on_both_sides(tmp_path: Path) -> None:
    vector, factory = read_vector(write(tmp_path / "v.jsonl", VECTOR, *LIFE)), BUGS["stale-row-index"].factory
    shortest = shortest_of_run(vector, run_vector(vector, factory), factory)
    assert shortest.counterexample is not None
    assert tags(shortest.counterexample)[-1] == "snapshot"
    assert shortest.note == "The shortest operations that still show it (6 of 7)."


def test_a_trace_is_read_again_up_to_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leak = RECORDED[5] | {"obs": {"freed": []}}
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED[:5], leak)
    path.write_bytes(path.read_bytes() + b"{")
    with TraceReader(path) as trace:
        outcome = check_trace(trace)
    shortest = shortest_of_trace(path, outcome.operations, effort_for(path))
    assert shortest.counterexample is not None
    assert tags(shortest.counterexample)[-1] == "finish"
    monkeypatch.setattr(shrink_module, "LONGEST", 5)
    assert shortest_of_trace(path, outcome.operations, effort_for(path)).counterexample is None
    path.unlink()
    monkeypatch.setattr(shrink_module, "LONGEST", 6)
    assert "cannot be read a second time" in shortest_of_trace(path, outcome.operations, effort_for(path)).note


def test_what_fails_before_the_first_operation_has_none(tmp_path: Path) -> None:
    vector = read_vector(write(tmp_path / "v.jsonl", VECTOR, *LIFE))

    def factory(config: Config) -> Manager:
        raise MemoryError

    assert shortest_of_run(vector, run_vector(vector, factory), factory).counterexample is None
