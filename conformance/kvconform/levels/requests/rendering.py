"""Renders request-level traces and findings; only this module reads the model for them.

A `Renderer` follows a trace and keeps the chosen moments, each with all pools of the model.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvconform.errors import NodeFault
from kvconform.findings.finding import (
    FREE,
    POOLS,
    Cell,
    Finding,
    Kind,
    Moment,
    Place,
    Reference,
    Rule,
    Trace,
    spans,
)
from kvconform.findings.wording import origin
from kvconform.levels.drawing import KEPT, Seen, builtins, drawn
from kvconform.levels.requests.description import known, ledger, memory_in_words, part_of, sentence
from kvconform.levels.requests.minimise import Shortest
from kvconform.levels.requests.recovery import Recovery
from kvconform.oracle import Model, owner_name, record_name
from kvconform.oracle.holders import Held, held
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.vectors.runner import ExpectationFailed, Failure, names_in, unanswered
from kvspec.events import Config, Operation, Refusal, SnapshotAnswer
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, ceil_pages, count, expand
from kvspec.rules import ALL_RULES, Violation
from kvspec.rules import Rule as KeptRule
from kvtrace.operations import with_pages

EXPLAINED = 500
"""The most operations of a trace for which the facts of the model are listed with their lines."""
_WRITTEN_OUT = 160
"""The most numbers of a list that are written out; a longer list stays in runs."""
_LOOKED_AT = 10_000
"""The most numbers of a list that are examined one by one."""
_FRAMES = 5
"""The most frames of the implementation's traceback that are shown, the innermost ones."""

FIELDS = {
    "pages": ("pages", "freed", "evicted"),
    "window pages": ("window_pages", "window_freed", "window_evicted"),
    "state slots": ("states", "states_freed", "states_evicted", "state", "state_cached", "state_taken"),
    "rows": ("rows",),
}
"""Pool -> the answer fields that hold its numbers."""
BLAMED = {"SWA": "window pages", "MAMBA": "state slots"}
"""Prefix of a rule's id -> the pool with disputed numbers; other rules dispute pages."""

Chosen = Callable[[int, Operation[Any], State], bool]
"""Whether the moment after a step is kept, by the step, its operation, and the state after it."""


class Renderer:
    """Follows a trace."""

    def __init__(self, config: Config, chosen: Chosen = lambda *_: True, request: str | None = None) -> None:
        """Begin with an empty memory. With a `request` only its part of batches is described."""
        self.config = config
        self._request = request
        self.recovery = Recovery(config)
        self._chosen = chosen
        self._seen = deque[Seen](maxlen=KEPT)
        self._steps = 0

    def step(self, line: int, given: Operation[Any]) -> Violation | None:
        """Follow the operation on `line`. Returns its violation, if any.

        The model itself answers an operation without an answer.
        """
        self._steps += 1
        op = msgspec.structs.replace(given)
        violation = None
        try:
            violation = self.recovery.step(op)
        except Refusal as refusal:
            op.refused = refusal.refused
        if self._chosen(self._steps, op, self.recovery.model.state):
            self._keep(line, op, violation)
        return violation

    def end(self, line: int, op: Operation[Any], failure: Failure) -> None:
        """Keep the operation of the finding with its recorded answer; the model does not step."""
        self._steps += 1
        self._keep(line, op, failure)

    def _keep(self, line: int, op: Operation[Any], failure: Failure | Violation | None) -> None:
        state, wrong = self.recovery.model.state, disputed(failure)
        if failure is not None and not wrong:
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
            breaks="" if failure is None else _in_words(failure),
        )
        self._seen.append(Seen(moment, cells))

    def trace(self) -> Trace:
        """The trace so far."""
        return drawn("request", builtins(self.config), memory_in_words(self.config), self._steps, list(self._seen))


def finding_of(
    failure: Failure,
    config: Config,
    place: Place,
    shortest: Shortest,
    original: Iterable[tuple[int, Operation[Any]]] = (),
) -> Finding:
    """The finding, from the shortest counterexample, or without one from the operations of the `original`.

    These have their lines and answers, and end in the failure.
    """
    shown = shortest.counterexample
    if shown is not None:
        found: Failure = shown.finding
        operations: Iterable[tuple[int, Operation[Any]]] = ((0, op) for op in shown.operations)
        total = len(shown.operations)
    else:
        found, operations, total = failure, original, failure.step
    expected, observed = _compared(found)
    rendered = _rendered(config, operations, found, total)
    broken = found.rule if isinstance(found, RuleBroken) else rendered.due
    rule = None
    if broken is not None:
        rule = Rule(broken.id, broken.name, broken.statement, broken.reason, origin(broken))
    kinds: dict[type, Kind] = {RuleBroken: "rule", ImplementationFailed: "failure"}
    return Finding(
        kind=kinds.get(type(found), "expectation"),
        what=_in_words(found),
        place=place,
        trace=rendered.trace,
        note=shortest.note,
        rule=rule,
        code=found.code if isinstance(found, RuleBroken) else "",
        expected=builtins(expected),
        observed=builtins(observed),
        compared=expected is not None or observed is not None,
        before=rendered.before,
        known=rendered.facts,
        ledger=rendered.ledger,
        raised=list(_frames(found)),
    )


def place_of(failure: Failure, file: Path | str, line: int = 0, vector: str = "") -> Place:
    """The place of a failure."""
    return Place(str(file), line, failure.step, "" if failure.op is None else tag(failure.op), vector)


def tag(op: Operation[Any]) -> str:
    """The name of an operation."""
    return str(op.__struct_config__.tag)


class _Rendered(NamedTuple):
    """The trace of a finding, with the state before its last operation."""

    trace: Trace
    before: list[str]
    """The holdings of the requests and sessions that the last operation names."""
    facts: list[str]
    ledger: list[Reference]
    due: KeptRule | None = None
    """If the implementation failed at the last operation: the rule by which it had to carry it out or refuse it."""


def _rendered(
    config: Config, operations: Iterable[tuple[int, Operation[Any]]], failure: Failure, total: int
) -> _Rendered:
    renderer = Renderer(config, lambda step, *_: step > total - KEPT)
    done: list[tuple[int, Operation[Any]]] = []
    last: tuple[int, Operation[Any]] | None = None
    for line, op in operations:
        if last is not None:
            renderer.step(*last)
        last = line, op
        if total <= EXPLAINED:
            done.append(last)
    if last is None:
        return _Rendered(renderer.trace(), [], [], [])
    before = list(holders(renderer.recovery.model, last[1]))
    renderer.end(*last, failure)
    raised = isinstance(failure, ImplementationFailed) and not isinstance(failure.original, NodeFault)
    due = _due(renderer.recovery.model, last[1]) if raised else None
    if not done:
        return _Rendered(renderer.trace(), before, [], [], due)
    pages = disputed(failure).get("pages", set())
    entries = list(ledger(config, done, pages)) if pages else []
    # A single entry repeats the facts.
    facts = list(known(config, done, pages))
    return _Rendered(renderer.trace(), before, facts, entries if len(entries) > 1 else [], due)


def _due(model: Model, op: Operation[Any]) -> KeptRule:
    """The rule by which `model` refuses an operation or carries it out. The model steps."""
    try:
        model.step(unanswered(op))
    except Refusal as refusal:
        return ALL_RULES[refusal.refused.rule or "OP-1"]
    return ALL_RULES["OP-1"]


def _in_words(failure: Failure | Violation) -> str:
    match failure:
        case ImplementationFailed(original=NodeFault() as fault):
            return str(fault)
        case ImplementationFailed():
            return f"raised {failure}"
        case ExpectationFailed():
            return failure.mismatch.what
    return failure.what


def _compared(failure: Failure) -> tuple[object, object]:
    match failure:
        case RuleBroken():
            return failure.expected, failure.observed
        case ExpectationFailed():
            return failure.mismatch.expected, failure.mismatch.observed
    return None, None


def _frames(failure: Failure) -> Iterator[str]:
    if isinstance(failure, ImplementationFailed) and isinstance(failure.original, NodeFault):
        yield from (f"its standard error: {line}" for line in failure.original.stderr)
    elif isinstance(failure, ImplementationFailed):
        frames = traceback.extract_tb(failure.original.__traceback__)
        own = str(Path(__file__).parents[2])
        for frame in [frame for frame in frames if not frame.filename.startswith(own)][-_FRAMES:]:
            yield f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"


def holders(model: Model, last: Operation[Any] | None = None) -> Iterator[str]:
    """The holdings of the requests that an operation names and of their sessions; of all holders if it names none."""
    named = [] if last is None else _about(last, model.state)
    for kind, views in zip(("request", "session"), held(model.state), strict=True):
        for name, view in views.items():
            if name in named or not named:
                yield _holder(f"{kind} {name}", view, model.state)


def _about(op: Operation[Any], state: State) -> list[str]:
    """The requests and sessions that an operation names, and the sessions of these requests."""
    names = list(names_in(op))
    turns = [state.requests[name].session for name in names if name in state.requests]
    return list(dict.fromkeys([*names, *(session for session in turns if session is not None)]))


def _holder(name: str, view: Held, state: State) -> str:
    table = state.tables[state.rows[view.row]]
    pages = dict.fromkeys(table[: ceil_pages(view.allocated_len, state.config.page_size)])
    # The model invents numbers, which are not positive, for unreported ones.
    numbers = spans(pages) if all(page > 0 for page in pages) else "not reported"
    row = f"row {view.row if view.row >= 0 else 'not reported'}, " if state.config.num_rows else ""
    return (
        f"{name}: protected {view.protected_len}, committed {view.committed_len}, allocated {view.allocated_len}, "
        f"{row}pages {numbers}"
    )


def _few_written_out(runs: Runs) -> Runs:
    """A few numbers one by one; many stay in runs."""
    return expand(runs) if count(runs) <= _WRITTEN_OUT else runs


def _rows_of(op: Operation[Any], state: State) -> set[int]:
    """The rows of the requests and session slots that an operation names: there a length or the operation is wrong."""
    requests = [state.requests[name] for name in names_in(op) if name in state.requests]
    sessions = {getattr(op, "session", None), *(request.session for request in requests)}
    slots = [state.sessions[name] for name in sessions if name in state.sessions]
    records = [*(one.record for one in requests), *(one.record for one in slots)]
    return {state.records[record].row for record in records if record is not None}


def disputed(failure: object) -> dict[str, set[int]]:
    """For each pool the numbers that the answer is wrong about."""
    if isinstance(failure, Violation) and failure.wrong:
        return {pool: {*numbers} for pool, numbers in failure.wrong.items()}
    if isinstance(failure, Violation) and isinstance(failure.expected, list) and isinstance(failure.observed, list):
        pool = BLAMED.get(failure.rule.id.partition("-")[0], "pages")
        return {pool: set(failure.expected) ^ set(failure.observed)}
    return {}


def _cells(state: State, pool: str, named: set[int], wrong: set[int]) -> dict[str, Cell]:
    """The parts of a pool that are in use, named or wrong."""
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
    first = 0 if pool == "rows" else 1  # the model invents lower numbers for unreported ones
    cells = {number: cell for number, cell in used if number >= first}
    for number in named | wrong:
        if number >= first:
            cell = cells.get(number, FREE)
            cells[number] = msgspec.structs.replace(cell, named=number in named, wrong=number in wrong)
    return {str(number): cell for number, cell in cells.items()}


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
    """The numbers of a pool that an answer names; a snapshot names none."""
    found = set[int]()
    if isinstance(op.obs, SnapshotAnswer):
        return found
    for part in FIELDS[pool]:
        value = getattr(op.obs, part, None)
        for runs in value.values() if isinstance(value, dict) else (value,):
            found |= {runs} if isinstance(runs, int) else _numbers(runs or ())
    return found


def _numbers(runs: Runs) -> set[int]:
    """The numbers of runs; none of a list that is too long to draw."""
    return set(expand(runs)) if count(runs) <= _LOOKED_AT else set()
