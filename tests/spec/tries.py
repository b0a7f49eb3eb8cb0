"""Answers to try on the model in a given state: the right one changed in every way in which it could be wrong.

Each comes with a few words that say what was changed. There is no chance in here: the same state gives the same tries
in the same order.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import asdict, replace

from kvconform.protocol import ANSWERS
from kvspec import events
from kvspec.events import (
    Answer,
    Event,
    Figures,
    HolderView,
    MatchAnswer,
    Operation,
    PublishAnswer,
    Refused,
    ReleaseAnswer,
    SnapshotAnswer,
)
from kvspec.lengths import held_tokens
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, compress, expand

T = TypeVar("T")
Change = tuple[str, T]
"""The change, and the outcome."""

STRANGER = "stranger"
"""A request or a session that is unknown."""


class Pool(NamedTuple):
    """One of the pools whose numbers are reported."""

    thing: str
    size: int
    kind: Callable[[State, int], str]
    """The name of one of its numbers, in words."""


def _pages(state: State) -> Pool:
    return Pool("page", state.config.num_pages, _page_kind)


def _window_pages(state: State) -> Pool:
    return Pool("window page", state.config.num_window_pages, _window_page_kind)


def _states(state: State) -> Pool:
    return Pool("state slot", state.config.num_states, _state_kind)


POOLS = {
    "freed": _pages,
    "evicted": _pages,
    "pages": _pages,
    "free_pages": _pages,
    "store_pages": _pages,
    "window_freed": _window_pages,
    "window_evicted": _window_pages,
    "window_pages": _window_pages,
    "states_freed": _states,
    "states_evicted": _states,
    "states": _states,
    "free_states": _states,
    "store_states": _states,
}
"""Parts of answers that are numbers of a pool, or lists of them for each request."""


def strange(state: State, pool: Pool) -> Iterator[Change[int]]:
    """A number of every kind there is in a pool, and some that there are not."""
    yield f"{pool.thing} 0", 0
    yield f"a {pool.thing} past the pool", pool.size + 1
    yield f"a negative {pool.thing}", -99
    kinds: dict[str, int] = {}
    for number in range(1, pool.size + 1):
        kinds.setdefault(pool.kind(state, number), number)
    yield from kinds.items()


def _page_kind(state: State, page: int) -> str:
    owner = state.owner.get(page)
    if owner is None:
        return "a free page"
    if isinstance(owner, bytes):
        if page in state.store.pins:
            return "a locked page"
        return "a page below a cached one" if state.store.children.get(owner, 1) else "a cached page"
    index = state.tables[owner].index(page)
    committed = index * state.config.page_size < state.lengths[owner].committed
    return f"a page of {_holder_kind(state, owner)}, {'committed' if committed else 'past what is committed'}"


def _holder_kind(state: State, record: int) -> str:
    return "a request" if any(record == request.record for request in state.requests.values()) else "a slot"


def _window_page_kind(state: State, window_page: int) -> str:
    page = state.window_owner.get(window_page)
    if page is None:
        return "a free window page"
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return "a locked window page" if page in state.store.window_pins else "a cached window page"
    return f"a window page of {_holder_kind(state, owner)}"


def _state_kind(state: State, slot: int) -> str:
    owner = state.state_owner.get(slot)
    if owner is None:
        return "a free state slot"
    if isinstance(owner, bytes):
        return "a locked state slot" if state.store.pages[owner] in state.store.state_pins else "a cached state slot"
    return "a state slot without a row" if isinstance(owner, str) else f"a state slot of {_holder_kind(state, owner)}"


def listed(state: State, name: str, right: Runs) -> Iterator[Change[Runs]]:
    """Changes of a list of numbers, reported as `name`."""
    pool, numbers = POOLS[name](state), expand(right)
    thing = pool.thing
    if numbers:
        yield f"no {thing}s", []
        yield f"the first {thing} twice", [*numbers, numbers[0]]
        yield "as runs", compress(numbers)
    if len(numbers) > 1:
        yield f"the last {thing} missing", numbers[:-1]
        yield f"the first {thing} twice, the last missing", [numbers[0], *numbers[:-1]]
        yield f"the first {thing} missing", numbers[1:]
        yield "backwards", numbers[::-1]
    for kind, number in strange(state, pool):
        if number not in numbers:
            yield f"{kind} as well", [*numbers, number]
            if numbers:
                yield f"{kind} in place of the last", [*numbers[:-1], number]


def given(state: State, part: str, right: dict[str, Runs], names: list[str]) -> Iterator[Change[dict[str, Runs]]]:
    """Changes of the pages, window pages or state slots that the requests of a batch were given."""
    pool = POOLS[part](state)
    free = next((number for number in range(1, pool.size + 1) if pool.kind(state, number) == f"a free {pool.thing}"), 1)
    things = f"{pool.thing}s"
    for name in names:
        for change, wrong in listed(state, part, right.get(name, ())):
            yield f"{things} of {name}: {change}", {**right, name: wrong}
        if name in right:
            yield f"{things} of {name}: not reported", {other: kept for other, kept in right.items() if other != name}
    if len(right) > 1:
        one, other, *_ = right
        yield f"{things} of two requests: swapped", {**right, one: right[other], other: right[one]}
        yield f"{things} of two requests: the same", {**right, other: right[one]}
    yield f"{things} of a stranger: none", {**right, STRANGER: []}
    yield f"{things} of a stranger: one", {**right, STRANGER: [free]}
    yield f"{things} of a stranger: a run", {**right, STRANGER: [(free, 2)]}


def given_rows(state: State, right: dict[str, int]) -> Iterator[Change[dict[str, int]]]:
    """Changes of the rows that the requests of a batch were given."""
    kinds = {"a negative row": -1, "a row past the last": state.config.num_rows}
    for row in range(state.config.num_rows):
        kinds.setdefault(_row_kind(state, row), row)
        if row not in state.rows and row not in right.values():
            kinds.setdefault("another free row", row)
    for name, row in right.items():
        yield f"row of {name}: not reported", {other: kept for other, kept in right.items() if other != name}
        for kind, wrong in kinds.items():
            if wrong != row:
                yield f"row of {name}: {kind}", {**right, name: wrong}
    if len(right) > 1:
        one, other, *_ = right
        yield "rows of two requests: swapped", {**right, one: right[other], other: right[one]}
        yield "rows of two requests: the same", {**right, other: right[one]}
    yield "row of a stranger", {**right, STRANGER: 0}


def _row_kind(state: State, row: int) -> str:
    record = state.rows.get(row)
    if record is None:
        return "a free row"
    if record == WITHHELD:
        return "a withheld row"
    of_a_request = any(record == request.record for request in state.requests.values())
    return "a row of a request" if of_a_request else "a row of a slot"


def figures(state: State, right: Figures) -> Iterator[Change[Figures]]:
    """Figures off by a little, and what typical mistakes make of them: each with and without its neighbours."""
    reported = {name: value for name, value in asdict(right).items() if value is not None}
    page = state.config.page_size
    for name, value in reported.items():
        yield f"{name} not reported", replace(right, **{name: None})
        yield f"{name} one more", replace(right, **{name: value + 1})
        yield f"{name} one less", replace(right, **{name: value - 1})
    lent = [request.record for request in state.requests.values() if request.resumed and request.record is not None]
    held = sum(held_tokens(state.lengths[record], page) for record in lent)
    withheld = reported["rows_withheld"]
    mistakes: dict[str, dict[str, int]] = {
        "withheld rows counted as free": {"rows_withheld": -withheld, "rows_available": withheld},
        "one row too many free and one too few withheld": {"rows_withheld": -1, "rows_available": 1},
        "one row too few free and one too many withheld": {"rows_withheld": 1, "rows_available": -1},
        "two rows free too many, one withheld too few": {"rows_withheld": -1, "rows_available": 2},
        "a page unlocked too early": {"protected": -page, "evictable": page},
        "a page locked too long": {"protected": page, "evictable": -page},
        "two pages evictable too many, one locked too few": {"protected": -page, "evictable": 2 * page},
        "what is lent counted twice": {"session_held": held},
        "what is lent counted with its slot": {"session_held": held, "uncached": -held},
        "what is lent counted twice, and its rows": {"session_held": held, "rows_sessions": len(lent)},
        "what is lent moved to its slot, and its rows": {
            "session_held": held,
            "uncached": -held,
            "rows_sessions": len(lent),
            "rows_requests": -len(lent),
        },
        "a page of a slot too many": {"session_held": page},
        "a row of a slot too many": {"rows_sessions": 1},
        "a page and a row of a slot too many": {"session_held": page, "rows_sessions": 1},
    }
    yield from _mistaken(right, reported, mistakes)
    if state.config.sliding_window:
        yield from _mistaken(right, reported, _pool_mistakes("window", page), "window_")
    if state.config.num_states:
        yield from _mistaken(right, reported, _pool_mistakes("states", 1), "states_")


def _pool_mistakes(pool: str, unit: int) -> dict[str, dict[str, int]]:
    """The mistakes of a hybrid pool's figures, which are reported in units of so many."""
    protected, evictable = f"{pool}_protected", f"{pool}_evictable"
    return {
        f"{pool}: unlocked too early": {protected: -unit, evictable: unit},
        f"{pool}: locked too long": {protected: unit, evictable: -unit},
        f"{pool}: two evictable too many, one locked too few": {protected: -unit, evictable: 2 * unit},
    }


def _mistaken(
    right: Figures, reported: dict[str, int], mistakes: dict[str, dict[str, int]], pool: str = ""
) -> Iterator[Change[Figures]]:
    """The figures of a pool with each of `mistakes`: all of them reported, and all but one."""
    of_pool = [
        name for name in reported if (name.startswith(pool) if pool else not name.startswith(("window_", "states_")))
    ]
    for mistake, shifts in mistakes.items():
        if not any(shifts.values()):
            continue
        wrong = replace(right, **{name: reported[name] + shift for name, shift in shifts.items()})
        yield mistake, wrong
        for name in of_pool:
            yield f"{mistake}; {name} not reported", replace(wrong, **{name: None})


def snapshots(state: State, right: SnapshotAnswer) -> Iterator[Change[SnapshotAnswer]]:
    """Snapshots with one thing wrong."""
    for name in SnapshotAnswer.__struct_fields__:
        yield f"{name} not reported", replace(right, **{name: None})
    for kind, reported, others in (
        ("requests", right.requests or {}, state.requests.keys() - (right.requests or {}).keys()),
        ("sessions", right.sessions or {}, state.sessions.keys() - (right.sessions or {}).keys()),
    ):
        for name, view in reported.items():
            for change, wrong in _views(state, view):
                yield f"{kind}, {name}: {change}", replace(right, **{kind: {**reported, name: wrong}})
            yield (
                f"{kind}, {name}: not there",
                replace(right, **{kind: {other: kept for other, kept in reported.items() if other != name}}),
            )
        for name in [*sorted(others), STRANGER]:
            yield f"{kind}, {name}: there", replace(right, **{kind: {**reported, name: HolderView(0, 0, 1, 1)}})
    for change, rows in _rows(state, right.rows or {}):
        yield f"rows, {change}", replace(right, rows=rows)
    for kind in ("locks", "window_locks", "state_locks"):
        locks = getattr(right, kind)
        for change, wrong_locks in _locks(locks) if locks is not None else ():
            yield f"{kind}: {change}", replace(right, **{kind: wrong_locks})
    for kind in ("free_rows", "withheld_rows"):
        for change, wrong_rows in _loose_rows(state, expand(getattr(right, kind) or ())):
            yield f"{kind}: {change}", replace(right, **{kind: wrong_rows})
    for kind in ("free_pages", "store_pages", "free_states", "store_states"):
        runs = getattr(right, kind)
        if runs is not None:
            for change, wrong_runs in listed(state, kind, runs):
                yield f"{kind}: {change}", replace(right, **{kind: wrong_runs})
    if right.window_sides is not None:
        for change, sides in _sides(state, right.window_sides):
            yield f"window_sides: {change}", replace(right, window_sides=sides)


def _locks(right: dict[int, int]) -> Iterator[Change[dict[int, int]]]:
    """Changes of how many holders have locked what."""
    for number, count in list(right.items())[:: max(1, len(right) - 1)]:
        yield "one more", {**right, number: count + 1}
        yield "one less", {**right, number: count - 1}
        yield "none", {other: kept for other, kept in right.items() if other != number}
        yield "on the next one", {other + (other == number): kept for other, kept in right.items()}
    yield "on one that is not locked", {**right, max(right, default=0) + 1: 1}


def _loose_rows(state: State, right: list[int]) -> Iterator[Change[Runs]]:
    """Changes of rows without a holder."""
    if right:
        yield "none", []
        yield "the first missing", right[1:]
        yield "the first twice", [*right, right[0]]
        yield "backwards", right[::-1]
    kinds = {"a negative row": -1, "a row past the last": state.config.num_rows}
    for row in range(state.config.num_rows):
        kinds.setdefault(_row_kind(state, row), row)
    for kind, row in kinds.items():
        if row not in right:
            yield f"{kind} as well", [*right, row]


def _roles(state: State, view: HolderView) -> Iterator[Change[HolderView]]:
    """Changes of what a holder's state slots are used for."""
    if view.computing is not None:
        yield "computing not reported", replace(view, computing=None)
        for kind, slot in strange(state, _states(state)):
            if slot != view.computing:
                yield f"computing in {kind}", replace(view, computing=slot)
    tracking = view.tracking or {}
    if tracking:
        yield "tracking not reported", replace(view, tracking=None)
    for border, slot in tracking.items():
        if border < (view.protected_len or 0):
            continue  # no request goes back there
        others = {other: kept for other, kept in tracking.items() if other != border}
        yield "a border not kept", replace(view, tracking=others)
        yield "a border a token later", replace(view, tracking={**tracking, border + 1: slot})
        yield "a border in the slot that computes", replace(view, tracking={**tracking, border: view.computing or 0})


def _views(state: State, view: HolderView) -> Iterator[Change[HolderView]]:
    yield "another row", replace(view, row=(view.row or 0) + 1)
    for name in ("row", "protected_len", "committed_len", "allocated_len"):
        yield f"{name} not reported", replace(view, **{name: None})
    for name in ("protected_len", "committed_len", "allocated_len", "swa_evicted_len"):
        length = getattr(view, name)
        if length is not None:
            for change, wrong in _lengths(state, length):
                if wrong >= 0:
                    yield f"{name} {change}", replace(view, **{name: wrong})
    if view.swa_evicted_len is not None:
        yield "swa_evicted_len not reported", replace(view, swa_evicted_len=None)
    if view.states is not None:
        yield "states not reported", replace(view, states=None)
        for change, slots in listed(state, "states", view.states):
            yield f"states: {change}", replace(view, states=slots)
    yield from _roles(state, view)


def _lengths(state: State, right: int) -> Iterator[Change[int]]:
    page_size = state.config.page_size
    for change, shift in (("one more", 1), ("one less", -1), ("a page more", page_size), ("a page less", -page_size)):
        yield change, right + shift


def _sides(state: State, right: dict[int, int]) -> Iterator[Change[dict[int, int]]]:
    """Changes of which window page is behind which page."""
    for page, side in list(right.items())[:: max(1, len(right) - 1)]:
        yield "one missing", {other: kept for other, kept in right.items() if other != page}
        yield "the next one", {**right, page: side + 1}
    if len(right) > 1:
        one, other, *_ = right
        yield "two swapped", {**right, one: right[other], other: right[one]}
        yield "one behind two pages", {**right, one: right[other]}
    yield "behind a page that has none", {**right, max(right, default=0) + 1: 1}


def _rows(state: State, right: dict[int, Runs]) -> Iterator[Change[dict[int, Runs]]]:
    page_size = state.config.page_size
    for row, runs in right.items():
        slots = expand(runs)
        yield f"row {row}: not there", {other: kept for other, kept in right.items() if other != row}
        yield f"row {row}: a slot less", {**right, row: slots[:-1]}
        yield f"row {row}: a page less", {**right, row: slots[:-page_size]}
        yield f"row {row}: a slot more", {**right, row: [*slots, slots[-1] + 1]}
        yield f"row {row}: a page more", {**right, row: [*slots, *range(1, page_size + 1)]}
        for name, position in (("first", 0), ("middle", len(slots) // 2), ("last", len(slots) - 1)):
            for change, slot in (("the next slot", slots[position] + 1), ("slot 0", 0), ("slot -1", -1)):
                yield (
                    f"row {row}: {change} at its {name} position",
                    {**right, row: [*slots[:position], slot, *slots[position + 1 :]]},
                )
    yield "a row that is not held: there", {**right, state.config.num_rows: [page_size]}
    yield "row -1: there", {**right, -1: [page_size]}


def answers(state: State, op: Operation[Any]) -> Iterator[Change[Answer]]:
    """The answer of `op` changed; `op` has the right one."""
    right = op.obs
    if not isinstance(right, events.EvictAnswer):
        yield "nothing reported", ANSWERS[type(op)]()
    match right:
        case events.Figures():
            yield from figures(state, right)
        case SnapshotAnswer():
            yield from snapshots(state, right)
        case events.ExtendAnswer() | events.DecodeAnswer():
            yield from _new(state, op, right)
        case events.CompleteAnswer() if isinstance(op, events.Complete):
            yield from _sampled(op)
        case None | events.Done():
            pass
        case _:
            yield from _parts(state, right)
            if isinstance(right, events.EvictAnswer):
                yield from _evicted(state, right)
            if isinstance(right, MatchAnswer | PublishAnswer | ReleaseAnswer):
                yield from _exchanged(state, right)
            if isinstance(right, PublishAnswer | ReleaseAnswer):
                yield from _published(state, op, right)


def _sampled(op: events.Complete) -> Iterator[Change[Answer]]:
    """Tokens that the engine says it has sampled itself."""
    yield "tokens of its own: as they were handed in", events.CompleteAnswer(dict(op.tokens))
    yield "tokens of its own: others", events.CompleteAnswer({req: token + 1 for req, token in op.tokens.items()})
    yield "a token for a stranger", events.CompleteAnswer({**op.tokens, STRANGER: 1})
    if op.tokens:
        yield "a token too few", events.CompleteAnswer(dict(list(op.tokens.items())[1:]))


def _new(
    state: State, op: Operation[Any], right: events.ExtendAnswer | events.DecodeAnswer
) -> Iterator[Change[Answer]]:
    """Changes of what the requests of a batch were given."""
    if isinstance(right, events.ExtendAnswer):
        yield "rows not reported", replace(right, rows=None)
        for change, rows in given_rows(state, right.rows or {}):
            yield change, replace(right, rows=rows)
    names = list(dict(op.reqs)) if isinstance(op, events.Extend) else list(getattr(op, "reqs", ()))
    for part in ("pages", "window_pages", "states"):
        reported = getattr(right, part, None)
        if reported is not None:
            yield f"{part} not reported", replace(right, **{part: None})
            for change, wrong in given(state, part, reported, names):
                yield change, replace(right, **{part: wrong})


def _parts(state: State, right: Any) -> Iterator[Change[Answer]]:
    """Changes of one part of an answer: a length, a state slot, or numbers that went back."""
    for name in right.__struct_fields__:
        value = getattr(right, name)
        if name in POOLS:
            if not POOLS[name](state).size:
                continue
            for change, numbers in listed(state, name, value or ()):
                yield f"{name}: {change}", replace(right, **{name: numbers})
        elif name.startswith("state"):
            for kind, slot in strange(state, _states(state)) if state.config.num_states else ():
                if slot != value:
                    yield f"{name}: {kind}", replace(right, **{name: slot})
        elif value is not None:
            for change, length in _lengths(state, value):
                yield f"{name} {change}", replace(right, **{name: length})
        if value is not None and name != "evicted":
            yield f"{name} not reported", replace(right, **{name: None})


def _evicted(state: State, right: events.EvictAnswer) -> Iterator[Change[Answer]]:
    """Other pages evicted, and what goes with them not reported."""
    if state.config.hybrid:
        for change, numbers in listed(state, "evicted", right.evicted):
            yield f"evicted: {change}; what goes with them not reported", events.EvictAnswer(numbers)


def _exchanged(state: State, right: MatchAnswer | PublishAnswer | ReleaseAnswer) -> Iterator[Change[Answer]]:
    """A tombstone revived the other way round: the store takes the holder's page, and frees its own."""
    freed, sides = expand(right.freed or ()), set(expand(right.window_freed or ()))
    for page in freed:
        record = state.owner.get(page)
        if state.window_of.get(page, 0) in sides | {0} or not isinstance(record, int):
            continue
        (tokens,) = (request.tokens for request in state.requests.values() if request.record == record)
        tombstone = state.store.pages[tokens.key(state.tables[record].index(page))]
        others = [other for other in freed if other != page]
        yield "the tombstone freed in place of the page that revives it", replace(right, freed=[*others, tombstone])
        yield "neither the tombstone freed nor the page that revives it", replace(right, freed=others)
        yield "the tombstone freed besides the page that revives it", replace(right, freed=[*freed, tombstone])


def _published(state: State, op: Any, right: PublishAnswer | ReleaseAnswer) -> Iterator[Change[Answer]]:
    """The store takes another of the holder's state slots, or the holder's where the right answer is a copy."""
    request = state.requests.get(getattr(op, "req", ""))
    record = None if request is None else request.record
    for number, slot in enumerate(() if record is None else state.records[record].states, 1):
        if isinstance(right, ReleaseAnswer):
            others = [other for other in (*expand(right.states_freed or ()), right.state_cached) if other != slot]
            yield (
                f"state slot number {number} of its own for the store",
                replace(right, state_cached=slot, states_freed=[other for other in others if other is not None]),
            )
        else:
            yield f"state slot number {number} of its own for the store", replace(right, state_cached=slot)
    if isinstance(right, PublishAnswer) and record is not None:
        for kind, slot in strange(state, _states(state)) if state.config.num_states else ():
            yield f"a copy in {kind}", replace(right, state_cached=slot, state_taken=slot)
        if right.state_cached is not None:
            yield "no state for the store", replace(right, state_cached=None, state_taken=None)


def refusals(due: Refused) -> Iterator[Change[Refused]]:
    """Ways to refuse what must be refused, with the right amounts and with wrong ones."""
    if due.rule != "CAP-1":
        yield "for another rule, a page and a row short", Refused("", "CAP-1", 1, 1)
        return
    yield "as it should be", due
    yield "without a reason", Refused()
    yield "for another rule", replace(due, rule="OP-1")
    for name in ("pages_short", "rows_short", "window_short", "states_short"):
        for change, shift in (("one more", 1), ("one less", -1)):
            yield f"{name} {change}", replace(due, **{name: getattr(due, name) + shift})
        yield f"{name} not reported", replace(due, **{name: 0})


UNDUE = {
    "refused, without a reason": Refused(),
    "refused, for CAP-1": Refused("no", "CAP-1"),
    "refused, a page short": Refused("no", pages_short=1),
    "refused, a row short": Refused("no", rows_short=1),
    "refused, a window page short": Refused("no", window_short=1),
    "refused, a state slot short": Refused("no", states_short=1),
}
"""Ways to refuse what must not be refused."""


def operations(state: State) -> Iterator[Event]:
    """Operations of every kind on whatever there is and is not: most of them must be refused."""
    size, most = state.config.page_size, state.config.max_context_len
    for session in [*state.sessions, STRANGER]:
        yield events.OpenSession(session)
        yield events.CloseSession(session)
        yield events.Preempt(session)
        known = state.sessions.get(session)
        history = [] if known is None else known.history.elements()
        yield events.Submit("new", [*history, 7], session)
        if history:
            yield events.Submit("new", history, session)
            yield events.Submit("new", history[:-1], session)
            yield events.Submit("new", [*history[:-1], -5, 7], session)
    yield events.Submit("new", [])
    yield events.Submit("new", [1] * most)
    yield events.Submit("new", [1] * (most + 1))
    yield events.Submit("new", ["page", 1])
    yield events.Submit("new", [1, *["page"] * 2])
    for req in [*state.requests, STRANGER]:
        yield from _on_one(state, req)
    all_running = list(state.requests)
    if all_running:
        yield events.Submit(all_running[0], [1])
        yield events.Decode(all_running)
        yield events.Decode([all_running[0]] * 2)
        yield events.Launch(98, [*state.prepared] * 2)
    yield events.Launch(98, list(state.prepared))
    ready = {
        req: request
        for req, request in state.requests.items()
        if (req in state.mid_prefill and req not in state.prepared) or request.prefix_len is not None
    }
    whole = [(req, len(request.tokens)) for req, request in ready.items()]
    yield events.Extend(whole)
    yield events.Extend(whole[:1] * 2)
    yield events.Extend([(req, length - 1) for req, length in whole])
    yield events.Extend([(req, length - (index > 0)) for index, (req, length) in enumerate(whole)])
    for number, passages in state.flights.items():
        due = {passage.req: 5 for passage in passages if passage.samples}
        yield events.Complete(number, due)
        yield events.Complete(number)
        yield events.Complete(number, {**due, STRANGER: 5})
        yield events.Complete(number, {passage.req: 5 for passage in passages})
        yield events.Launch(number, list(state.prepared))
    yield events.Complete(99)
    yield from (events.Decode([]), events.Evict(0), events.Evict(1), events.Evict(2), events.Evict(size * 1000))
    for n, window, states in (
        (0, 1, 0),
        (0, 99, 0),
        (1, 1, 0),
        (0, 0, 1),
        (0, 0, 99),
        (1, 0, 1),
        (1, -1, 1),
        (-1, 2, 0),
    ):
        yield events.Evict(n, window, states)
    yield events.Evict(2, 0, -1)
    yield from (events.Report("idle"), events.Report("busy"), events.Snapshot())


def _on_one(state: State, req: str) -> Iterator[Event]:
    request = state.requests.get(req)
    length = 1 if request is None else len(request.tokens)
    start = 0 if request is None else request.seq_len if request.running else request.prefix_len or 0
    yield events.MatchPrefix(req)
    for seq_len in sorted({start, start + 1, length - 1, length, length + 1}):
        yield events.Extend([(req, seq_len)])
    for n in (0, 1, 2, 3 * state.config.page_size, state.config.max_context_len):
        yield events.Decode([req], n)
    step = next(iter(state.speculating.get(req, ())), None)
    positions = 1 if step is None else step.positions
    for accepted, kept in ((0, 0), (1, 1), (1, 0), (1, 2), (positions, positions), (positions, 1), (positions + 1, 1)):
        yield events.Verify(req, accepted, [3] * kept)
    yield events.Launch(97, [req])
    yield events.CacheUnfinished(req, chunked=True)
    yield events.CacheUnfinished(req, chunked=False)
    yield events.Finish(req)
    yield events.Retract(req)
    yield events.Abort(req)
    yield events.SwaEvict(req)
    yield events.TakeState(req)
    yield events.FreeState(req)
