"""Compares the holders of a snapshot with the expected ones: their rows, lengths and state slots."""

from collections.abc import Mapping

from kvconform.oracle.notes import NotedState
from kvconform.oracle.parts import check_content, check_length, check_set, has_state, not_reported
from kvconform.oracle.runs import without
from kvspec.events import HolderView, SnapshotAnswer
from kvspec.lengths import Lengths
from kvspec.model.records import Request, Session
from kvspec.model.recurrent import slot_keeping
from kvspec.model.state import WITHHELD
from kvspec.pages import ceil_pages
from kvspec.rules import Violation, Wrong


class Held(HolderView):
    """One holder in the specification, with all fields that every holder has."""

    row: int
    protected_len: int
    committed_len: int
    allocated_len: int


def held(state: NotedState) -> tuple[dict[str, Held], dict[str, Held]]:
    """The holdings of each request, and of each session slot that has not lent them."""

    def views(holders: Mapping[str, Request | Session]) -> dict[str, Held]:
        return {name: _view(state, one.record) for name, one in holders.items() if one.record is not None}

    return views(state.requests), views(state.sessions)


def _view(state: NotedState, record: int) -> Held:
    row, _, states, _ = state.records[record]
    lengths = state.lengths[record]
    cursor = max(lengths.protected, state.cursor[record]) if state.config.sliding_window else None
    if not state.config.num_states:
        return Held(row, *lengths, cursor)
    return Held(row, *lengths, cursor, sorted(states), *_roles(state, record))


def check_holders(
    state: NotedState,
    kind: str,
    expected: dict[str, Held],
    observed: dict[str, HolderView] | None,
    whole: SnapshotAnswer,
) -> None:
    """Compare the holders of rows and their fields; `whole` has the rows without a holder."""
    if observed is None:
        not_reported(state, "LEN-1", f"{kind}s")
        return
    for rule in ("ROW-1", "ROW-4"):
        state.checked[rule] += 1
    for name in expected | observed:
        if name not in observed:
            # A session that waits for its turn was released too early, unless only its row is lost.
            row = expected[name].row
            lost = whole.free_rows is not None and row >= 0 and not _is_loose(whole, row)
            rule = "SESS-4" if kind == "session" and state.sessions[name].closing and not lost else "ROW-1"
            due, what = expected[name], f"{kind} {name} should hold a row"
            raise Violation(rule, what, expected=due, part=kind, wrong=_row(due))
        if name not in expected:
            rule = _blame_row(state, kind, name, observed[name], whole)
            view, what = observed[name], f"{kind} {name} should hold no row"
            raise Violation(rule, what, observed=view, part=kind, wrong=_row(view))
        _check_holder(state, kind, name, expected[name], observed[name])


def _row(view: Held | HolderView) -> Wrong:
    return {"rows": [] if view.row is None else [view.row]}


def _check_holder(state: NotedState, kind: str, name: str, wanted: Held, found: HolderView) -> None:
    """Compare one holder; a part that is not reported is not checked."""
    who = f"{kind} {name}"
    if found.row is None or wanted.row < 0:
        not_reported(state, "ROW-2", "row" if found.row is None else "rows")
    elif found.row != wanted.row:
        wrong = {"rows": [wanted.row, found.row]}
        what, part = f"{who} is in another row", f"{kind}.row"
        raise Violation("ROW-2", what, expected=wanted.row, observed=found.row, part=part, wrong=wrong)
    else:
        state.checked["ROW-2"] += 1
    due = Lengths(wanted.protected_len, wanted.committed_len, wanted.allocated_len)
    lengths = found.protected_len, found.committed_len, found.allocated_len
    observed = Lengths(*(one if one is not None else other for one, other in zip(lengths, due, strict=True)))
    rules = _rules_of_lengths(state, kind, name, due, observed)
    row = _row(wanted)
    check_length(state, rules[0], "protected_len", due.protected, found.protected_len, row, who)
    check_length(state, rules[1], "committed_len", due.committed, found.committed_len, row, who)
    if kind == "request" or not same_pages(state, due.allocated, observed.allocated):
        check_length(state, rules[2], "allocated_len", due.allocated, found.allocated_len, who=who)
    if wanted.swa_evicted_len is not None:
        check_length(state, "SWA-2", "swa_evicted_len", wanted.swa_evicted_len, found.swa_evicted_len, who=who)
    if wanted.states is not None:
        check_set(state, "MAMBA-1", "states", wanted.states, found.states, f"the state slots of {who}")
        holder = state.requests[name] if kind == "request" else state.sessions[name]
        assert holder.record is not None, "it holds a row"
        _check_roles(state, who, holder.record, found)


def _rules_of_lengths(state: NotedState, kind: str, name: str, due: Lengths, observed: Lengths) -> tuple[str, str, str]:
    """The rule that each of three lengths breaks if it is wrong: LEN-1, unless that holds and another rule sets it.

    A protected length is the locked part (STORE-2), and only a publication moves it: none of a session's (SESS-6). A
    committed length beyond its tokens claims content that does not exist (DATA-1); for a retracted turn one beyond its
    launches claims positions that no launch has written (LAUNCH-1). A turn begins where its slot's committed positions
    end (SESS-2), with nothing past them (TAIL-1).
    """
    if not 0 <= observed.protected <= observed.committed <= observed.allocated <= state.config.max_context_len:
        return "LEN-1", "LEN-1", "LEN-1"
    request = state.requests[name] if kind == "request" else None
    of_a_session = request is None or request.session is not None
    protected = "SESS-6" if of_a_session and observed.protected > due.protected else "STORE-2"
    if observed.protected % state.config.page_size:
        protected = "LEN-2"
    if request is not None and state.speculates_ahead(name):
        return protected, "SPEC-2", "SPEC-2"
    if request is not None and name in state.verified:
        return protected, "SPEC-1", "LEN-1"
    rests = request is None or not request.running
    committed = "DATA-1" if observed.committed > due.committed else "SESS-2" if rests else "LEN-1"
    if request is None and _is_unlaunched(state, state.sessions[name], observed.committed):
        committed = "LAUNCH-1"
    return protected, committed, "TAIL-1" if rests and request is not None else "LEN-1"


def _is_unlaunched(state: NotedState, session: Session, committed: int) -> bool:
    """Whether a slot counts positions of a turn that was retracted between their extend and their launch."""
    turn = state.requests.get(session.turn or "")
    if turn is None or not turn.run or session.record is None:
        return False
    return state.written[session.record] < committed <= len(turn.tokens)


def _is_loose(whole: SnapshotAnswer, row: int | None) -> bool:
    """Whether a row is reported among those without a holder."""
    return row is not None and not without([row], [*(whole.free_rows or ()), *(whole.withheld_rows or ())])


def _blame_row(state: NotedState, kind: str, name: str, found: HolderView, whole: SnapshotAnswer) -> str:
    """The rule that a holder with an unexpected row breaks.

    A row number that is free, or another holder's, was not forgotten (ROW-4). A row without another holder is one that
    a request got without committed KV from a refused batch (ROW-3), or that was never freed (ROW-1).
    """
    elsewhere = {row for row, record in state.rows.items() if record != WITHHELD} if kind == "request" else ()
    stale = found.row in elsewhere or _is_loose(whole, found.row)
    if kind == "request" and name in state.requests and not (stale or found.committed_len):
        return "ROW-3"
    return "ROW-4" if stale or whole.free_rows is None else "ROW-1"


def same_pages(state: NotedState, length: int, other: int) -> bool:
    """Whether two allocated lengths cover the same pages.

    A slot may forget the slots past its tokens in a page that it keeps (SGLang from 0.5.11 on does): the next match
    overwrites them anyway.
    """
    return ceil_pages(length, state.config.page_size) == ceil_pages(other, state.config.page_size)


def _check_roles(state: NotedState, who: str, record: int, view: HolderView) -> None:
    """Compare the reported roles of a record's slots with the states in them (rule DATA-2).

    Roles that no earlier answer reported are learned here.
    """
    held, content, protected = state.records[record], state.state_content, state.lengths[record].protected
    if view.computing is None or any(slot < 0 for slot in held.states):
        not_reported(state, "DATA-2", "computing" if view.computing is None else "states")
        return
    if view.computing not in ((held.computing,) if held.computing else held.states):
        what = f"{who} computes in state slot {view.computing}, where its state is not"
        where = held.computing or held.states
        raise Violation("DATA-2", what, expected=where, observed=view.computing, part="computing")
    if not held.computing:
        state.records[record] = held = held._replace(computing=view.computing)
        content[view.computing] = record, state.written[record]
    state.checked["DATA-2"] += 1
    due = [border for border in state.borders[record] if border >= protected]
    if view.tracking is None:
        not_reported(state, "DATA-2", "tracking", bool(due))
        return
    tracked = {border: slot for border, slot in sorted(view.tracking.items()) if border >= protected}
    if list(tracked) != due:
        what = f"the page borders whose states {who} has kept are wrong"
        raise Violation("MAMBA-3", what, expected=due, observed=list(tracked), part="tracking")
    for border, slot in tracked.items():
        if has_state(state, record, slot, border) is not None:
            check_content(state, record, slot, border, f"{who} keeps in")
        tracking = [own for own in held.states if own != held.computing]
        if slot not in tracking:
            what = f"{who} keeps a state in slot {slot}, which is no tracking slot of its own"
            raise Violation("DATA-2", what, expected=tracking, observed=slot, part="tracking")
        content[slot] = record, border


def _roles(state: NotedState, record: int) -> tuple[int | None, dict[int, int] | None]:
    """The slot that a record computes in, and the one that keeps each border; `None` if no answer reported it."""
    kept = {border: slot_keeping(state, record, border) for border in state.borders[record]}
    known = {border: slot for border, slot in kept.items() if slot is not None}
    return state.records[record].computing or None, known if len(known) == len(kept) else None
