"""Answers to try on the model in a given state: the right one changed in every way that somebody could get it wrong.

Each comes with a few words that say what was changed. There is no chance in here: the same state gives the same tries
in the same order.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from kvconform.protocol import ANSWERS
from kvspec import events
from kvspec.events import Answer, Event, Figures, HolderView, Operation, Refused, SnapshotAnswer
from kvspec.lengths import held_tokens
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, compress, expand

T = TypeVar("T")
Change = tuple[str, T]
"""What was changed, and the outcome."""

STRANGER = "stranger"
"""A request or a session that nobody has heard of."""


def strange_pages(state: State) -> Iterator[Change[int]]:
    """A page of every kind there is, and some that there are not."""
    yield "page 0", 0
    yield "a page past the pool", state.config.num_pages + 1
    yield "a negative page", -99
    kinds: dict[str, int] = {}
    for page in range(1, state.config.num_pages + 1):
        kinds.setdefault(_kind(state, page), page)
    yield from kinds.items()


def _kind(state: State, page: int) -> str:
    owner = state.owner.get(page)
    if owner is None:
        return "a free page"
    if isinstance(owner, bytes):
        if owner in state.store.pins:
            return "a locked page"
        return "a page below a cached one" if state.store.children.get(owner) else "a cached page"
    index = state.tables[owner].index(page)
    committed = index * state.config.page_size < state.lengths[owner].committed
    whose = "a request" if any(owner == request.record for request in state.requests.values()) else "a slot"
    return f"a page of {whose}, {'committed' if committed else 'past what is committed'}"


def pages(state: State, right: Runs) -> Iterator[Change[Runs]]:
    """Changes of a list of pages."""
    numbers = expand(right)
    if numbers:
        yield "no pages", []
        yield "the first page twice", [*numbers, numbers[0]]
        yield "as runs", compress(numbers)
    if len(numbers) > 1:
        yield "the last page missing", numbers[:-1]
        yield "the first page twice, the last missing", [numbers[0], *numbers[:-1]]
        yield "the first page missing", numbers[1:]
        yield "backwards", numbers[::-1]
    for kind, page in strange_pages(state):
        if page not in numbers:
            yield f"{kind} as well", [*numbers, page]
            if numbers:
                yield f"{kind} in place of the last", [*numbers[:-1], page]


def given_pages(state: State, right: dict[str, Runs], names: list[str]) -> Iterator[Change[dict[str, Runs]]]:
    """Changes of the pages that the requests of a batch were given."""
    for name in names:
        for change, wrong in pages(state, right.get(name, ())):
            yield f"pages of {name}: {change}", {**right, name: wrong}
        if name in right:
            yield f"pages of {name}: not told", {other: kept for other, kept in right.items() if other != name}
    if len(right) > 1:
        one, other, *_ = right
        yield "pages of two requests: swapped", {**right, one: right[other], other: right[one]}
        yield "pages of two requests: the same", {**right, other: right[one]}
    yield "pages of a stranger: none", {**right, STRANGER: []}
    yield "pages of a stranger: one", {**right, STRANGER: [next(_free_pages(state), 1)]}
    yield "pages of a stranger: a run", {**right, STRANGER: [(next(_free_pages(state), 1), 2)]}


def _free_pages(state: State) -> Iterator[int]:
    return (page for page in range(1, state.config.num_pages + 1) if page not in state.owner)


def given_rows(state: State, right: dict[str, int]) -> Iterator[Change[dict[str, int]]]:
    """Changes of the rows that the requests of a batch were given."""
    kinds = {"a negative row": -1, "a row past the last": state.config.num_rows}
    for row in range(state.config.num_rows):
        kinds.setdefault(_row_kind(state, row), row)
        if row not in state.rows and row not in right.values():
            kinds.setdefault("another free row", row)
    for name, row in right.items():
        yield f"row of {name}: not told", {other: kept for other, kept in right.items() if other != name}
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
    told = {name: value for name, value in asdict(right).items() if value is not None}
    page = state.config.page_size
    for name, value in told.items():
        yield f"{name} not told", replace(right, **{name: None})
        yield f"{name} one more", replace(right, **{name: value + 1})
        yield f"{name} one less", replace(right, **{name: value - 1})
    lent = [request.record for request in state.requests.values() if request.resumed and request.record is not None]
    held = sum(held_tokens(state.lengths[record], page) for record in lent)
    withheld = told["rows_withheld"]
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
    for mistake, shifts in mistakes.items():
        if not any(shifts.values()):
            continue
        wrong = replace(right, **{name: told[name] + shift for name, shift in shifts.items()})
        yield mistake, wrong
        for name in told:
            yield f"{mistake}; {name} not told", replace(wrong, **{name: None})


def snapshots(state: State, right: SnapshotAnswer) -> Iterator[Change[SnapshotAnswer]]:
    """Snapshots with one thing wrong."""
    for name in SnapshotAnswer.__struct_fields__:
        yield f"{name} not told", replace(right, **{name: None})
    for kind, told, others in (
        ("requests", right.requests or {}, state.requests.keys() - (right.requests or {}).keys()),
        ("sessions", right.sessions or {}, state.sessions.keys() - (right.sessions or {}).keys()),
    ):
        for name, view in told.items():
            for change, wrong in _views(state, view):
                yield f"{kind}, {name}: {change}", replace(right, **{kind: {**told, name: wrong}})
            yield (
                f"{kind}, {name}: not there",
                replace(right, **{kind: {other: kept for other, kept in told.items() if other != name}}),
            )
        for name in [*sorted(others), STRANGER]:
            yield f"{kind}, {name}: there", replace(right, **{kind: {**told, name: HolderView(0, 0, 1, 1)}})
    for change, rows in _rows(state, right.rows or {}):
        yield f"rows, {change}", replace(right, rows=rows)
    for kind, runs in (("free_pages", right.free_pages or []), ("store_pages", right.store_pages or [])):
        for change, wrong_runs in pages(state, runs):
            yield f"{kind}: {change}", replace(right, **{kind: wrong_runs})


def _views(state: State, view: HolderView) -> Iterator[Change[HolderView]]:
    yield "another row", replace(view, row=view.row + 1)
    for name in ("protected_len", "committed_len", "allocated_len"):
        length = getattr(view, name)
        for change, shift in (("one more", 1), ("one less", -1), ("a page more", state.config.page_size)):
            yield f"{name} {change}", replace(view, **{name: length + shift})


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
        yield "nothing told", ANSWERS[type(op)]()
    match right:
        case events.Figures():
            yield from figures(state, right)
        case SnapshotAnswer():
            yield from snapshots(state, right)
        case events.ExtendAnswer() | events.DecodeAnswer():
            if isinstance(right, events.ExtendAnswer):
                yield "rows not told", replace(right, rows=None)
                for change, rows in given_rows(state, right.rows or {}):
                    yield change, replace(right, rows=rows)
            yield "pages not told", replace(right, pages=None)
            names = list(dict(op.reqs)) if isinstance(op, events.Extend) else list(getattr(op, "reqs", ()))
            for change, given in given_pages(state, right.pages or {}, names):
                yield change, replace(right, pages=given)
        case events.EvictAnswer():
            for change, runs in pages(state, right.evicted):
                yield f"evicted: {change}", replace(right, evicted=runs)
        case events.MatchAnswer() | events.PublishAnswer() | events.ReleaseAnswer():
            for name in right.__struct_fields__:
                yield f"{name} not told", replace(right, **{name: None})
                value = getattr(right, name)
                if isinstance(value, int):
                    for change, shift in (("one more", 1), ("one less", -1), ("a page more", state.config.page_size)):
                        yield f"{name} {change}", replace(right, **{name: value + shift})
            for change, runs in pages(state, right.freed or ()):
                yield f"freed: {change}", replace(right, freed=runs)


def refusals(due: Refused) -> Iterator[Change[Refused]]:
    """Ways to refuse what must be refused, with the right amounts and with wrong ones."""
    if due.rule != "CAP-1":
        yield "for another rule, a page and a row short", Refused("", "CAP-1", 1, 1)
        return
    yield "as it should be", due
    yield "without a reason", Refused()
    yield "for another rule", replace(due, rule="OP-1")
    for name in ("pages_short", "rows_short"):
        for change, shift in (("one more", 1), ("one less", -1)):
            yield f"{name} {change}", replace(due, **{name: getattr(due, name) + shift})
        yield f"{name} not told", replace(due, **{name: 0})


UNDUE = {
    "refused, without a reason": Refused(),
    "refused, for CAP-1": Refused("no", "CAP-1"),
    "refused, a page short": Refused("no", pages_short=1),
    "refused, a row short": Refused("no", rows_short=1),
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
    everybody = list(state.requests)
    if everybody:
        yield events.Submit(everybody[0], [1])
        yield events.Decode(everybody)
        yield events.Decode([everybody[0]] * 2)
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
    step = state.speculating.get(req)
    positions = 1 if step is None else step.positions
    for accepted, kept in ((0, 0), (1, 1), (1, 0), (1, 2), (positions, positions), (positions, 1), (positions + 1, 1)):
        yield events.Verify(req, accepted, [3] * kept)
    yield events.Launch(97, [req])
    yield events.CacheUnfinished(req, chunked=True)
    yield events.CacheUnfinished(req, chunked=False)
    yield events.Finish(req)
    yield events.Retract(req)
    yield events.Abort(req)
