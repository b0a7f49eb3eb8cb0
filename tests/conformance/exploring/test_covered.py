"""Walks cover each transition where launches overlap: counted from their operations, not from their graph."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from kvconform.exploring import exhaust
from kvconform.exploring.canonical import key
from kvconform.exploring.covering import Cover, walks_of
from kvconform.exploring.moves import Node
from kvconform.exploring.scope import scope_named
from kvconform.oracle import Model
from kvconform.vectors.runner import unanswered
from kvspec.events import Complete, Config, Launch, OpenSession, Operation, Refusal, Submit

SMALL = Cover("speculative", ("abort", "close_session", "give_back", "preempt"))

Transition = tuple[bytes, bytes, bool]
"""The state before, the operation without the number of a launch, and whether it was refused."""


def transitions(walk: Sequence[Operation[Any]], config: Config) -> list[Transition]:
    """The transitions of a walk, found by carrying its operations out, without the graph that it was made from."""
    model, came, found = Model(config), set[str](), []
    for op in map(unanswered, walk):
        named = msgspec.structs.replace(op, launch=0) if isinstance(op, (Launch, Complete)) else op
        before, asked, refused = key(Node(model.state, frozenset(came))), msgspec.json.encode(named), False
        try:
            model.step(op)
        except Refusal:
            refused = True
        came |= {op.req} if isinstance(op, Submit) else {op.session} if isinstance(op, OpenSession) else set()
        found.append((before, asked, refused))
    return found


@pytest.fixture(scope="module")
def taken() -> list[list[Transition]]:
    config = scope_named(SMALL.scope, SMALL.without).config
    return [transitions(walk, config) for walk in walks_of(SMALL)]


def carried_out(taken: Iterable[list[Transition]]) -> int:
    return len({(state, op) for walk in taken for state, op, refused in walk if not refused})


@pytest.mark.slow
def test_walks_cover_each_transition_that_exploring_counts(taken: list[list[Transition]]) -> None:
    explored = exhaust(scope_named(SMALL.scope, SMALL.without), live=False)
    assert carried_out(taken) == explored.transitions > 500
    assert {state for walk in taken for state, *_ in walk} <= explored.keys
    assert any(refused for walk in taken for *_, refused in walk)


def test_no_walk_can_be_dropped(taken: list[list[Transition]]) -> None:
    times = Counter(step for walk in taken for step in set(walk))
    assert all(any(times[step] == 1 for step in walk) for walk in taken)
