"""Mistakes in moves: the move, what is right, what is wrong, and the clause that is then not so."""

MISTAKES = (
    ("open_session", ", Not(books.session(session).there)", "", "a session names its turn"),
    ("submit", '        ("SESS-1", Or(alone, one.turn == NONE)),\n', "", "a session has one turn"),
    (
        "match_prefix",
        "_forget(without.with_session(request.session, record=NONE), number)",
        "without.with_session(request.session, record=NONE)",
        "a record has one holder",
    ),
    (
        "extend",
        "books.owner(new_row(req)) == FREE",
        "books.owner(new_row(req)) <= WITHHELD",
        "a row that a launch reads is withheld, or still of whom the launch runs for",
    ),
    (
        "extend",
        "among(given, lambda row: new_record(of_row(row)), books.owner)",
        "books.owner",
        "all of a batch have their rows",
    ),
    ("extend", "And(unused(req), of_row(new_row(req)) == req)", "unused(req)", "a record's row is marked as its own"),
    (
        "decode",
        "position >= record.allocated, position < room",
        "position >= record.protected, position < room",
        "what a launch reads of a row stands there still",
    ),
    (
        "launch",
        "lambda *_: request.prepared, books.reads",
        "lambda *_: request.prepared + 1, books.reads",
        "no launch reads past what its request has",
    ),
    (
        "complete",
        ", Not(after.is_read(row))",
        "",
        "a row that a launch reads is withheld, or still of whom the launch runs for",
    ),
    (
        "complete",
        "among(flushed, lambda _: FREE, books.owner)",
        "books.owner",
        "a row is free, or withheld and read, or a record's",
    ),
    ("verify", ", committed <= record.allocated", "", "the lengths are in order"),
    (
        "finish",
        "If(books.is_read(row), WITHHELD, FREE)",
        "FREE",
        "a row that a launch reads is withheld, or still of whom the launch runs for",
    ),
    (
        "finish",
        "If(books.is_read(row), WITHHELD, FREE)",
        "WITHHELD",
        "a row is free, or withheld and read, or a record's",
    ),
    (
        "finish",
        "_least(record.committed, _least(request.tokens, record.written))",
        "record.protected",
        "a slot has all of its turn that counts",
    ),
    ("finish", "choose(session.closing, closed, saved)", "saved", "a session that is closing has a turn"),
    (
        "finish",
        "return after.with_session(request.session, record=request.record)",
        "return after",
        "a record has one holder",
    ),
    ("retract", "runs=False, record=NONE", "runs=False", "a record that a request has is in no slot"),
    ("abort", "record=If(doomed, NONE, number)", "record=session.record", "a record has one holder"),
    (
        "abort",
        "choose(doomed, _forget(books, number), ",
        "choose(False, books, ",
        "tokens go on past what is protected",
    ),
    (
        "abort",
        "choose(session.closing, closed, idle)",
        "idle",
        "a session that is closing goes with its turn, not before",
    ),
    (
        "close_session",
        "choose(one.turn != NONE, books.with_session(session, closing=True), gone)",
        "gone",
        "nothing is freed under a turn",
    ),
    (
        "preempt",
        "_forget(books, record).with_session(session, record=NONE)",
        "_forget(books, record)",
        "a row that a holder names is marked as its own",
    ),
)
"""They show in the smallest numbers."""

RARER = (
    ("submit", '        ("SESS-6", Or(alone, tokens >= one.tokens)),\n', "", "a turn is no shorter than the history"),
    (
        "match_prefix",
        "begins=begins).with_session(request.session, record=NONE)",
        "begins=begins)",
        "a record that a request has is in no slot",
    ),
    ("match_prefix", "choose(begins <= 0, given_up, lent)", "lent", "a turn begins no lower than what is protected"),
    (
        "match_prefix",
        "allocated=begins,",
        "allocated=record.allocated,",
        "a lent record has nothing past where its turn begins",
    ),
    ("match_prefix", "If(request.record != NONE, request.record, slot)", "slot", "a further match changes nothing"),
    (
        "extend",
        "If(batch(req), ends_early(req), request(req).unfinished)",
        "And(batch(req), ends_early(req))",
        "one request is in the middle of its prefill",
    ),
    (
        "extend",
        '        ("RACE-1", every(lambda req, _: brings(req), unread)),\n',
        "",
        "what a launch reads of a row stands there still",
    ),
    (
        "extend",
        "If(was.record == NONE, new_record(req), was.record)",
        "new_record(req)",
        "who goes on keeps its record",
    ),
    (
        "cache_unfinished",
        "reached <= request.seq_len",
        "reached <= request.tokens",
        "tokens go on past what is protected",
    ),
    (
        "finish",
        "_least(record.committed, _least(request.tokens, record.written))",
        "record.committed",
        "what is saved is written, and of tokens that the client got",
    ),
    ("retract", "unfinished=False, ", "", "who is in the middle of its prefill runs, and has no more than its chunks"),
)
"""They show in larger numbers only: `make prove` looks for them."""
