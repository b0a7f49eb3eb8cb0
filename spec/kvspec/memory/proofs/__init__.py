"""Proofs of the law, and of what each operation of the model means by it, for any size.

terms       connectives over z3 terms that fold constants, so that tests can hold the same text against the law itself
page        one page: what each event does to it, when it is forbidden, and what always holds
operations  a pool and the policy above it: events over sets of pages, steps, and operations as lists of steps

`kvspec prove` puts all of it to z3. What is proved: each event keeps what `page.INVARIANTS` says of a page; each step is
allowed, and keeps what `operations.INVARIANTS` says of a pool, if these held before and so did what the step asks for;
and each operation's list gives every step what that asks for. So no event that an operation means is forbidden.

What is assumed: a sum of counts is 0 if and only if each count is; a set in which only one is counted is as large as
that one. What is left to other checks: which positions an operation means (`kvspec.lengths`, by CrossHair), labels that
are not told, and order: on one stream every use is ordered, and two streams are explored and compared with a slow law.
"""
