"""Proofs of the law, and of what each operation of the model means by it, for any size.

terms       numbers and formulas, of z3 or, where tests hold the same text against the law itself, plain ones
page        one page: what each event does to it, when it is forbidden, and what always holds
pool        a pool and the policy above it, and what always holds between the two
steps       events over sets of pages, and what the policy remembers of them
operations  operations as lists of steps, in tables
books       requests, sessions, records and rows, and what always holds of them
moves       operations as what they do to the books

`kvspec prove` puts all of it to z3. What is proved: each event keeps what `page.INVARIANTS` says of a page; each step
is allowed, and keeps what `pool.INVARIANTS` says of a pool, if these held before and so did what the step asks
for; and each operation's list gives every step what that asks for. So no event that an operation means is forbidden.

Beside it stand the books, in which pages are only lengths: each move keeps `books.INVARIANTS` and `books.KEPT` and what
it promises itself, in any number of requests, sessions, rows and launches. So the rules of rows, of turns and lends, of
one unfinished prefill and of rows under launches hold whatever happens (ROW, SESS-1 to SESS-4, LEN-3, BATCH-2, RACE-1).

What is assumed: a sum of counts is 0 if and only if each count is. What is left to other checks: which positions an
operation means (`kvspec.lengths`, by CrossHair), labels that are not told, and order: on one stream every use is
ordered, and for several `kvcheck`, which has clocks, is held against the law here. How many have locked a page
(STORE-2) is proved as its references, which are the tables' entries. Not proved, but checked at every step of walks,
explorations and vectors: which tokens a turn has (SESS-6, but for their number), how far a recurrent state lets a turn
go back (MAMBA-3), that a verify accepts no more than was launched (SPEC-1), and where the cursor stands (SWA-3).
"""
