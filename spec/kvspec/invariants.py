"""Every rule that can be seen in one state, checked over the whole state, from scratch.

The model's step checks look only at what an operation touches. These checks look at everything and share none of the
bookkeeping that makes the step checks cheap, so they show whether the step checks suffice. Cost: the whole state.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from kvspec.lengths import held_tokens, well_formed
from kvspec.model.looking import figures
from kvspec.model.records import Request, Session
from kvspec.model.state import WITHHELD, State
from kvspec.pages import ceil_pages
from kvspec.rules import Violation
from kvspec.store import ROOT
from kvspec.tokens import PrefixKey, Tokens
from kvspec.window import attended_from

Check = Callable[[State], None]

CHECKS: dict[str, Check] = {}
"""The check of each rule, by its id."""


def checks(*rules: str) -> Callable[[Check], Check]:
    """Register the check of some rules."""

    def register(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(rules, check))
        return check

    return register


def check(state: State) -> None:
    """Check every rule.

    Raises:
        Violation: some rule does not hold.
    """
    for rule_check in dict.fromkeys(CHECKS.values()):
        rule_check(state)


def holders(state: State) -> Iterator[tuple[str, int, Request | Session]]:
    """Every holder of a record: its name, the record, and what it is."""
    for req, request in state.requests.items():
        if request.record is not None:
            yield f"request {req}", request.record, request
    for name, session in state.sessions.items():
        if session.record is not None:
            yield f"session {name}", session.record, session


def tokens_of(state: State, holder: Request | Session) -> Tokens:
    """The tokens that a holder's positions stand for."""
    if isinstance(holder, Request):
        return holder.tokens
    return state.requests[holder.turn].tokens if holder.turn else holder.history


@checks("ROW-1")
def rows_are_their_records(state: State) -> None:
    """Each holder's record is there, and its row is marked as its own; the memory model counts the others."""
    for name, record, _ in holders(state):
        if record not in state.records:
            raise Violation("ROW-1", f"the row of {name} is gone")
        row = state.records[record].row
        if state.rows.get(row) != record:
            raise Violation("ROW-1", f"row {row} is not marked as its holder's")


@checks("ROW-3")
def row_has_use(state: State) -> None:
    """A request with a row is mid prefill, or has committed KV."""
    for name, record, holder in holders(state):
        if isinstance(holder, Request) and not state.lengths[record].committed:
            raise Violation("ROW-3", f"{name} brings a row without committed KV")


@checks("LEN-1")
def lengths_in_order(state: State) -> None:
    """Protected, committed and allocated are in order and fit the context."""
    for name, record, _ in holders(state):
        protected, committed, allocated = state.lengths[record]
        if not 0 <= protected <= committed <= allocated <= state.config.max_context_len:
            raise Violation("LEN-1", f"the lengths of {name}", observed=state.lengths[record])


@checks("LEN-2")
def protected_is_aligned(state: State) -> None:
    """Protected lengths are whole pages."""
    for name, record, _ in holders(state):
        if not well_formed(state.lengths[record], state.config.page_size):
            raise Violation("LEN-2", f"the protected length of {name}", observed=state.lengths[record].protected)


@checks("LEN-3")
def sessions_grow(state: State) -> None:
    """The protected tokens of an idle session are among those with which its next turn must begin."""
    for name, session in state.sessions.items():
        protected = 0 if session.record is None else state.lengths[session.record].protected
        if protected and protected >= len(tokens_of(state, session)):
            raise Violation("LEN-3", f"session {name} could not be resumed", observed=protected)


@checks("PAGE-2")
def tables_are_store_then_private(state: State) -> None:
    """A block table is the locked prefix's pages, then private pages up to ceil(allocated)."""
    for name, record, holder in holders(state):
        lengths, table = state.lengths[record], state.tables[record]
        if len(table) != ceil_pages(lengths.allocated, state.config.page_size):
            raise Violation("PAGE-2", f"the block table of {name} has {len(table)} pages", expected=lengths.allocated)
        locked = state.records[record].locked
        path = state.store.path(locked)
        if table[: len(path)] != path or len(path) * state.config.page_size != lengths.protected:
            raise Violation("PAGE-2", f"the protected pages of {name}", expected=path, observed=table[: len(path)])
        if locked != state.matched_key(tokens_of(state, holder), lengths.protected):
            raise Violation("PAGE-2", f"{name} has locked a prefix that is not its own")


@checks("TAIL-1")
def resumed_without_tail(state: State) -> None:
    """A turn that a slot is lent to, and that has not extended, has nothing past prefix_len."""
    for req, request in state.requests.items():
        if request.record is not None and not request.running:
            _, committed, allocated = state.lengths[request.record]
            if not request.prefix_len == committed == allocated:
                raise Violation("TAIL-1", f"request {req}", expected=request.prefix_len, observed=allocated)


@checks("STORE-1")
def store_is_prefix_closed(state: State) -> None:
    """Every cached prefix's parent is cached; the counts of children are right."""
    store = state.store
    children: Counter[PrefixKey] = Counter()
    for page in store.pages.values():
        parent = store.parents[page]
        if parent != ROOT and parent not in store.pages:
            raise Violation("STORE-1", f"page {page} is cached behind a hole")
        children[parent] += 1
    if any(store.children.get(key, 1) != children[key] for key in (ROOT, *store.pages)):
        raise Violation("STORE-1", "the numbers of longer prefixes are wrong", expected=children)


@checks("SWA-2")
def windows_are_whole(state: State) -> None:
    """Every position that a later step of a holder reads has its window side, in the store or private."""
    if not state.config.sliding_window:
        return
    for name, record, holder in holders(state):
        nearest = min(state.lengths[record].committed, state.written[record], len(tokens_of(state, holder)) - 1)
        first = attended_from(nearest, state.config.sliding_window) // state.config.page_size
        gone = [page for page in state.tables[record][first:] if page not in state.window_of]
        if gone:
            raise Violation("SWA-2", f"{name} would read pages without a window side", observed=gone)


@checks("SWA-3")
def cursors_cut_the_private_pages(state: State) -> None:
    """A holder's private pages have a window side exactly from its cursor on."""
    if not state.config.sliding_window:
        return
    page_size = state.config.page_size
    for name, record, _ in holders(state):
        first, cursor = state.lengths[record].protected // page_size, state.cursor[record]
        for index, page in enumerate(state.tables[record][first:], first):
            if (page in state.window_of) != (index * page_size >= cursor):
                raise Violation("SWA-3", f"the window side of page {page} of {name}, whose cursor is {cursor}")


@checks("MAMBA-2")
def holders_have_their_states(state: State) -> None:
    """A holder of a row has the slots that it computes and tracks in; a request without one has at most one slot."""
    due = 1 + state.config.tracking_states if state.config.num_states else 0
    for name, record, _ in holders(state):
        states = state.records[record].states
        if len(states) != due:
            raise Violation("MAMBA-2", f"the state slots of {name}", expected=due, observed=states)
    for req, request in state.requests.items():
        if request.state is not None and (request.record is not None or request.running):
            raise Violation("MAMBA-2", f"request {req} has a state slot beside those of its row")


@checks("MAMBA-4")
def cached_states_are_of_cached_prefixes(state: State) -> None:
    """The store keeps states of prefixes that it holds."""
    if state.store.states.keys() - state.store.pages.keys():
        raise Violation("MAMBA-4", "the store keeps the state of a prefix that it does not hold")


@checks("SESS-1")
def one_turn_a_session(state: State) -> None:
    """Each session has at most one request, and names it."""
    turns = Counter(request.session for request in state.requests.values() if request.session is not None)
    for name, session in state.sessions.items():
        if turns[name] != (session.turn is not None):
            raise Violation("SESS-1", f"session {name} has {turns[name]} turns in flight")
    if turns.keys() - state.sessions.keys():
        raise Violation("SESS-1", "a turn has lost its session")


@checks("SESS-3")
def a_lend_is_one_holder(state: State) -> None:
    """While a slot is lent, only the request has the record."""
    for req, request in state.requests.items():
        lent = request.session is not None and request.record is not None
        if lent and state.sessions[request.session or ""].record is not None:
            raise Violation("SESS-3", f"request {req} and session {request.session} both hold KV")


@checks("SESS-6")
def histories_are_prefixes(state: State) -> None:
    """A turn's tokens begin with its session's history."""
    for req, request in state.requests.items():
        if request.session is not None and not request.tokens.extends(state.sessions[request.session].history):
            raise Violation("SESS-6", f"request {req} does not continue session {request.session}")


@checks("BATCH-2")
def one_mid_prefill(state: State) -> None:
    """At most one running request has input positions left to prefill."""
    unfinished = [req for req in state.mid_prefill if state.requests[req].running]
    if len(unfinished) > 1 or len(unfinished) != len(state.mid_prefill):
        raise Violation("BATCH-2", "requests are in the middle of their prefill", observed=sorted(state.mid_prefill))


@checks("ACC-1", "ACC-2", "ACC-3")
def everything_is_counted_once(state: State) -> None:
    """The figures sum to their pools."""
    config, counted, size = state.config, figures(state), state.config.page_size
    held = ("available", "evictable", "protected", "session_held", "uncached")
    slots = ("available", "evictable", "protected", "sessions", "requests")
    rows = ("rows_available", "rows_requests", "rows_sessions", "rows_withheld")
    private = sum(held_tokens(state.lengths[record], size) for _, record, _ in holders(state))
    for rule, what, expected, names in (
        ("ACC-1", "tokens", config.num_pages * size, held),
        ("ACC-1", "rows", config.num_rows, rows),
        ("ACC-1", "tokens that are held", private, ("session_held", "uncached")),
        ("ACC-2", "tokens of the window pool", config.num_window_pages * size, [f"window_{name}" for name in held]),
        ("ACC-3", "state slots", config.num_states, [f"states_{name}" for name in slots]),
    ):
        total = sum(getattr(counted, name) or 0 for name in names)
        if total != expected:
            raise Violation(rule, f"the {what} do not add up", expected=expected, observed=total)


@checks("RACE-1")
def readers_read_held_rows(state: State) -> None:
    """Every row that a launch in flight still reads is withheld, or has those positions still."""
    if not state.config.withholds_rows:
        if state.readers or WITHHELD in state.rows.values():
            raise Violation("RACE-1", "rows are withheld that nothing reads any more", observed=state.readers)
        return
    in_flight = Counter(passage.row for passages in state.flights.values() for passage in passages)
    if in_flight != Counter({row: len(reads) for row, reads in state.readers.items()}):
        raise Violation("RACE-1", "the readers of rows are not the launches in flight")
    for passages in state.flights.values():
        for passage in passages:
            if state.rows.get(passage.row) not in (WITHHELD, passage.record):
                raise Violation("RACE-1", f"row {passage.row} has changed hands under the launch for {passage.req}")
