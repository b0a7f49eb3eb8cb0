"""The steps over functions from index to owner are the model's: held against it on both sides of every operation."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain, product
from typing import Any

import pytest

from kvconform.fuzzing import generate
from kvconform.proving.partition import counterexample, prove, prove_initial
from kvspec import events
from kvspec.events import Config, Operation, Refusal
from kvspec.model import OPERATIONS, Model
from kvspec.model import partition as steps
from kvspec.model.hybrid import resumable
from kvspec.model.induction import FOREST, INVARIANTS, POOLS, counting
from kvspec.model.owners import (
    FREE,
    HELD,
    LENT,
    NONE,
    OF_PREFIX,
    OF_RECORD,
    OF_REQUEST,
    PRIVATE,
    RECORD,
    SLOT,
    STORE,
    WITHHELD,
    Map,
    Partition,
    Set,
    Step,
    Steps,
    put,
)
from kvspec.model.state import WITHHELD as WITHHELD_ROW
from kvspec.model.state import Request, State
from kvspec.pages import ceil_pages, expand
from kvspec.store import ROOT
from kvspec.tokens import PrefixKey
from tests.walk import RandomDraw, proposals

SEEDS = range(12)
STEPS = 120


class Numbers(dict[Any, int]):
    """Numbers names as they come."""

    def __missing__(self, name: Any) -> int:
        self[name] = len(self)
        return self[name]


class Names:
    """The numbers of all that has a name, the same before and after a step."""

    def __init__(self, *states: State) -> None:
        self.requests, self.sessions, self.records, self.prefixes = Numbers(), Numbers(), Numbers(), Numbers({ROOT: 0})
        self.parents: dict[int, int] = {}
        for state in states:
            for key, entry in state.store.entries.items():
                self.parents[self.prefixes[key]] = self.prefixes[entry.parent]
            for numbers, found in (
                (self.requests, state.requests),
                (self.sessions, state.sessions),
                (self.records, state.records),
            ):
                for name in found:
                    _ = numbers[name]

    def path(self, request: Request, state: State) -> list[int]:
        """The prefixes of a request's tokens, the root first."""
        path = [0]
        for index in range(len(request.tokens.pages)):
            prefix = self.prefixes[request.tokens.key(index)]
            self.parents[prefix] = path[-1]
            path.append(prefix)
        return path

    def ancestors(self, prefix: int) -> list[int]:
        """The shorter prefixes, the root first, and itself."""
        return [*self.ancestors(self.parents[prefix]), prefix] if prefix else [0]


def owners(state: State, names: Names) -> Partition:
    """Who owns what, told by the model's state."""
    page_size = state.config.page_size
    pages: dict[int, tuple[int, int, int]] = {}
    for page, owner in state.owner.items():
        if isinstance(owner, bytes):
            pages[page] = STORE, names.prefixes[owner], NONE
        else:
            pages[page] = PRIVATE, names.records[owner], state.tables[owner].index(page)
    entries = {names.prefixes[key]: entry.page for key, entry in state.store.entries.items()}
    locks = Counter({names.prefixes[key]: count for key, count in state.store.pins.items()})
    for key in state.store.pins:
        locks[names.prefixes[state.store.entries[key].parent]] -= 1
    ancestors = {prefix: names.ancestors(prefix) for prefix in names.prefixes.values()}
    slots: dict[int, tuple[int, int, int]] = {}
    for slot, whose in state.state_owner.items():
        if isinstance(whose, bytes):
            slots[slot] = OF_PREFIX, names.prefixes[whose], NONE
        elif isinstance(whose, str):
            slots[slot] = OF_REQUEST, names.requests[whose], NONE
        else:
            slots[slot] = OF_RECORD, names.records[whose], state.records[whose].states.index(slot)
    states = {names.prefixes[key]: slot for key, slot in state.store.states.items()}
    records = {names.records[record]: (record, *have) for record, have in state.records.items()}
    lengths = {number: state.lengths[record] for number, (record, *_) in records.items()}
    tables = {number: state.tables[record] for number, (record, *_) in records.items()}
    held = {
        names.records[session.record]: (SLOT, names.sessions[name])
        for name, session in state.sessions.items()
        if session.record is not None
    } | {
        names.records[request.record]: (LENT if request.resumed else HELD, names.requests[req])
        for req, request in state.requests.items()
        if request.record is not None
    }
    requests = {names.requests[req]: request for req, request in state.requests.items()}
    early = {number: request.state for number, request in requests.items() if request.state is not None}
    sessions = {names.sessions[name]: session for name, session in state.sessions.items()}
    size = 1 + max(
        state.config.num_pages,
        state.config.num_rows,
        state.config.num_window_pages,
        state.config.num_states,
        *(len(numbers) for numbers in (names.requests, names.sessions, names.records, names.prefixes)),
    )

    def record_of(holder: Any) -> int:
        return NONE if holder is None or holder.record is None else names.records[holder.record]

    def at(numbers: Sequence[int], index: int) -> int:
        return numbers[index] if 0 <= index < len(numbers) else NONE

    return Partition(
        num_pages=state.config.num_pages,
        num_rows=state.config.num_rows,
        windowed=bool(state.config.sliding_window),
        num_window_pages=state.config.num_window_pages,
        num_states=state.config.num_states,
        states_each=1 + state.config.tracking_states if state.config.num_states else 0,
        page_kind=lambda page: pages.get(page, (FREE, NONE, NONE))[0],
        page_owner=lambda page: pages.get(page, (FREE, NONE, NONE))[1],
        page_index=lambda page: pages.get(page, (FREE, NONE, NONE))[2],
        side=lambda page: state.window_of.get(page, NONE),
        behind=lambda side: state.window_owner.get(side, NONE),
        state_kind=lambda slot: slots.get(slot, (FREE, NONE, NONE))[0],
        state_owner=lambda slot: slots.get(slot, (FREE, NONE, NONE))[1],
        state_index=lambda slot: slots.get(slot, (FREE, NONE, NONE))[2],
        cached=lambda prefix: prefix in entries,
        page=lambda prefix: entries.get(prefix, NONE),
        locks=lambda prefix: locks[prefix] if prefix else 0,
        state=lambda prefix: states.get(prefix, NONE),
        depth=lambda prefix: len(ancestors.get(prefix, [0, 0])) - 1,
        ancestor=lambda prefix, depth: at(ancestors.get(prefix, [0, prefix]), depth),
        live=lambda record: record in records,
        row=lambda record: records[record][1] if record in records else NONE,
        locked=lambda record: names.prefixes[records[record][2]] if record in records else 0,
        first=lambda record: lengths[record].protected // page_size if record in records else 0,
        last=lambda record: len(tables[record]) if record in records else 0,
        cursor=lambda record: state.cursor[records[record][0]] // page_size if record in records else 0,
        states=lambda record, index: at(records[record][3] if record in records else (), index),
        table=lambda record, index: at(tables.get(record, []), index),
        role=lambda record: held.get(record, (NONE, NONE))[0],
        holder=lambda record: held.get(record, (NONE, NONE))[1],
        present=lambda request: request in requests,
        session_of=lambda request: (
            names.sessions[requests[request].session]
            if request in requests and requests[request].session is not None
            else NONE
        ),
        record_of=lambda request: record_of(requests.get(request)),
        running=lambda request: request in requests and requests[request].running,
        matched=lambda request: request in requests and requests[request].prefix_len is not None,
        early=lambda request: early.get(request, NONE),
        is_open=lambda session: session in sessions,
        slot=lambda session: record_of(sessions.get(session)),
        turn=lambda session: (
            names.requests[sessions[session].turn]
            if session in sessions and sessions[session].turn is not None
            else NONE
        ),
        closing=lambda session: session in sessions and sessions[session].closing,
        row_kind=lambda row: FREE if row not in state.rows else WITHHELD if state.rows[row] == WITHHELD_ROW else RECORD,
        row_of=lambda row: names.records[state.rows[row]] if state.rows.get(row) else NONE,
        reads=lambda row: len(state.readers.get(row, ())),
        domain=range(NONE, size),
    )


MEANT: dict[str, Callable[[Partition, int], bool]] = {
    "page_kind": lambda state, page: bool(state.is_page(page)),
    "page_owner": lambda state, page: bool(state.is_page(page)) and state.page_kind(page) != FREE,
    "page_index": lambda state, page: bool(state.is_page(page)) and state.page_kind(page) == PRIVATE,
    "page": lambda state, prefix: bool(state.cached(prefix)),
    "side": lambda state, page: bool(state.is_page(page)),
    "behind": lambda state, side: bool(state.is_window_page(side)),
    "state_kind": lambda state, slot: bool(state.is_state(slot)),
    "state_owner": lambda state, slot: bool(state.is_state(slot)) and state.state_kind(slot) != FREE,
    "state_index": lambda state, slot: bool(state.is_state(slot)) and state.state_kind(slot) == OF_RECORD,
    "session_of": lambda state, request: bool(state.present(request)),
    "row_of": lambda state, row: bool(state.is_row(row)) and state.row_kind(row) == RECORD,
    **dict.fromkeys(("row_kind", "reads"), lambda state, row: bool(state.is_row(row))),
    **dict.fromkeys(("turn", "closing"), lambda state, session: bool(state.is_open(session))),
    **dict.fromkeys(
        ("row", "locked", "first", "last", "cursor", "role", "holder"), lambda state, record: bool(state.live(record))
    ),
    **dict.fromkeys(
        ("cached", "state", "locks", "live", "present", "record_of", "running", "matched", "early", "is_open", "slot"),
        lambda state, _: True,
    ),
}
"""Where each function means something. What a page's former owner was, for instance, is nobody's business."""


def differences(told: Partition, seen: Partition) -> list[str]:
    """Where two states differ."""
    assert seen.domain is not None
    found = [
        f"{name}({number})"
        for name, is_meant in MEANT.items()
        for number in seen.domain
        if is_meant(seen, number) and getattr(told, name)(number) != getattr(seen, name)(number)
    ]
    for record in filter(seen.live, seen.domain):
        tables = ([state.table(record, index) for index in range(seen.last(record))] for state in (told, seen))
        found += [f"table({record})"] if next(tables) != next(tables) else []
        slots = ([state.states(record, index) for index in range(seen.states_each)] for state in (told, seen))
        found += [f"states({record})"] if next(slots) != next(slots) else []
    return found


@dataclass(frozen=True)
class Place:
    """One operation that was carried out: its name, who owned what before and after, and the steps that it took."""

    name: str
    before: Partition
    after: Partition
    calls: list[Callable[[Partition], Steps]]


def places(seed: int) -> Iterator[Place]:
    """What a random walk carries out."""
    draw = RandomDraw(seed)
    model = Model(generate.config(draw))
    return carried_out(model, proposals(model.state, draw, STEPS))


def rare_places() -> Iterator[Place]:
    """What random walks hardly ever do: a slot of which nothing would be kept, and a lend that abort ends.

    And what the model never does by itself: the store takes the state slot of the holder, not a copy.
    """
    turn: list[Operation[Any]] = [events.Launch(1, ["b"]), events.Complete(1, {"b": 2}), events.Finish("b")]
    operations: list[Operation[Any]] = [
        *(events.OpenSession("s"), events.Submit("a", [1], "s"), events.MatchPrefix("a"), events.Extend([("a", 1)])),
        *(events.Launch(0, ["a"]), events.Retract("a"), events.MatchPrefix("a"), events.Complete(0), events.Abort("a")),
        *(events.Submit("b", [1], "s"), events.MatchPrefix("b"), events.Extend([("b", 1)])),
        *turn,
        *(events.Submit("c", [1, 2, 3], "s"), events.MatchPrefix("c"), events.Abort("c")),
    ]
    yield from carried_out(Model(Config(2, 4, 2, 8)), operations)
    donation = events.PublishAnswer(protected_len=2, freed=[], state_cached=3, state_taken=4)
    operations = [
        *(events.Submit("a", [1, 2, 3]), events.MatchPrefix("a"), events.TakeState("a"), events.Extend([("a", 3)])),
        *(events.Launch(1, ["a"]), events.Complete(1, {"a": 4}), events.CacheUnfinished("a", obs=donation)),
        events.Finish("a"),
    ]
    yield from carried_out(Model(Config(2, 4, 2, 8, num_states=5)), operations)


def carried_out(model: Model, operations: Iterable[Operation[Any]]) -> Iterator[Place]:
    for op in operations:
        before = model.state.copy()
        try:
            model.step(op)  # type: ignore[arg-type]
        except Refusal:
            continue
        names = Names(before, model.state)
        calls = list(CALLS.get(type(op), unmoved)(op, before, model.state, names))
        yield Place(OPERATIONS[type(op)].__name__, owners(before, names), owners(model.state, names), calls)


Call = Callable[[Partition], Steps]


def unmoved(op: Any, before: State, after: State, names: Names) -> Iterator[Call]:
    yield steps.unchanged


def open_session(op: events.OpenSession, before: State, after: State, names: Names) -> Iterator[Call]:
    yield lambda state: steps.open_session(state, names.sessions[op.session])


def submit(op: events.Submit, before: State, after: State, names: Names) -> Iterator[Call]:
    session = NONE if op.session is None else names.sessions[op.session]
    yield lambda state: steps.submit(state, names.requests[op.req], session)


def match_prefix(op: events.MatchPrefix, before: State, after: State, names: Names) -> Iterator[Call]:
    request = before.requests[op.req]
    record = request.record
    if record is None and request.session is not None:
        record = before.sessions[request.session].record
    kept = 0
    if record is not None:
        key_len = resumable(before.copy(), record, len(request.tokens) - 1)
        kept = min(before.lengths[record].committed, key_len)
    yield lambda state: steps.match_prefix(state, names.requests[op.req], ceil_pages(kept, before.config.page_size))


def extend(op: events.Extend, before: State, after: State, names: Names) -> Iterator[Call]:
    assert op.obs is not None and op.obs.rows is not None and op.obs.pages is not None
    for req, seq_len in op.reqs:
        request, record = before.requests[req], after.requests[req].record
        assert record is not None
        start = ceil_pages((request.seq_len if request.running else request.prefix_len) or 0, before.config.page_size)
        locked = after.records[record].locked
        yield _taking(
            steps.extend,
            start,
            expand(op.obs.pages.get(req, ())),
            names.requests[req],
            names.records[record],
            op.obs.rows[req],
            names.prefixes[locked],
            ceil_pages(seq_len, before.config.page_size),
            sides=expand((op.obs.window_pages or {}).get(req, ())),
            states=(1 if request.state is not None else 0, expand((op.obs.states or {}).get(req, ()))),
        )


def decode(op: events.Decode, before: State, after: State, names: Names) -> Iterator[Call]:
    assert op.obs is not None and op.obs.pages is not None
    for req in op.reqs:
        record = before.requests[req].record
        assert record is not None
        start, new = len(before.tables[record]), expand(op.obs.pages.get(req, ()))
        sides = expand((op.obs.window_pages or {}).get(req, ()))
        yield _taking(steps.decode, start, new, names.requests[req], start + len(new), sides=sides)


def _taking(
    operation: Callable[..., Steps],
    start: int,
    new: list[int],
    *arguments: int,
    sides: list[int],
    states: tuple[int, list[int]] | None = None,
) -> Call:
    """A step that takes the pages `new` and the window pages `sides`, in order of position, and state slots."""
    maps = [*_numbered(start, new), *_numbered(start, sides), *(() if states is None else _numbered(*states))]
    return lambda state: operation(state, *arguments, *maps)


def _numbered(start: int, taken: list[int]) -> tuple[Map, Map]:
    """From index to what is taken there, and back."""
    item_at = dict(enumerate(taken, start))
    index_of = {item: index for index, item in item_at.items()}
    return lambda index: item_at.get(index, NONE), lambda item: index_of.get(item, NONE)


def launch(op: events.Launch, before: State, after: State, names: Names) -> Iterator[Call]:
    rows = {passage.row for passage in after.flights[op.launch]}
    yield lambda state: steps.launch(state, lambda row: row in rows)


def complete(op: events.Complete, before: State, after: State, names: Names) -> Iterator[Call]:
    rows = {passage.row for passage in before.flights[op.launch]}
    released = before.rows.keys() - after.rows.keys()
    yield lambda state: steps.complete(state, lambda row: row in rows, len(released))


def _publication(req: str, end: int, before: State, names: Names) -> tuple[int, int, Map, int]:
    request = before.requests[req]
    assert request.record is not None
    first = before.lengths[request.record].protected // before.config.page_size
    end = max(first, end)
    keys = [request.tokens.key(index) for index in range(end)]
    known = first
    while known < end and keys[known] in before.store.entries:
        known += 1
    path = names.path(request, before)
    tombstones = [key for key in keys[first:known] if before.store.entries[key].page not in before.window_of]
    revived = sum(before.tables[request.record][keys.index(key)] in before.window_of for key in tombstones)
    return known, end, lambda index: path[index + 1] if 0 <= index < end else NONE, revived


def _state_cached(op: events.CacheUnfinished | events.Finish, end: int, before: State, names: Names) -> tuple[int, int]:
    """The prefix whose state the store takes, and the index of the record's slot that it takes for it."""
    request = before.requests[op.req]
    assert request.record is not None and op.obs is not None
    if op.obs.state_cached is None:
        return NONE, NONE
    own = before.records[request.record].states
    given = own.index(op.obs.state_cached) if op.obs.state_cached in own else NONE
    return names.prefixes[request.tokens.key(end - 1)], given


def cache_unfinished(op: events.CacheUnfinished, before: State, after: State, names: Names) -> Iterator[Call]:
    assert op.obs is not None and op.obs.protected_len is not None
    publication = _publication(op.req, op.obs.protected_len // before.config.page_size, before, names)
    cached = _state_cached(op, publication[1], before, names)
    taken = NONE if op.obs.state_taken is None else op.obs.state_taken
    yield lambda state: steps.cache_unfinished(state, names.requests[op.req], *publication, *cached, taken)


def _kept(op: events.Finish | events.Retract, before: State) -> int:
    record = before.requests[op.req].record
    assert record is not None and op.obs is not None and op.obs.freed is not None
    return len(before.tables[record]) - len(expand(op.obs.freed))


def finish(op: events.Finish, before: State, after: State, names: Names) -> Iterator[Call]:
    request = before.requests[op.req]
    assert request.record is not None
    committed = min(before.lengths[request.record].committed, len(request.tokens)) if before.config.prefix_cache else 0
    publication = _publication(op.req, committed // before.config.page_size, before, names)
    cached = _state_cached(op, publication[1], before, names)
    yield lambda state: steps.finish(state, names.requests[op.req], *publication, *cached, _kept(op, before))


def retract(op: events.Retract, before: State, after: State, names: Names) -> Iterator[Call]:
    yield lambda state: steps.retract(state, names.requests[op.req], _kept(op, before))


def abort(op: events.Abort, before: State, after: State, names: Names) -> Iterator[Call]:
    yield lambda state: steps.abort(state, names.requests[op.req], before.requests[op.req].run > 0)


def close_session(op: events.CloseSession, before: State, after: State, names: Names) -> Iterator[Call]:
    yield lambda state: steps.close_session(state, names.sessions[op.session])


def preempt(op: events.Preempt, before: State, after: State, names: Names) -> Iterator[Call]:
    yield lambda state: steps.preempt(state, names.sessions[op.session])


def evict(op: events.Evict, before: State, after: State, names: Names) -> Iterator[Call]:
    def lost(old: Iterable[PrefixKey], new: Iterable[PrefixKey]) -> tuple[Set, int]:
        gone = {names.prefixes[key] for key in set(old) - set(new)}
        return lambda prefix: prefix in gone, len(gone)

    with_side = [
        {key for key, entry in state.store.entries.items() if entry.page in state.window_of}
        for state in (before, after)
    ]
    victims = lost(before.store.entries, after.store.entries)
    states = lost(before.store.states, after.store.states)
    yield lambda state: steps.evict(state, *victims, *lost(*with_side), *states)


def swa_evict(op: events.SwaEvict, before: State, after: State, names: Names) -> Iterator[Call]:
    assert op.obs is not None and op.obs.evicted_len is not None
    until = op.obs.evicted_len // before.config.page_size
    yield lambda state: steps.swa_evict(state, names.requests[op.req], until)


def take_state(op: events.TakeState, before: State, after: State, names: Names) -> Iterator[Call]:
    assert op.obs is not None and op.obs.state is not None
    slot = op.obs.state
    yield lambda state: steps.take_state(state, names.requests[op.req], slot)


def free_state(op: events.FreeState, before: State, after: State, names: Names) -> Iterator[Call]:
    yield lambda state: steps.free_state(state, names.requests[op.req])


CALLS: dict[type[Operation[Any]], Callable[[Any, State, State, Names], Iterator[Call]]] = {
    events.OpenSession: open_session,
    events.Submit: submit,
    events.MatchPrefix: match_prefix,
    events.Extend: extend,
    events.Decode: decode,
    events.Launch: launch,
    events.Complete: complete,
    events.CacheUnfinished: cache_unfinished,
    events.Finish: finish,
    events.Retract: retract,
    events.Abort: abort,
    events.CloseSession: close_session,
    events.Preempt: preempt,
    events.SwaEvict: swa_evict,
    events.TakeState: take_state,
    events.FreeState: free_state,
    events.Evict: evict,
}


def taken(place: Place) -> list[tuple[str, Partition, Step]]:
    """The ways that the operation went, one after another: of each the name, the state before, and the step."""
    state, ways = place.before, []
    for call in place.calls:
        going = [(way, step) for way, step in call(state).items() if all(step.guard.values())]
        assert len(going) == 1, (place.name, [(way, step.guard) for way, step in call(state).items()])
        ways.append((going[0][0], state, going[0][1]))
        state = going[0][1].after
    return ways


def corrupted(state: Partition, draw: RandomDraw) -> Partition:
    """The state with one thing changed that means something."""
    assert state.domain is not None
    name = draw.choice([name for name, is_meant in MEANT.items() if any(is_meant(state, n) for n in state.domain)])
    number = draw.choice([number for number in state.domain if MEANT[name](state, number)])
    value = getattr(state, name)(number)
    wrong = not value if isinstance(value, bool) else value + draw.choice((1, -1))
    changes: dict[str, Any] = {name: put(getattr(state, name), number, wrong)}
    return replace(state, **changes)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_of_the_model_is_the_encoded_one(seed: int) -> None:
    draw = RandomDraw(seed)
    for place in chain(places(seed), rare_places()):
        told = taken(place)[-1][2].after
        assert not differences(told, place.after), place.name
        wrong = corrupted(place.after, draw)
        assert differences(told, wrong), place.name


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_what_is_proved_of_all_states_holds_in_the_models(seed: int) -> None:
    """The invariants, and what a step owes to ACC-1 and STORE-2: each set has the size that is said of it."""
    for place in chain(places(seed), rare_places()):
        domain = place.before.domain
        assert domain is not None
        for clause in (*FOREST[:3], FOREST[-1], *INVARIANTS):
            everywhere = product(domain, repeat=clause.variables)
            assert all(clause.body(place.after, *numbers) for numbers in everywhere), (clause.what, place.name)
        for _, before, step in taken(place):
            for clause in counting(before, step):
                everywhere = product(domain, repeat=clause.variables)
                assert all(clause.body(step.after, *numbers) for numbers in everywhere), (clause.what, place.name)
            for part in [part for parts in (*step.joins.values(), *step.leaves.values()) for part in parts]:
                assert sum(map(bool, map(part.contains, domain))) == part.size, place.name


def test_walks_go_every_way() -> None:
    """Each guard is met by real states, so no proof is empty. Nothing proposes a snapshot, which moves nothing."""
    ways: set[tuple[str, str]] = set()
    gone: set[tuple[str, str]] = set()
    for place in chain(rare_places(), *map(places, range(40))):
        ways |= {(place.name, way) for call in place.calls for way in call(place.before)}
        gone |= {(place.name, way) for way, _, _ in taken(place)}
        if gone == ways and {name for name, _ in ways} == steps.OPERATIONS.keys() - {"snapshot"}:
            return
    pytest.fail(f"no walk goes {ways - gone}")


def test_every_operation_is_encoded() -> None:
    assert list(steps.OPERATIONS) == [operation.__name__ for operation in OPERATIONS.values()]


def mutant(name: str, change: Callable[[Partition, Step], Step]) -> Callable[..., Steps]:
    """An encoding with a mistake in it."""
    operation = steps.OPERATIONS[name]

    @wraps(operation)
    def changed(before: Partition, *arguments: Any, **named: Any) -> Steps:
        return {way: change(before, step) for way, step in operation(before, *arguments, **named).items()}

    return changed


def without(condition: str) -> Callable[[Partition, Step], Step]:
    def change(_: Partition, step: Step) -> Step:
        return replace(step, guard={what: holds for what, holds in step.guard.items() if what != condition})

    return change


def unaltered(function: str) -> Callable[[Partition, Step], Step]:
    return lambda before, step: replace(step, after=replace(step.after, **{function: getattr(before, function)}))


def freed_at_once(before: Partition, step: Step) -> Step:
    row = before.row(step.record)
    return replace(step, after=replace(step.after, row_kind=put(before.row_kind, row, FREE)))


MUTANTS = {
    "takes a page that is not free": ("extend", "begin", "PAGE-1", without("free pages")),
    "takes one page twice": ("decode", "", "PAGE-1", without("each page once")),
    "takes a row that is not free": ("extend", "begin", "ROW-1", without("a free row")),
    "takes a new row though it has one": ("extend", "begin", "ROW-1", without("no record")),
    "locks what has been evicted": ("extend", "begin", "STORE-2", without("what matched is cached")),
    "does not lock": ("extend", "begin", "STORE-2", unaltered("locks")),
    "leaves the tail behind": ("match_prefix", "lend", "PAGE-1", unaltered("page_kind")),
    "lends a slot twice": ("match_prefix", "lend", "ROW-1", unaltered("slot")),
    "frees the store's own pages": ("retract", "turn", "PAGE-1", without("cut behind the store's pages")),
    "publishes what is there already": ("cache_unfinished", "", "PAGE-1", without("known ones first")),
    "keeps the duplicate in its table": ("cache_unfinished", "", "PAGE-2", unaltered("table")),
    "does not unlock": ("preempt", "", "STORE-2", unaltered("locks")),
    "frees a row that is read": ("preempt", "", "RACE-1", freed_at_once),
    "does not end the lend": ("abort", "give back", "ROW-1", unaltered("slot")),
    "closes under a turn": ("close_session", "idle", "SESS-1", without("no turn in flight")),
    "evicts what is locked": ("evict", "", "STORE-2", without("unlocked ones")),
    "takes a window page that is not free": ("extend", "begin", "SWA-1", without("free window pages")),
    "takes one window page twice": ("decode", "", "SWA-1", without("each window page once")),
    "leaves the window sides of the tail behind": ("match_prefix", "lend", "SWA-1", unaltered("side")),
    "does not let go of evicted sides": ("swa_evict", "", "SWA-1", unaltered("behind")),
    "moves no cursor": ("swa_evict", "", "SWA-3", unaltered("cursor")),
    "moves the cursor back": ("swa_evict", "", "SWA-3", without("forward")),
    "cuts before the cursor": ("retract", "turn", "SWA-3", without("cut behind the cursor")),
    "keeps the sides of evicted pages": ("evict", "", "SWA-1", without("those of evicted prefixes too")),
    "frees the side that revives": ("cache_unfinished", "", "SWA-1", unaltered("side")),
    "takes a state that is not free": ("take_state", "", "MAMBA-1", without("a free state")),
    "takes a state without a match": ("take_state", "", "MAMBA-2", without("matched")),
    "takes a second state": ("take_state", "", "MAMBA-1", without("no state yet")),
    "leaves the states of a record behind": ("preempt", "", "MAMBA-1", unaltered("state_kind")),
    "leaves the state of a request behind": ("abort", "leave", "MAMBA-1", unaltered("state_kind")),
    "leaves states of evicted prefixes": ("evict", "", "MAMBA-4", without("those of evicted prefixes too")),
    "gives its state and keeps it": ("cache_unfinished", "own", "MAMBA-1", unaltered("states")),
    "publishes a state of nothing": ("cache_unfinished", "copy", "MAMBA-4", without("a prefix without a state")),
    "evicts from the middle": ("evict", "", "STORE-1", without("leaves first")),
}


@pytest.mark.parametrize("mistake", MUTANTS)
def test_a_mistake_has_a_counterexample(mistake: str) -> None:
    name, way, rule, change = MUTANTS[mistake]
    found = counterexample(mutant(name, change), way, rule)
    assert found.startswith(f"{rule}: ")
    assert "\n  before: " in found and "\n  after: " in found


def test_without_a_mistake_there_is_none() -> None:
    assert not counterexample(steps.OPERATIONS["evict"], "")


@pytest.mark.parametrize("name", ["extend", "finish", "evict"])
def test_a_proof_covers_every_rule(name: str) -> None:
    verdicts = list(prove(name, steps.OPERATIONS[name]))
    assert {verdict.outcome for verdict in verdicts} == {"proved"}
    assert {verdict.rule for verdict in verdicts} == {clause.rule for clause in INVARIANTS} | {
        rule for rule, _ in POOLS
    }


def test_the_invariants_hold_initially() -> None:
    assert {verdict.outcome for verdict in prove_initial()} == {"proved"}


def test_a_mistake_is_refuted_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvconform.proving.partition.SECONDS", 1)
    verdicts = prove("evict", mutant("evict", without("unlocked ones")))
    assert {verdict.rule: verdict.outcome for verdict in verdicts if verdict.outcome != "proved"} == {
        "STORE-2": "refuted"
    }
