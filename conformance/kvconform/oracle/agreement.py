"""Compares the books of a state with the memory after all steps so far: a further one of `kvspec.invariants`."""

from collections import Counter

from kvconform.oracle.meaning import pools
from kvconform.oracle.notes import NotedState
from kvspec.invariants import checks, holders
from kvspec.memory.events import Count
from kvspec.model.state import WITHHELD, State
from kvspec.rules import Violation


@checks("PAGE-1", "STORE-2", "SWA-1", "SWA-5", "MAMBA-1", "MAMBA-5")
def books_agree_with_the_memory_model(state: State) -> None:
    """The references, names and unlocked prefixes of the state match the memory after all events so far.

    These rules restate the memory model, whose checker has followed every step: each page, row, window page and state
    slot has the owners of its events, and the locks are those of its holders. Without a checker nothing is checked.
    """
    memory = state.memory if isinstance(state, NotedState) else None
    if memory is None:
        return
    store = state.store
    pages, rows, window, states = (Counter[int]() for _ in range(4))
    for _, record, _ in holders(state):
        rows[state.records[record].row] += 1
        pages.update(state.tables[record])
        window.update(state.window_sides(state.private(record)))
        states.update(state.records[record].states)
    states.update(request.state for request in state.requests.values() if request.state is not None)
    rows.update(row for row, owner in state.rows.items() if owner == WITHHELD and row in state.readers)
    sides = {key: state.window_of[page] for key, page in store.pages.items() if page in state.window_of}
    for books, locks, cached in ((window, store.window_pins, sides), (states, store.state_pins, store.states)):
        books.update({slot: locks[store.pages[key]] for key, slot in cached.items() if store.pages[key] in locks})
    cached_pages, known = set(store.pages.values()), pools(state.config)
    for pool, in_use, books, cached, locks in (
        ("pages", state.owner.keys(), pages, store.pages, store.pins),
        ("rows", state.rows.keys(), rows, {}, {}),
        ("window", state.window_owner.keys(), window, sides, store.window_pins),
        ("states", state.state_owner.keys(), states, store.states, store.state_pins),
    ):
        if not locks.keys() <= cached_pages:
            raise Violation("STORE-2", "a prefix is locked that is gone")
        if pool in known:
            named = memory.checker.names(pool)
            if named != {key.hex(): page for key, page in cached.items()}:
                raise Violation("MEM-NAME", f"{pool}: other prefixes are cached", expected=named)
            unlocked = {page for key, page in cached.items() if store.pages[key] not in locks}
            references = dict.fromkeys(in_use, 0) | books
            memory.pending.append(Count(pool, None, [*unlocked], [*(in_use - unlocked)], references))
    memory.check()
