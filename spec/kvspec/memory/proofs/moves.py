"""Operations of `kvspec.model`, as their effects on requests, sessions, records and rows.

A move has preconditions (without them the operation is refused, or has no such arguments), gives the books after it,
and may make further promises. Operations that are not here do not change the books.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from z3 import And, If, Implies, Not, Or  # type: ignore[import-untyped]

from kvspec.memory.proofs.books import Books, Record, Request, Session, same
from kvspec.memory.proofs.page import Clause
from kvspec.memory.proofs.terms import NONE, Formula, Map, Map2, Number, Set, among, choose, every, image, put
from kvspec.ownership import FREE, WITHHELD


@dataclass(frozen=True)
class Move:
    """An operation that is carried out."""

    asked: list[tuple[str, Formula]]
    """The preconditions, each with the rule by which the operation is otherwise refused."""
    after: Books
    due: list[Clause] = field(default_factory=list)
    """Its further promises."""


def _least(one: Number, other: Number) -> Number:
    return If(one < other, one, other)


def _forget(books: Books, record: Number) -> Books:
    """Drop a record, if there is one. Its row stays withheld while a launch reads it."""
    row = books.record(record).row
    let_go = replace(books, owner=put(books.owner, row, If(books.is_read(row), WITHHELD, FREE)))
    gone = replace(let_go, record=put(let_go.record, record, Record()))
    return choose(record == NONE, books, gone)  # type: ignore[no-any-return]


def _rest(books: Books, req: Number, cut: Formula) -> Books:
    """Move a turn's record to its session's slot, cut to the tokens that count."""
    request = books.request(req)
    record = books.record(request.record)
    committed = _least(record.committed, _least(request.tokens, record.written))
    allocated = If(cut, _least(record.allocated, request.tokens), record.allocated)
    after = books.with_record(request.record, turn=NONE, slot=request.session, committed=committed, allocated=allocated)
    return after.with_session(request.session, record=request.record)


def _saves(books: Books, after: Books, req: Number) -> Clause:
    """A slot has all written tokens of its turn, and no fewer."""
    request = books.request(req)
    record, saved = books.record(request.record), after.record(request.record)
    least = Or(*(saved.committed == length for length in (record.committed, request.tokens, record.written)))
    due = Implies(saved.slot != NONE, And(least, saved.committed <= record.committed))
    return Clause("SESS-2", "a slot has all of its turn that counts", lambda _: due)


def open_session(books: Books, session: Number) -> Move:
    """A session begins."""
    asked = [("OP-1", And(session != NONE, Not(books.session(session).there)))]
    return Move(asked, replace(books, session=put(books.session, session, Session(True))))


def submit(books: Books, req: Number, session: Number, tokens: Number) -> Move:
    """A request arrives, as a session's turn or alone."""
    one = books.session(session)
    alone = session == NONE
    asked = [
        ("OP-1", And(req != NONE, books.request(req).tokens == 0, tokens >= 1)),
        ("OP-1", Or(alone, And(one.there, Not(one.closing)))),
        ("SESS-1", Or(alone, one.turn == NONE)),
        ("SESS-6", Or(alone, tokens >= one.tokens)),
    ]
    after = replace(books, request=put(books.request, req, Request(tokens, session)))
    return Move(asked, choose(alone, after, after.with_session(session, turn=req)))


def _match(books: Books, req: Number, back: Number, found: Number) -> tuple[Number, Number, Books]:
    """The existing record or `NONE`, the position at which the turn would begin, and the books after the match."""
    request = books.request(req)
    slot = If(request.session == NONE, NONE, books.session(request.session).record)
    number = If(request.record != NONE, request.record, slot)
    record = books.record(number)
    begins = _least(record.committed, back)
    without = books.with_request(req, record=NONE, begins=found)
    given_up = _forget(without.with_session(request.session, record=NONE), number)
    lent = books.with_request(req, record=number, begins=begins).with_session(request.session, record=NONE)
    lent = lent.with_record(
        number, turn=req, slot=NONE, committed=begins, allocated=begins, written=_least(record.written, begins)
    )
    return number, begins, choose(number == NONE, without, choose(begins <= 0, given_up, lent))


def match_prefix(books: Books, req: Number, back: Number, found: Number) -> Move:
    """A slot's record is lent, at most up to `back`; without a record `found` tokens are in the store.

    A turn goes back to its tokens less one, or, with recurrent states, to a kept border, or gives up the record.
    """
    request = books.request(req)
    number, begins, after = _match(books, req, back, found)
    record = books.record(number)
    last = request.tokens - 1
    border = And(back >= 0, back <= last, Or(back == 0, back >= record.protected))
    asked = [
        ("OP-1", And(request.tokens > 0, Not(request.runs))),
        ("MAMBA-3", Implies(number != NONE, Or(back == last, border))),
        ("STORE-4", And(found >= 0, found <= last)),
    ]
    lent = after.request(req).record != NONE
    answer = after.request(req).begins
    at_its_end = Implies(And(lent, back == last), answer == _least(record.committed, last))
    again = _match(after, req, last, found)[2]
    due = [
        Clause(
            "LEN-3",
            "a turn begins no lower than what is protected",
            lambda _: Implies(lent, begins >= record.protected),
        ),
        Clause("SESS-2", "a turn begins where its session ends, or before its last token", lambda _: at_its_end),
        Clause("SESS-2", "a further match changes nothing", lambda _: same(after, again)),
    ]
    return Move(asked, after, due)


def extend(
    books: Books,
    batch: Set,
    seq_len: Map,
    new_record: Map,
    of_record: Map,
    new_row: Map,
    of_row: Map,
    content: Map2,
) -> Move:
    """A batch of any size is prefilled. Requests without a row get a record with a new row; `of_` are the inverses."""
    request, record = books.request, books.record
    fresh = lambda req: And(batch(req), request(req).record == NONE)
    starts = lambda req: If(request(req).runs, request(req).seq_len, request(req).begins)
    ends_early = lambda req: seq_len(req) < request(req).tokens
    may_begin = lambda req: And(request(req).tokens > 0, request(req).begins != NONE)
    brings = lambda req: And(batch(req), Not(request(req).runs), request(req).record != NONE)
    unread = lambda req, launch: books.reads(record(request(req).record).row, launch) <= request(req).begins
    left = lambda req: If(batch(req), ends_early(req), request(req).unfinished)
    both = lambda req, other: And(left(req), left(other))
    empty = lambda req: And(Not(record(new_record(req)).there), new_record(req) >= 1)
    unused = lambda req: And(books.exists(new_row(req)), books.owner(new_row(req)) == FREE)
    asked = [
        ("OP-1", every(batch, lambda req: If(request(req).runs, request(req).unfinished, may_begin(req)))),
        ("LAUNCH-1", every(batch, lambda req: request(req).prepared == 0)),
        ("OP-1", every(batch, lambda req: And(starts(req) < seq_len(req), seq_len(req) <= request(req).tokens))),
        ("RACE-1", every(lambda req, _: brings(req), unread)),
        ("BATCH-2", every(both, lambda req, other: req == other)),
        ("ROW-1", every(fresh, lambda req: And(unused(req), of_row(new_row(req)) == req))),
        ("OP-1", every(fresh, lambda req: And(empty(req), of_record(new_record(req)) == req))),
    ]

    def extended(req: Number) -> Request:
        was, end = request(req), seq_len(req)
        number = If(was.record == NONE, new_record(req), was.record)
        on = replace(was, record=number, runs=True, ran=True, begins=NONE)
        return replace(on, seq_len=end, unfinished=ends_early(req), prepared=end)

    def begun(number: Number) -> Record:
        req = of_record(number)
        return Record(req, NONE, new_row(req), request(req).begins, seq_len(req), seq_len(req), request(req).begins)

    def grown(number: Number) -> Record:
        end = seq_len(record(number).turn)
        return replace(record(number), committed=end, allocated=end)

    def written(row: Number, position: Number) -> Formula:
        """The written positions: of a new row all, of an existing row those from where its request goes on."""
        req = record(books.owner(row)).turn
        goes_on = And(books.owner(row) >= 1, req != NONE, batch(req), starts(req) <= position, position < seq_len(req))
        return Or(goes_on, And(given(row), position >= 0, position < seq_len(of_row(row))))

    made, given = image(fresh, new_record, of_record), image(fresh, new_row, of_row)
    grows = lambda number: And(record(number).turn != NONE, batch(record(number).turn))
    after = replace(
        books,
        request=among(batch, extended, request),
        record=among(made, begun, among(grows, grown, record)),
        owner=among(given, lambda row: new_record(of_row(row)), books.owner),
        entry=among(written, content, books.entry),
    )
    row_of = lambda req: after.record(after.request(req).record).row
    all_of_it = every(batch, lambda req: after.owner(row_of(req)) == after.request(req).record)
    return Move(asked, after, [Clause("ROW-3", "all of a batch have their rows", lambda _: all_of_it)])


def decode(books: Books, req: Number, n: Number, ahead: Number, content: Map) -> Move:
    """Make room for one step, past the positions of the steps `ahead` of it."""
    request = books.request(req)
    record = books.record(request.record)
    asked = [
        ("OP-1", And(request.runs, Not(request.unfinished), request.prepared == 0, n >= 1)),
        ("SPEC-1", And(ahead >= 0, Or(n > 1, ahead == 0))),
    ]
    room = record.committed + ahead + n
    new = lambda row, position: And(row == record.row, position >= record.allocated, position < room)
    after = books.with_record(
        request.record,
        committed=If(n == 1, room, record.committed),
        allocated=If(room > record.allocated, room, record.allocated),
    ).with_request(req, prepared=room)
    return Move(asked, replace(after, entry=among(new, lambda _, position: content(position), books.entry)))


def launch(books: Books, req: Number, launch: Number) -> Move:
    """The prepared positions of a request are launched, perhaps with other requests. The launch reads the row."""
    request = books.request(req)
    row = books.record(request.record).row
    asked = [("OP-1", And(request.prepared != 0, books.reads(row, launch) == 0))]
    here = lambda some_row, other: And(some_row == row, other == launch)
    after = books.with_request(req, prepared=0).with_record(request.record, written=request.prepared)
    return Move(
        asked,
        replace(
            after,
            reads=among(here, lambda *_: request.prepared, books.reads),
            runs_for=among(here, lambda *_: request.record, books.runs_for),
            found=among(
                lambda some_row, other, _: here(some_row, other),
                lambda some_row, _, position: books.entry(some_row, position),
                books.found,
            ),
        ),
    )


def complete(books: Books, launch: Number, sampled: Set) -> Move:
    """A launch completes: rows that were withheld only for it are free, and sampled requests get a token."""
    asked = [("OP-1", every(sampled, lambda req: books.request(req).tokens > 0))]
    after = replace(books, reads=among(lambda _, other: other == launch, lambda *_: 0, books.reads))
    flushed = lambda row: And(books.owner(row) == WITHHELD, Not(after.is_read(row)))
    more = lambda req: replace(books.request(req), tokens=books.request(req).tokens + 1)
    owner, request = among(flushed, lambda _: FREE, books.owner), among(sampled, more, books.request)
    return Move(asked, replace(after, owner=owner, request=request))


def verify(books: Books, req: Number, accepted: Number, kept: Number, behind: Number) -> Move:
    """A speculative step commits the accepted positions; steps after it have written `behind` more."""
    request = books.request(req)
    record = books.record(request.record)
    committed = record.committed + accepted
    asked = [
        ("SPEC-1", And(request.runs, Not(request.unfinished), accepted >= 1, committed <= record.allocated)),
        ("SPEC-1", And(kept >= 1, kept <= accepted, behind >= 0)),
        ("LAUNCH-1", request.prepared == 0),
    ]
    after = books.with_request(req, tokens=request.tokens + kept)
    return Move(asked, after.with_record(request.record, committed=committed, written=committed + behind))


def cache_unfinished(books: Books, req: Number, reached: Number) -> Move:
    """The store owns the published pages of a request, up to `reached`."""
    request = books.request(req)
    protected = books.record(request.record).protected
    asked = [
        ("OP-1", request.runs),
        ("LAUNCH-1", request.prepared == 0),
        ("CHUNK-1", Or(request.unfinished, request.tokens > request.seq_len)),
        ("STORE-5", Or(reached == protected, And(reached > protected, reached <= request.seq_len))),
    ]
    return Move(asked, books.with_record(request.record, protected=reached))


def finish(books: Books, req: Number, cut: Formula) -> Move:
    """A request finishes. Its session's slot gets the record, perhaps cut to its tokens, or the record is released."""
    request = books.request(req)
    session = books.session(request.session)
    asked = [("OP-1", And(request.runs, Not(request.unfinished))), ("LAUNCH-1", request.prepared == 0)]
    released = _forget(books, request.record)
    closed = replace(released, session=put(released.session, request.session, Session()))
    saved = _rest(books, req, cut).with_session(request.session, turn=NONE, tokens=request.tokens)
    after = choose(request.session == NONE, released, choose(session.closing, closed, saved))
    done = replace(after, request=put(after.request, req, Request()))
    return Move(asked, done, [_saves(books, done, req)])


def retract(books: Books, req: Number, cut: Formula) -> Move:
    """A request waits again. Its session's slot gets the record, or the record is released."""
    request = books.request(req)
    after = choose(request.session == NONE, _forget(books, request.record), _rest(books, req, cut))
    waits = after.with_request(req, runs=False, record=NONE, begins=NONE, unfinished=False, prepared=0)
    return Move([("OP-1", request.runs)], waits, [_saves(books, waits, req)])


def abort(books: Books, req: Number) -> Move:
    """A request is aborted. If it is a turn that ran, or of a closing session, its record is dropped."""
    request = books.request(req)
    session = books.session(request.session)
    alone = request.session == NONE
    number = If(request.record != NONE, request.record, If(alone, NONE, session.record))
    doomed = Or(request.ran, And(Not(alone), session.closing))
    given_back = books.with_record(number, turn=NONE, slot=request.session)
    released = choose(doomed, _forget(books, number), choose(number == NONE, books, given_back))
    closed = replace(released, session=put(released.session, request.session, Session()))
    idle = released.with_session(request.session, turn=NONE, record=If(doomed, NONE, number))
    after = choose(alone, released, choose(session.closing, closed, idle))
    return Move([("OP-1", request.tokens > 0)], replace(after, request=put(after.request, req, Request())))


def close_session(books: Books, session: Number) -> Move:
    """A session ends, or closes when its turn in flight ends."""
    one = books.session(session)
    released = _forget(books, one.record)
    gone = replace(released, session=put(released.session, session, Session()))
    after = choose(one.turn != NONE, books.with_session(session, closing=True), gone)
    frees_nothing = every(lambda number: Or(Not(books.record(number).there), after.record(number).there))
    due = Clause("SESS-4", "nothing is freed under a turn", lambda _: Or(one.turn == NONE, frees_nothing))
    return Move([("OP-1", And(one.there, Not(one.closing)))], after, [due])


def preempt(books: Books, session: Number) -> Move:
    """The record in a session's slot is released."""
    record = books.session(session).record
    asked = [("OP-1", And(books.session(session).there, record != NONE))]
    return Move(asked, _forget(books, record).with_session(session, record=NONE))


MOVES: dict[str, Callable[..., Move]] = {
    move.__name__: move
    for move in (
        open_session,
        submit,
        match_prefix,
        extend,
        decode,
        launch,
        complete,
        verify,
        cache_unfinished,
        finish,
        retract,
        abort,
        close_session,
        preempt,
    )
}
