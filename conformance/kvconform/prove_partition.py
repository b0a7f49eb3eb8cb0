"""One operation's steps put to z3: are the invariants of the partition inductive, for any number of everything?"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from time import perf_counter
from typing import Any, get_type_hints

import z3

from kvspec.model.induction import FOREST, INVARIANTS, Clause, counting
from kvspec.model.owners import Partition, Step, all_of
from kvspec.model.partition import OPERATIONS

SORTS = {"n": z3.IntSort(), "f": z3.BoolSort()}


def unknown(name: str, annotation: Any) -> Any:
    (letters,) = annotation.__metadata__
    return z3.Function(name, *(SORTS[letter] for letter in letters)) if len(letters) > 1 else z3.Const(name, SORTS[letters])


def unknown_state(domain=None) -> Partition:
    hints = get_type_hints(Partition, include_extras=True)
    return Partition(**{f.name: unknown(f.name, hints[f.name]) for f in fields(Partition) if f.name != "domain"}, domain=domain)


def steps_of(operation, before):
    hints = get_type_hints(operation, include_extras=True)
    args = {n: unknown("." + n, hints[n]) for n in list(inspect.signature(operation).parameters)[1:]}
    return operation(before, **args)


def always(clause: Clause, state: Partition) -> Any:
    ns = [z3.FreshInt() for _ in range(clause.variables)]
    body = clause.body(state, *ns)
    return z3.ForAll(ns, body) if ns else body


def main() -> None:
    only = sys.argv[1:]
    for name, op in OPERATIONS.items():
        if only and name not in only:
            continue
        before = unknown_state()
        hyp = [always(c, before) for c in (*FOREST, *INVARIANTS)]
        for case, step in steps_of(op, before).items():
            for clause, state in [*((c, step.after) for c in INVARIANTS), *((c, step.after) for c in counting(before, step))]:
                t = perf_counter()
                s = z3.Solver()
                s.set("timeout", 10000)
                s.add(hyp)
                s.add(before.num_pages >= 0, before.num_rows >= 0)
                s.add(list(step.guard.values()))
                ns = [z3.Int(f"!{i}") for i in range(clause.variables)]
                s.add(z3.Not(clause.body(state, *ns)))
                r = s.check()
                dt = perf_counter() - t
                if r != z3.unsat or dt > 1:
                    print(name, case, clause.rule, clause.what, r, f"{dt:.2f}", flush=True)
        print("done", name, flush=True)


main()
