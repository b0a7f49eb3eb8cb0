"""The identity of states: a key without page, window page, state slot, row, record, run and launch numbers.

**Sound**: states with equal keys allow the same operations, and the same operation leads them to equal keys; so
exploring one of them is exploring all. The key is the whole state written down, except

- *names that nothing depends on.* The specification compares page, row, record, run and launch numbers with each other,
  and never with anything else: `1..num_pages` is a set of names, and so are the numbers of window pages and of state
  slots. Renaming them everywhere gives a state that behaves the same. So a record is called by its holder, a row by the
  record that has it, a page by the place where it first occurs in the walk below (holders by name, each table in order
  of position, then the store by prefix), a window page by the page that it is behind, a state slot by where the same
  walk meets it, a row that is withheld by its first reader, a launch by its age. The walk reaches each number that
  means something, and an unexpected ownership, lock, or content is written down as well. So the
  key of a broken state is not that of a sound one, and a state that breaks a rule is never taken for one seen before.
- *values that no operation reads any more.* The content of a free page, and of positions that no launch has written: a
  launch writes it before anything reads it. Of a request that waits: where its last extend ended, and the number of its
  last run (a new extend sets both), though not whether it ever ran (an abort asks). Of an idle slot: how many tokens
  are promised (a match sets it), and positions written past the committed ones (a match forgets them; with recurrent
  states they are kept, for they decide where a turn may resume). Of a record: how far its cursor is behind its
  protected length, and the page borders before it whose states it has kept (both only grow). Of a part in a launch in
  flight: which run it was for, unless that is the one in memory now: run numbers only grow, so no other can become it.
- *counts of checks.*

The tests renumber states at random, and exhaust a small scope without any renaming: both give the same keys.
"""

import marshal
from hashlib import blake2b
from typing import Any, NamedTuple

from kvconform.exploring.moves import Node
from kvspec.model.state import WITHHELD, State
from kvspec.tokens import Tokens

Key = bytes
"""Sixteen bytes: states whose written form differs collide with a probability of about n**2 / 2**129."""


def key(node: Node) -> Key:
    """The common key of a state and of all states that differ from it only in numbers."""
    # Version 2 of the format does not abbreviate shared objects, so equal tuples give equal bytes.
    return blake2b(marshal.dumps(canonical(node), 2), digest_size=16).digest()


class Numbers(NamedTuple):
    """The numbers that the walk gives to pages, window pages and state slots."""

    pages: dict[int, int]
    window_pages: dict[int, int]
    states: dict[int, int]


def canonical(node: Node) -> tuple[Any, ...]:
    """The state written down without irrelevant numbers."""
    state, came = node
    numbers = Numbers({}, {}, {})
    holders: dict[object, str] = {}
    holders |= {request.record: req for req, request in state.requests.items() if request.record is not None}
    holders |= {session.record: f"/{name}" for name, session in state.sessions.items() if session.record is not None}
    walked = (
        tuple([_request(state, req, numbers) for req in sorted(state.requests)]),
        tuple([_session(state, name, numbers) for name in sorted(state.sessions)]),
        _store(state, numbers),
    )
    flights, withheld = _flights(state, holders)
    owner = state.owner
    owners = [owner.get(page) for page in numbers.pages]
    return (
        *walked,
        flights,
        withheld,
        tuple([name if isinstance(name, bytes) else holders.get(name) for name in owners]),
        (len(owner), len(state.rows), len(state.records), len(state.readers)),
        _window_sides(state, numbers) if state.config.sliding_window else (),
        _state_owners(state, numbers, holders) if state.config.num_states else (),
        tuple(sorted(came)),
    )


def _window_sides(state: State, numbers: Numbers) -> tuple[Any, ...]:
    """The window side of each page of the walk, the page of each window side, and their number."""
    behind = [state.window_of.get(page) for page in numbers.pages]
    for window_page in behind:
        if window_page is not None:
            numbers.window_pages.setdefault(window_page, len(numbers.window_pages))
    owners = [state.window_owner.get(window_page) for window_page in numbers.window_pages]
    return (
        tuple([None if window_page is None else numbers.window_pages[window_page] for window_page in behind]),
        tuple([None if page is None else numbers.pages.get(page) for page in owners]),
        (len(state.window_of), len(state.window_owner), len(state.store.window_pins)),
    )


def _state_owners(state: State, numbers: Numbers, holders: dict[object, str]) -> tuple[Any, ...]:
    """The owner of each state slot of the walk, and the numbers of slots and locks."""
    owners: list[Any] = [state.state_owner.get(slot) for slot in numbers.states]
    return (
        tuple([("waits", name) if isinstance(name, str) else holders.get(name, name) for name in owners]),
        (len(state.state_owner), len(state.store.states), len(state.store.state_pins)),
    )


def _request(state: State, req: str, numbers: Numbers) -> tuple[Any, ...]:
    tokens, session, record, running, prefix_len, seq_len, resumed, run, slot = state.requests[req]
    prepared, speculating = state.prepared.get(req), state.speculating.get(req)
    return (
        req,
        _tokens(tokens),
        session,
        running,
        prefix_len,
        seq_len if running else 0,
        resumed,
        run > 0,
        slot if slot is None else numbers.states.setdefault(slot, len(numbers.states)),
        req in state.mid_prefill,
        prepared and tuple(prepared),
        speculating and tuple([tuple(step) for step in speculating]),
        None if record is None else (*_record(state, record, numbers), state.written[record], state.horizon[record]),
    )


def _session(state: State, name: str, numbers: Numbers) -> tuple[Any, ...]:
    history, record, turn, closing = state.sessions[name]
    if record is None:
        return name, _tokens(history), turn, closing
    written = state.written[record]
    if not state.config.num_states:
        written = min(written, state.lengths[record].committed)
    return name, _tokens(history), turn, closing, _record(state, record, numbers), written


def _tokens(tokens: Tokens) -> tuple[Any, ...]:
    return (*tokens.pages, *tokens.rest)


def _record(state: State, record: int, numbers: Numbers) -> tuple[Any, ...]:
    row, locked, states, computing = state.records[record]
    pages = numbers.pages
    table = [pages.setdefault(page, len(pages)) for page in state.tables[record]]
    protected = state.lengths[record].protected
    return (
        tuple(state.lengths[record]),
        locked,
        tuple(table),
        state.rows.get(row) == record,
        tuple(state.readers.get(row, ())),
        max(protected, state.cursor[record]),
        _slots(state, record, states, computing, numbers),
        tuple([border for border in state.borders[record] if border >= protected]),
    )


def _slots(
    state: State, record: int, states: tuple[int, ...], computing: int, numbers: Numbers
) -> tuple[tuple[Any, ...], ...]:
    """Each state slot of a record with its content; tracking slots with the same content are interchangeable."""
    slots = []
    for slot in states:
        whose, length = state.state_content.get(slot, (0, 0))
        slots.append((slot != computing, length if whose == record else -1, slot))
    slots.sort()
    return tuple(
        (tracks, length, numbers.states.setdefault(slot, len(numbers.states))) for tracks, length, slot in slots
    )


def _store(state: State, numbers: Numbers) -> tuple[Any, ...]:
    store, pages, states = state.store, numbers.pages, numbers.states
    entries: list[tuple[Any, ...]] = []
    for name, page in sorted(store.pages.items()):
        parent = store.parents[page]
        number = pages.setdefault(page, len(pages))
        entries.append((name, parent, number, store.pins.get(page, 0), store.children.get(name, 1)))
        if state.config.sliding_window:
            entries.append((store.window_pins.get(page, 0),))
        if state.config.num_states:
            slot = store.states.get(name)
            kept = slot if slot is None else states.setdefault(slot, len(states))
            entries.append((kept, store.state_pins.get(page, 0)))
    return len(store.pins), len(store.children), tuple(entries)


def _flights(state: State, holders: dict[object, str]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Launches in flight, oldest first, and the readers of rows without a holder."""
    withheld: dict[int, int] = {}
    flights = []
    for passages in state.flights.values():
        parts = []
        for req, run, record, row, samples, drafts in sorted(passages):
            request = state.requests.get(req)
            awaited = request is not None and request.run == run and request.running
            now = state.rows.get(row)
            whose: str | int | None
            if now == WITHHELD:
                whose = withheld.setdefault(row, len(withheld))
            else:
                whose = None if now is None else holders.get(now)
            parts.append((req, awaited, whose, record == now, samples, drafts))
        flights.append(tuple(parts))
    return tuple(flights), tuple([tuple(state.readers.get(row, ())) for row in withheld])
