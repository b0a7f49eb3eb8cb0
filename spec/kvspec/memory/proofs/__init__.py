"""Proofs of the law, and of what each operation of the model means by it, for any size.

terms       numbers and formulas, of z3 or, where tests hold the same text against the law itself, plain ones
page        one page: what each event does to it, when it is forbidden, and what always holds
pool        a pool and the policy above it, and what always holds between the two
steps       events over sets of pages, and what the policy remembers of them
operations  operations as lists of steps, in tables

`kvspec prove` puts all of it to z3. What is proved: each event keeps what `page.INVARIANTS` says of a page; each step
is allowed, and keeps what `pool.INVARIANTS` says of a pool, if these held before and so did what the step asks
for; and each operation's list gives every step what that asks for. So no event that an operation means is forbidden.

What is assumed: a sum of counts is 0 if and only if each count is. What is left to other checks: which positions an
operation means (`kvspec.lengths`, by CrossHair), labels that are not told, and order: on one stream every use is
ordered, and for several `kvcheck`, which has clocks, is held against the law here. How many have locked a page
(STORE-2) is proved as its references, which are the tables' entries. Not proved, but checked at every step of walks,
explorations and vectors: who is whose turn and which slot is lent (SESS-1, SESS-3, SESS-4), and where the cursor
stands (SWA-3).
"""
