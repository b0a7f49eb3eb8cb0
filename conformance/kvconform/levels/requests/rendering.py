"""Request-level traces and findings, told: what is needed of the model is asked here, and nowhere later.

A `Teller` goes along with a trace and keeps the moments that are wanted, with all pools as the model has them.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvconform.errors import NodeFault
from kvconform.findings.finding import (
    FREE,
    POOLS,
    Cell,
    Finding,
    Moment,
    Place,
    Reference,
    Rule,
    Trace,
    by_number,
    ranks,
    spans,
)
from kvconform.findings.wording import origin
from kvconform.levels.requests.description import known, ledger, memory_in_words, part_of, sentence
from kvconform.levels.requests.minimise import Shortest
from kvconform.levels.requests.recovery import Mending
from kvconform.oracle import Model, owner_name, record_name
from kvconform.oracle.holders import held
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.vectors.runner import ExpectationFailed, Failure, names_in
from kvspec.events import Config, Held, Operation, Refusal, SnapshotAnswer
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, ceil_pages, count, expand
from kvspec.rules import Violation
from kvtrace.operations import with_pages

KEPT = 200
"""Events of a long trace that are told: the last before the finding."""
DRAWN = 64
"""Parts of a pool that are drawn at most."""
EXPLAINED = 500
"""Of a longer trace it is not told what the model knows since when."""
_WRITTEN_OUT = 160
"""Numbers of a list that are written out; more stay the runs as which they were told."""
_LOOKED_AT = 10_000
"""Numbers of a list that are looked at one by one."""
_FRAMES = 5
"""Frames of the implementation that are told, the innermost ones."""

TOLD = {
    "pages": ("pages", "freed", "evicted"),
    "window pages": ("window_pages", "window_freed", "window_evicted"),
    "state slots": ("states", "states_freed", "states_evicted", "state", "state_cached", "state_taken"),
    "rows": ("rows",),
}
"""The parts of answers that name something of a pool."""
BLAMED = {"SWA": "window pages", "MAMBA": "state slots"}
"""Which pool the numbers are of that a rule of this name disputes; of any other it is the pages."""

Cells = dict[str, dict[int, Cell]]


class Seen(NamedTuple):
    """A moment, with all that is in use or named."""

    moment: Moment
    cells: Cells


Chosen = Callable[[int, Operation[Any], State], bool]
"""Whether the moment after a step is told: the step, its operation, and what the model knows then."""


class Teller:
    """Goes along with a trace."""

    def __init__(self, config: Config, chosen: Chosen = lambda *_: True, request: str | None = None) -> None:
        """Nothing has happened yet. Of batches only the part of `request` is described, if one is given."""
        self.config = config
        self._request = request
        self.mending = Mending(config)
        self._chosen = chosen
        self._seen = deque[Seen](maxlen=KEPT)
        self._steps = 0

    def step(self, line: int, given: Operation[Any]) -> Violation | None:
        """One operation, which stands on `line`; what it breaks.

        One without an answer is answered by the model itself.
        """
        self._steps += 1
        op = msgspec.structs.replace(given)
        violation = None
        try:
            violation = self.mending.step(op)
        except Refusal as refusal:
            op.refused = refusal.refused
        if self._chosen(self._steps, op, self.mending.model.state):
            self._keep(line, op, violation)
        return violation

    def end(self, line: int, op: Operation[Any], breach: Failure) -> None:
        """The operation that shows a finding: it is told as it was found, whatever the model says."""
        self._steps += 1
        self._keep(line, op, breach)

    def _keep(self, line: int, op: Operation[Any], breach: Failure | Violation | None) -> None:
        state, wrong = self.mending.model.state, disputed(breach)
        if breach is not None and not wrong:
            wrong = {"rows": _rows_of(op, state)}
        cells = {pool: _cells(state, pool, named(op, pool), wrong.get(pool, set())) for pool in POOLS}
        answer = None if op.obs is None else builtins(with_pages(op, _few_written_out).obs)
        moment = Moment(
            step=self._steps,
            line=line,
            event=builtins(msgspec.structs.replace(op, obs=None, refused=None)),
            says=sentence(op) if self._request is None else part_of(op, self._request),
            answer=answer,
            refused=None if op.refused is None else builtins(op.refused),
            about=_about(op, state),
            breaks="" if breach is None else _in_words(breach),
        )
        self._seen.append(Seen(moment, cells))

    def trace(self) -> Trace:
        """What was told so far."""
        told = [
            (
                seen.moment,
                {pool: {str(number): cell for number, cell in cells.items()} for pool, cells in seen.cells.items()},
            )
            for seen in self._seen
        ]
        return drawn("request", builtins(self.config), memory_in_words(self.config), self._steps, told)


def drawn(
    level: Any,
    sizes: dict[str, Any],
    memory: str,
    total: int,
    told: Sequence[tuple[Moment, dict[str, dict[str, Cell]]]],
) -> Trace:
    """A trace, with as many parts of its pools as can be drawn: what the events name and change comes first."""
    undrawn = {}
    for pool in dict.fromkeys(pool for _, cells in told for pool in cells):
        ranked = ranks([cells.get(pool, {}) for _, cells in told])
        wanted = sorted(ranked, key=lambda number: (ranked[number], by_number(number)))[:DRAWN]
        if len(ranked) > len(wanted):
            undrawn[pool] = len(ranked) - len(wanted)
        for moment, cells in told:
            if wanted:
                now = cells.get(pool, {})
                moment.cells[pool] = {number: now.get(number, FREE) for number in sorted(wanted, key=by_number)}
    return Trace(level, sizes, memory, total, [moment for moment, _ in told], undrawn)


def builtins(value: object) -> Any:
    """A record as JSON would have it."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=repr))


def finding_of(
    breach: Failure,
    config: Config,
    place: Place,
    shortest: Shortest,
    original: Iterable[tuple[int, Operation[Any]]] = (),
) -> Finding:
    """The finding, by the shortest counterexample; where there is none, by the operations of the `original` itself.

    Those come with their lines and answers, and end in the breach.
    """
    shown = shortest.counterexample
    if shown is not None:
        found: Failure = shown.finding
        operations: Iterable[tuple[int, Operation[Any]]] = ((0, op) for op in shown.operations)
        total = len(shown.operations)
    else:
        found, operations, total = breach, original, breach.step
    rule, code = None, ""
    if isinstance(found, RuleBroken):
        code = found.code
        broken = found.rule
        rule = Rule(broken.id, broken.name, broken.statement, broken.reason, origin(broken))
    expected, observed = _compared(found)
    told = _told(config, operations, found, total)
    return Finding(
        kind="rule" if rule else "failure" if isinstance(found, ImplementationFailed) else "expectation",
        what=_in_words(found),
        place=place,
        trace=told.trace,
        note=shortest.note,
        rule=rule,
        code=code,
        expected=builtins(expected),
        observed=builtins(observed),
        compared=expected is not None or observed is not None,
        before=told.before,
        known=told.facts,
        ledger=told.ledger,
        raised=list(_frames(found)),
    )


def place_of(breach: Failure, file: Path | str, line: int = 0, vector: str = "") -> Place:
    """Where it was met."""
    return Place(str(file), line, breach.step, "" if breach.op is None else tag(breach.op), vector)


def tag(op: Operation[Any]) -> str:
    """The name of an operation."""
    return str(op.__struct_config__.tag)


class _Told(NamedTuple):
    """What there is to say of a trace that shows a finding."""

    trace: Trace
    before: list[str]
    """What those had that the last operation names."""
    facts: list[str]
    ledger: list[Reference]


def _told(config: Config, operations: Iterable[tuple[int, Operation[Any]]], breach: Failure, total: int) -> _Told:
    teller = Teller(config, lambda step, *_: step > total - KEPT)
    done: list[tuple[int, Operation[Any]]] = []
    last: tuple[int, Operation[Any]] | None = None
    for line, op in operations:
        if last is not None:
            teller.step(*last)
        last = line, op
        if total <= EXPLAINED:
            done.append(last)
    if last is None:
        return _Told(teller.trace(), [], [], [])
    before = list(holders(teller.mending.model, last[1]))
    teller.end(*last, breach)
    if not done:
        return _Told(teller.trace(), before, [], [])
    pages = disputed(breach).get("pages", set())
    entries = list(ledger(config, done, pages)) if pages else []
    # What only one operation did is said by the facts.
    return _Told(teller.trace(), before, list(known(config, done, pages)), entries if len(entries) > 1 else [])


def _in_words(breach: Failure | Violation) -> str:
    match breach:
        case ImplementationFailed(original=NodeFault() as fault):
            return str(fault)
        case ImplementationFailed():
            return f"raised {breach}"
        case ExpectationFailed():
            return breach.mismatch.what
    return breach.what


def _compared(breach: Failure) -> tuple[object, object]:
    match breach:
        case RuleBroken():
            return breach.expected, breach.observed
        case ExpectationFailed():
            return breach.mismatch.expected, breach.mismatch.observed
    return None, None


def _frames(breach: Failure) -> Iterator[str]:
    if isinstance(breach, ImplementationFailed) and isinstance(breach.original, NodeFault):
        yield from (f"its standard error: {line}" for line in breach.original.stderr)
    elif isinstance(breach, ImplementationFailed):
        frames = traceback.extract_tb(breach.original.__traceback__)
        own = str(Path(__file__).parents[2])
        for frame in [frame for frame in frames if not frame.filename.startswith(own)][-_FRAMES:]:
            yield f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"


def holders(model: Model, last: Operation[Any] | None = None) -> Iterator[str]:
    """What those that an operation names hold, and the sessions whose turns they are; all holders if it names none."""
    named = [] if last is None else _about(last, model.state)
    for kind, views in zip(("request", "session"), held(model.state), strict=True):
        for name, view in views.items():
            if name in named or not named:
                yield _holder(f"{kind} {name}", view, model.state)


def _about(op: Operation[Any], state: State) -> list[str]:
    """The requests and sessions that an operation names, and the sessions whose turns these requests are."""
    names = list(names_in(op))
    turns = [state.requests[name].session for name in names if name in state.requests]
    return list(dict.fromkeys([*names, *(session for session in turns if session is not None)]))


def _holder(name: str, view: Held, state: State) -> str:
    table = state.tables[state.rows[view.row]]
    pages = dict.fromkeys(table[: ceil_pages(view.allocated_len, state.config.page_size)])
    # The model invents numbers, which are not positive, for what the implementation did not tell.
    told = spans(pages) if all(page > 0 for page in pages) else "not told"
    row = f"row {view.row if view.row >= 0 else 'not told'}, " if state.config.num_rows else ""
    return (
        f"{name}: protected {view.protected_len}, committed {view.committed_len}, allocated {view.allocated_len}, "
        f"{row}pages {told}"
    )


def _few_written_out(runs: Runs) -> Runs:
    """Numbers one by one where they are few; else the runs as they were told, which may be as long as they like."""
    return expand(runs) if count(runs) <= _WRITTEN_OUT else runs


def _rows_of(op: Operation[Any], state: State) -> set[int]:
    """The rows of what an operation names, slots of sessions too: where a length or the operation itself is wrong."""
    requests = [state.requests[name] for name in names_in(op) if name in state.requests]
    sessions = {getattr(op, "session", None), *(request.session for request in requests)}
    slots = [state.sessions[name] for name in sessions if name in state.sessions]
    records = [*(one.record for one in requests), *(one.record for one in slots)]
    return {state.records[record].row for record in records if record is not None}


def disputed(breach: object) -> dict[str, set[int]]:
    """For each pool what the answer is wrong about."""
    if isinstance(breach, Violation) and breach.wrong:
        return {pool: {*numbers} for pool, numbers in breach.wrong.items()}
    if isinstance(breach, Violation) and isinstance(breach.expected, list) and isinstance(breach.observed, list):
        pool = BLAMED.get(breach.rule.id.partition("-")[0], "pages")
        return {pool: set(breach.expected) ^ set(breach.observed)}
    return {}


def _cells(state: State, pool: str, named: set[int], wrong: set[int]) -> dict[int, Cell]:
    """What is in use of a pool, or named."""
    used: Iterable[tuple[int, Cell]]
    match pool:
        case "pages":
            used = ((page, _page(state, page)) for page in state.owner)
        case "window pages":
            used = ((side, _window_page(state, side)) for side in state.window_owner)
        case "state slots":
            used = ((slot, _state_slot(state, slot)) for slot in state.state_owner)
        case _:
            used = ((row, _row(state, row)) for row in state.rows)
    first = 0 if pool == "rows" else 1  # below it are those that the model invents for what is not told
    cells = {number: cell for number, cell in used if number >= first}
    for number in named | wrong:
        if number >= first:
            cell = cells.get(number, FREE)
            cells[number] = msgspec.structs.replace(cell, named=number in named, wrong=number in wrong)
    return cells


def _page(state: State, page: int) -> Cell:
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return Cell("locked" if page in state.store.pins else "store", "the prefix store")
    return Cell("held", owner_name(state, state.owner[page]))


def _window_page(state: State, side: int) -> Cell:
    page = state.window_owner[side]
    if isinstance(state.owner[page], bytes):
        return Cell("locked" if page in state.store.window_pins else "store", "the prefix store")
    return Cell("held", owner_name(state, state.owner[page]))


def _state_slot(state: State, slot: int) -> Cell:
    owner = state.state_owner[slot]
    if isinstance(owner, bytes):
        return Cell("locked" if state.store.pages[owner] in state.store.state_pins else "store", "the prefix store")
    return Cell("held", owner_name(state, state.state_owner[slot]))


def _row(state: State, row: int) -> Cell:
    record = state.rows[row]
    return Cell("withheld") if record == WITHHELD else Cell("held", record_name(state, record))


def named(op: Operation[Any], pool: str) -> set[int]:
    """What the answer names of a pool; a look at everything names nothing."""
    found = set[int]()
    if isinstance(op.obs, SnapshotAnswer):
        return found
    for part in TOLD[pool]:
        told = getattr(op.obs, part, None)
        for runs in told.values() if isinstance(told, dict) else (told,):
            found |= {runs} if isinstance(runs, int) else _numbers(runs or ())
    return found


def _numbers(runs: Runs) -> set[int]:
    """What runs name; nothing of so many that nobody could look at them."""
    return set(expand(runs)) if count(runs) <= _LOOKED_AT else set()
