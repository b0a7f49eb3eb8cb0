"""An operation that must be refused is a finding where it is carried out, whatever is reported of it."""

from collections import Counter

import pytest
from msgspec.structs import replace

from kvconform.oracle import Model
from kvconform.protocol import ANSWERS
from kvconform.vectors.runner import unanswered
from kvspec import events
from kvspec.events import Refusal, Refused
from kvspec.rules import Violation
from tests.conformance.helpers import with_refusals

CONFIG = events.Config(page_size=4, num_pages=8, num_rows=2, max_context_len=64)


@pytest.mark.slow
def test_whatever_a_vector_is_refused_is_found_where_it_is_carried_out() -> None:
    """By the rule of the refusal, if it has one that says more than OP-1."""
    found = Counter[str]()
    for vector in with_refusals():
        model = Model(vector.header.config)
        for step in vector.steps:
            op, due = unanswered(step.op), None if step.expect is None else step.expect.refused
            try:
                model.step(op)
                assert due is None, (vector.name, op)
            except Refusal as refusal:
                assert refusal.refused.rule == due, (vector.name, op)
                answer = events.EvictAnswer([]) if isinstance(op, events.Evict) else ANSWERS[type(op)]()
                with pytest.raises(Violation) as violation:
                    model.step(replace(op, obs=answer, refused=None))
                assert due in ("OP-1", violation.value.rule.id), (vector.name, op)
                found[violation.value.rule.id] += 1
    assert {"OP-1", "CAP-1", "SPEC-1", "LEN-1", "LAUNCH-1", "CHUNK-1", "RACE-1", "BATCH-2", "SESS-1"} <= found.keys()


@pytest.mark.parametrize("short", [1, 2, 3, 4])
def test_a_refusal_says_exactly_what_is_missing_or_nothing(short: int) -> None:
    """10 pages are needed, and 8 there."""
    model = Model(CONFIG)
    model.step(events.Submit("a", [1] * 40))
    model.step(events.MatchPrefix("a"))
    model.step(events.Extend([("a", 40)], refused=Refused("no room", "CAP-1")))
    refused = events.Extend([("a", 40)], refused=Refused("no room", "CAP-1", pages_short=short))
    if short == 2:
        model.step(refused)
        return
    with pytest.raises(Violation, match="CAP-1: pages_short of a refusal is wrong"):
        model.step(refused)


@pytest.mark.parametrize("withheld", [[0], None, []])
def test_a_row_that_is_free_under_a_launch_is_race_1_whatever_else_is_reported(withheld: list[int] | None) -> None:
    model = Model(CONFIG)
    for op in (events.Submit("a", [1] * 4), events.MatchPrefix("a"), events.Extend([("a", 4)], obs=None)):
        model.step(op)
    model.step(events.Launch(1, ["a"]))
    model.step(events.Abort("a"))
    with pytest.raises(Violation, match="RACE-1: rows are free that a launch in flight still reads"):
        model.step(events.Snapshot(obs=events.SnapshotAnswer(free_rows=[0, 1], withheld_rows=withheld)))
