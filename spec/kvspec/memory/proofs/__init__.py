"""Proofs of the memory model, and of the memory events of each operation, for any size.

terms       numbers and formulas: z3's, or plain ones when tests compare the same text with the checker
page        one page: the effect of each event, whether it is forbidden, and the invariants
pool        a pool and the policy above it, and the invariants between the two
steps       events over sets of pages, and the policy's state after them
operations  operations as lists of steps, in tables
books       requests, sessions, records and rows, and their invariants
moves       operations as changes of the books

`kvspec prove` has z3 prove all of it: each event keeps `page.INVARIANTS`; each step is allowed and keeps
`pool.INVARIANTS`, if these and the step's preconditions held before; and each operation's list fulfils the
preconditions of every step. So no operation emits a forbidden event.

The books are a second model, in which pages are only lengths. Each move keeps `books.INVARIANTS`, `books.KEPT` and its
own promises, for any number of requests, sessions, rows and launches. So the rules of rows, of turns and lends, of one
unfinished prefill and of rows under launches always hold (ROW, SESS-1 to SESS-4, LEN-3, BATCH-2, RACE-1).

One assumption: a sum of counts is 0 if and only if each count is. Other checks cover the positions of an operation
(`kvspec.lengths`, by CrossHair), labels that are not reported, and order: on one stream every use is ordered, and for
several streams tests compare `kvcheck`, which has clocks, with the plain checker. The number of locks on a page
(STORE-2) is proved as its references, which are the tables' entries. Not proved, but checked at every step of walks,
explorations and vectors: the tokens of a turn (SESS-6, except their number), how far back a recurrent state lets a turn
go (MAMBA-3), that a verify accepts no more than was launched (SPEC-1), and the position of the cursor (SWA-3).
"""
