"""Rare events that a run has reached: the depth of launches, locks on one prefix, branches beside locks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kvspec.events import CacheUnfinished, Extend, Finish, Launch, Operation
from kvspec.model.state import State
from kvspec.store import ROOT

DEEP = 4
"""The largest counted number of launches in flight; more count as this many."""

HARD = (
    "2 launches in flight",
    "3 launches in flight",
    "4 launches in flight",
    "a row read by 2 launches",
    "a row read by 3 launches",
    "a lock shared by two",
    "a lock shared by three",
    "a branch beside one lock",
    "a branch beside two locks",
    "a row withheld, read by 2 launches",
)
"""All rare events."""

GOALS = {
    "slot lent": 500,
    "lend repeated": 150,
    "tail freed": 80,
    "two rows brought": 15,
    "three rows brought": 15,
    "a lock shared by two": 10,
}
"""Subject of the source documents -> rare events, and how often 20,000 operations must at least reach them."""
PER = 20_000


def missed(reached: Mapping[str, int], operations: int) -> Iterator[str]:
    """The goals that a run of so many operations has not reached, in words; none for a short run."""
    for name, goal in GOALS.items():
        due = goal * operations // PER
        if operations >= PER and reached.get(name, 0) < due:
            yield f"{name}: {reached.get(name, 0):,} of {due:,} times"


def met(state: State, op: Operation[Any]) -> Iterator[str]:
    """The events of `HARD` in the state after `op` was carried out."""
    match op:
        case Launch():
            yield from _depths(state, op)
        case Extend():
            yield from _shared(state)
            brought = sum(state.requests[req].resumed for req, _ in op.reqs)
            if brought > 1:
                yield "two rows brought" if brought == 2 else "three rows brought"
        case CacheUnfinished():
            yield from _shared(state)
            yield from _branches(state)
        case Finish():
            yield from _branches(state)
    if any(len(state.readers.get(row, ())) > 1 for row, record in state.rows.items() if not record):
        yield "a row withheld, read by 2 launches"


def _depths(state: State, op: Launch) -> Iterator[str]:
    if len(state.flights) > 1:
        yield f"{min(DEEP, len(state.flights))} launches in flight"
    deepest = max((len(reads) for reads in state.readers.values()), default=0)
    if deepest > 1:
        yield f"a row read by {min(3, deepest)} launches"


def _shared(state: State) -> Iterator[str]:
    locks = max(state.store.state_pins.values(), default=0)
    if locks > 1:
        yield "a lock shared by two" if locks == 2 else "a lock shared by three"


def _branches(state: State) -> Iterator[str]:
    """A prefix with two continuations, one of them locked: a tree must split a locked node for that."""
    store = state.store
    covering = Counter[int]()
    for end, locks in store.state_pins.items():
        page: int | None = end
        while page is not None:
            covering[page] += locks
            page = store.pages.get(store.parents[page])
    beside = (
        locks
        for page, locks in covering.items()
        if (parent := store.parents[page]) != ROOT and store.children.get(parent, 1) > 1
    )
    locks = max(beside, default=0)
    if locks:
        yield "a branch beside one lock" if locks == 1 else "a branch beside two locks"
