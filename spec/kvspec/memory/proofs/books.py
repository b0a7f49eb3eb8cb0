"""Any number of requests, sessions, records and rows of `kvspec.model`, and their invariants.

A record is that of `kvspec.model.records.Record`: a row with lengths. A request or a session's slot has it.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from z3 import And, If, Implies, Not, Or  # type: ignore[import-untyped]

from kvspec.memory.proofs.page import Clause
from kvspec.memory.proofs.terms import NONE, Formula, Map, Map2, Number, Set, every, put, some
from kvspec.ownership import FREE, WITHHELD


@dataclass(frozen=True)
class Request:
    """One request. Lengths in tokens; `NONE` if it has no session, record or answer."""

    tokens: Number = 0
    """The number of its tokens; 0: there is no such request."""
    session: Number = NONE
    record: Number = NONE
    runs: Formula = False
    ran: Formula = False
    begins: Number = NONE
    """The answer of its last match, until the next extend."""
    seq_len: Number = 0
    """The end of its last extend."""
    unfinished: Formula = False
    """Whether its prefill is unfinished."""
    prepared: Number = 0
    """The end of its prepared positions that are not launched, or 0."""


@dataclass(frozen=True)
class Session:
    """One session."""

    there: Formula = False
    tokens: Number = 0
    """The number of tokens of its history."""
    record: Number = NONE
    """The record in its slot."""
    turn: Number = NONE
    """Its turn in flight."""
    closing: Formula = False


@dataclass(frozen=True)
class Record:
    """One record."""

    turn: Number = NONE
    """The request that has it, or `NONE`."""
    slot: Number = NONE
    """The session in whose slot it is, or `NONE`."""
    row: Number = NONE
    protected: Number = 0
    committed: Number = 0
    allocated: Number = 0
    written: Number = 0

    @property
    def there(self) -> Formula:
        """Whether the record has a holder."""
        return Or(self.turn != NONE, self.slot != NONE)


@dataclass(frozen=True)
class Books:
    """All requests, sessions, records and rows, and the launches in flight."""

    request: Callable[[Number], Request]
    session: Callable[[Number], Session]
    record: Callable[[Number], Record]
    exists: Set
    """The rows."""
    owner: Map
    """Row -> its record, `FREE` or `WITHHELD`."""
    entry: Map2
    """Row, position -> the entry there."""
    reads: Map2
    """Row, launch -> the number of positions of the row that a launch in flight reads."""
    runs_for: Map2
    """Row, launch -> the record for which the launch reads the row."""
    found: Callable[[Number, Number, Number], Number]
    """Row, launch, position -> the entry there at the time of the launch."""

    def with_request(self, req: Number, **changed: Any) -> "Books":
        """The books with a request changed."""
        return replace(self, request=put(self.request, req, replace(self.request(req), **changed)))

    def with_session(self, session: Number, **changed: Any) -> "Books":
        """The books with a session changed."""
        return replace(self, session=put(self.session, session, replace(self.session(session), **changed)))

    def with_record(self, record: Number, **changed: Any) -> "Books":
        """The books with a record changed."""
        return replace(self, record=put(self.record, record, replace(self.record(record), **changed)))

    def is_read(self, row: Number) -> Formula:
        """Whether a launch in flight reads a row."""
        return some(lambda launch: self.reads(row, launch) > 0)

    def session_of(self, record: Number) -> Number:
        """The session with a record in its slot, or of its turn."""
        holder = self.record(record)
        return If(holder.slot != NONE, holder.slot, self.request(holder.turn).session)


def initial(books: Books) -> Books:
    """The books without requests and sessions, with all rows free."""
    start = replace(books, owner=lambda _: FREE, reads=lambda *_: 0)
    return replace(start, request=lambda _: Request(), session=lambda _: Session(), record=lambda _: Record())


def _holder(books: Books, number: Number) -> Formula:
    record = books.record(number)
    of_turn = And(record.slot == NONE, books.request(record.turn).record == number)
    of_slot = And(record.turn == NONE, books.session(record.slot).record == number)
    return Implies(record.there, And(number >= 1, Or(of_turn, of_slot)))


def _marked(books: Books, number: Number) -> Formula:
    record = books.record(number)
    return Implies(record.there, And(books.exists(record.row), books.owner(record.row) == number))


def _state_of_a_row(books: Books, row: Number) -> Formula:
    owner = books.owner(row)
    record = books.record(owner)
    held = And(owner >= 1, record.there, record.row == row)
    return Or(owner == FREE, And(owner == WITHHELD, books.is_read(row)), held)


def _nothing_left(books: Books, req: Number) -> Formula:
    request = books.request(req)
    waits_alone = And(Not(request.runs), request.session == NONE)
    gone = And(request.tokens == 0, request.session == NONE, Not(request.runs))
    there = And(request.tokens > 0, req != NONE)
    return And(Implies(waits_alone, request.record == NONE), Or(there, gone))


def _nothing_left_of(books: Books, number: Number) -> Formula:
    session = books.session(number)
    return Or(And(session.there, number != NONE), And(session.record == NONE, session.turn == NONE))


def _own_rows(books: Books, req: Number, session: Number) -> Formula:
    records = (books.request(req).record, books.session(session).record)
    return And(*(Or(record == NONE, books.owner(books.record(record).row) == record) for record in records))


def _turn(books: Books, req: Number) -> Formula:
    session = books.request(req).session
    return Or(session == NONE, And(books.session(session).there, books.session(session).turn == req))


def _one_turn(books: Books, req: Number, other: Number) -> Formula:
    one, two = books.request(req).session, books.request(other).session
    return Implies(And(one != NONE, one == two), req == other)


def _lent(books: Books, req: Number) -> Formula:
    request = books.request(req)
    has_matched = And(request.session != NONE, Or(request.record != NONE, request.begins != NONE))
    return Implies(has_matched, books.session(request.session).record == NONE)


def _one_borrower(books: Books, req: Number, other: Number) -> Formula:
    one, two = books.request(req).record, books.request(other).record
    return Implies(And(one != NONE, one == two), req == other)


def _counted_once(books: Books, req: Number, session: Number) -> Formula:
    record = books.request(req).record
    return Or(record == NONE, record != books.session(session).record)


def _in_order(books: Books, number: Number) -> Formula:
    record = books.record(number)
    order = And(record.protected >= 0, record.protected <= record.committed, record.committed <= record.allocated)
    return Implies(record.there, And(order, record.protected <= record.written))


def _resumed(books: Books, req: Number) -> Formula:
    request = books.request(req)
    record = books.record(request.record)
    lent = And(Not(request.runs), request.record != NONE)
    return Implies(lent, And(request.begins == record.committed, request.begins == record.allocated))


def _running(books: Books, req: Number) -> Formula:
    request = books.request(req)
    record = books.record(request.record)
    prepared = And(request.seq_len <= request.prepared, request.prepared <= record.allocated)
    launched = And(request.prepared == 0, request.seq_len <= record.written)
    extended = And(request.seq_len >= 1, record.protected <= request.seq_len, request.seq_len <= record.committed)
    runs = And(request.begins == NONE, request.ran, extended)
    waits = And(request.begins >= NONE, request.prepared == 0)
    return If(request.runs, And(runs, Or(prepared, launched)), waits)


def _history(books: Books, number: Number) -> Number:
    """The tokens with which a session's next run begins: those of its turn if that has run, otherwise its history."""
    session = books.session(number)
    turn = books.request(session.turn)
    return If(And(session.turn != NONE, turn.ran), turn.tokens, session.tokens)


def _saved(books: Books, number: Number) -> Formula:
    """A slot's record commits only tokens of its session that are written."""
    record = books.record(number)
    session = books.session_of(number)
    waits = And(record.there, session != NONE, Or(record.turn == NONE, Not(books.request(record.turn).runs)))
    return Implies(waits, And(record.committed <= record.written, record.committed <= _history(books, session)))


def _grows(books: Books, number: Number) -> Formula:
    """A request that continues or restarts with a record has at least one token more than the protected ones."""
    record = books.record(number)
    session = books.session_of(number)
    goes_on = Or(record.turn == NONE, record.protected < books.request(record.turn).tokens)
    begins_again = Or(session == NONE, record.protected < _history(books, session))
    return Implies(record.there, And(goes_on, begins_again))


def _unfinished(books: Books, req: Number) -> Formula:
    request = books.request(req)
    record = books.record(request.record)
    whole = And(record.committed == request.seq_len, record.allocated == request.seq_len)
    return Implies(request.unfinished, And(request.runs, request.seq_len < request.tokens, whole))


def _same_row(books: Books, row: Number, launch: Number) -> Formula:
    owner = books.owner(row)
    kept = Or(owner == WITHHELD, And(owner >= 1, owner == books.runs_for(row, launch)))
    return Or(books.reads(row, launch) == 0, And(books.reads(row, launch) > 0, kept))


def _same_entries(books: Books, row: Number, launch: Number, position: Number) -> Formula:
    read = And(position >= 0, position < books.reads(row, launch))
    return Implies(read, books.entry(row, position) == books.found(row, launch, position))


def _reads_what_is_there(books: Books, req: Number, launch: Number) -> Formula:
    request = books.request(req)
    record = books.record(request.record)
    return Implies(request.runs, books.reads(record.row, launch) <= record.allocated)


INVARIANTS = (
    Clause(
        "ROW-1",
        "a request's record says whose it is",
        lambda books, req: Or(books.request(req).record == NONE, books.record(books.request(req).record).turn == req),
    ),
    Clause(
        "ROW-1",
        "a slot's record says whose it is",
        lambda books, session: Or(
            books.session(session).record == NONE, books.record(books.session(session).record).slot == session
        ),
    ),
    Clause("ROW-1", "a record has one holder", _holder),
    Clause("ROW-1", "a record's row is marked as its own", _marked),
    Clause("ROW-1", "a row is free, or withheld and read, or a record's", _state_of_a_row),
    Clause(
        "ROW-2",
        "who runs has a record",
        lambda books, req: Implies(books.request(req).runs, books.request(req).record != NONE),
    ),
    Clause(
        "ROW-3",
        "who brings a row has committed KV",
        lambda books, req: Or(books.request(req).record == NONE, books.record(books.request(req).record).committed > 0),
    ),
    Clause("ROW-4", "a request that is gone, or waits without a session, names no record", _nothing_left),
    Clause("ROW-4", "a session that is gone names no record", _nothing_left_of),
    Clause("ROW-4", "a row that a holder names is marked as its own", _own_rows),
    Clause("SESS-1", "a session names its turn", _turn),
    Clause(
        "SESS-1",
        "a turn names its session",
        lambda books, session: Or(
            books.session(session).turn == NONE, books.request(books.session(session).turn).session == session
        ),
    ),
    Clause("SESS-1", "a session has one turn", _one_turn),
    Clause("SESS-3", "the slot of a turn that has matched is empty", _lent),
    Clause("SESS-3", "a record is lent to one request", _one_borrower),
    Clause("SESS-3", "a record that a request has is in no slot", _counted_once),
    Clause(
        "SESS-4",
        "a session that is closing has a turn",
        lambda books, session: Implies(books.session(session).closing, books.session(session).turn != NONE),
    ),
    Clause(
        "SESS-6",
        "a turn is no shorter than the history",
        lambda books, req: Or(
            books.request(req).session == NONE,
            books.request(req).tokens >= books.session(books.request(req).session).tokens,
        ),
    ),
    Clause("LEN-1", "the lengths are in order", _in_order),
    Clause("LEN-1", "who runs has written, or prepared, up to its last extend", _running),
    Clause("LEN-1", "what is saved is written, and of tokens that the client got", _saved),
    Clause("LEN-3", "tokens go on past what is protected", _grows),
    Clause("TAIL-1", "a lent record has nothing past where its turn begins", _resumed),
    Clause("BATCH-2", "who is in the middle of its prefill runs, and has no more than its chunks", _unfinished),
    Clause(
        "BATCH-2",
        "one request is in the middle of its prefill",
        lambda books, req, other: Implies(
            And(books.request(req).unfinished, books.request(other).unfinished), req == other
        ),
    ),
    Clause("RACE-1", "a row that a launch reads is withheld, or still of whom the launch runs for", _same_row),
    Clause("RACE-1", "what a launch reads of a row stands there still", _same_entries),
    Clause("RACE-1", "no launch reads past what its request has", _reads_what_is_there),
)
"""Clauses that hold before and after each operation."""


def _stays(both: tuple[Books, Books], number: Number) -> Formula:
    before, after = both
    old, new = before.record(number), after.record(number)
    stays = And(old.there, new.there)
    return Implies(stays, And(old.row == new.row, before.session_of(number) == after.session_of(number)))


def _goes_on(both: tuple[Books, Books], req: Number) -> Formula:
    before, after = both
    old, new = before.request(req), after.request(req)
    return Implies(And(old.runs, new.runs), old.record == new.record)


def _waits(both: tuple[Books, Books], number: Number) -> Formula:
    before, after = both
    old, new = before.session(number), after.session(number)
    on = And(new.there, new.closing, new.turn == old.turn)
    return Implies(And(old.there, old.closing), Or(on, And(Not(new.there), after.request(old.turn).tokens == 0)))


def _with_its_turn(both: tuple[Books, Books], number: Number) -> Formula:
    before, after = both
    record = after.record(number)
    gone = And(before.record(number).there, Not(after.session(before.session_of(number)).there))
    return Implies(And(gone, before.session_of(number) != NONE), Not(record.there))


KEPT = (
    Clause("ROW-2", "a record keeps its row, and its session", _stays),
    Clause("ROW-2", "who goes on keeps its record", _goes_on),
    Clause(
        "SESS-4",
        "a session that is closing goes with its turn, not before",
        _waits,
    ),
    Clause("SESS-4", "a session that goes leaves no record", _with_its_turn),
)
"""Clauses on the books before and after an operation, which each operation keeps."""


def same(one: Books, two: Books) -> Formula:
    """Whether two books have the same requests, sessions, records and owners of rows."""
    rows = every(lambda row: one.owner(row) == two.owner(row))
    return And(rows, *(_same(getattr(one, what), getattr(two, what)) for what in ("request", "session", "record")))


def _same(one: Callable[[Number], Any], two: Callable[[Number], Any]) -> Formula:
    names = [part.name for part in fields(one(NONE))]
    return every(lambda number: And(*(getattr(one(number), name) == getattr(two(number), name) for name in names)))
