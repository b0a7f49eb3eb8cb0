"""Each change of a row's or a page's owner in the model is a step of `kvspec.ownership`, and so is each lend."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from kvconform.fuzzing.swarm import memory
from kvconform.oracle import Model
from kvspec.events import Refusal
from kvspec.model.state import State
from kvspec.ownership import FREE, STORE, WITHHELD, allocate, flush, publish, release, withhold
from tests.walk import SEEDS, RandomDraw, proposals

Owners = dict[int, int]


def pages(state: State) -> Owners:
    return {page: STORE if isinstance(owner, bytes) else owner for page, owner in state.owner.items()}


def changes(before: Owners, after: Owners) -> Iterator[tuple[int, int, int]]:
    """Each number whose owner has changed, and both owners."""
    for number in before.keys() | after.keys():
        old, new = before.get(number, FREE), after.get(number, FREE)
        if old != new:
            yield number, old, new


def row_step(old: int, new: int, readers: int) -> int:
    """The owner that the one possible step makes of a row."""
    if old == FREE:
        return allocate(old, readers, new)
    return flush(old, readers) if old == WITHHELD else withhold(old, readers)


def page_step(old: int, new: int, locks: int) -> int:
    """The same of a page."""
    if old == FREE:
        return allocate(old, 0, new)
    return publish(old, old) if new == STORE else release(old, locks if old == STORE else 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_change_of_an_owner_is_a_step(seed: int) -> None:
    draw = RandomDraw(seed)
    model = Model(memory(draw))
    kinds = set[tuple[bool, bool]]()
    for op in proposals(model.state, draw, 120):
        rows, owners, locks = model.state.rows.copy(), pages(model.state), model.state.store.pins.copy()
        with suppress(Refusal):
            model.step(op)
        state = model.state
        for row, old, new in changes(rows, state.rows):
            assert new == row_step(old, new, len(state.readers.get(row, ()))), op
            kinds.add((old > 0, new > 0))
        for page, old, new in changes(owners, pages(state)):
            assert new == page_step(old, new, locks.get(page, 0)), op
        for name, session in state.sessions.items():
            turn = state.requests.get(session.turn or "")
            assert session.record is None or turn is None or turn.record is None, f"{name} is had twice"
    assert (True, False) in kinds or (False, True) in kinds or not model.state.runs, "rows were given out, or let go"
