"""The steps of one operation of the partition put to z3, in a process of their own.

    python -m kvconform.proving.partition extend

Each verdict is one line of JSON on standard output.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import product
from time import perf_counter
from typing import Any, get_type_hints

import msgspec
import z3  # type: ignore[import-untyped]

from kvconform.proving.prove import StepOutcome, StepVerdict
from kvspec.model.induction import FOREST, INITIALLY, INVARIANTS, Clause, goals
from kvspec.model.owners import (
    FREE,
    HELD,
    LENT,
    NONE,
    OF_PREFIX,
    OF_RECORD,
    OF_REQUEST,
    PRIVATE,
    RECORD,
    SLOT,
    STORE,
    WITHHELD,
    Partition,
    Step,
    Steps,
)
from kvspec.model.partition import OPERATIONS, initial

INITIAL = "initial"
"""Stands for the initial state among the names of operations."""

SECONDS = 60
"""How long z3 may take for one clause."""

LARGEST_SCOPE = 3
"""Counterexamples are looked for among so many pages, rows, records and so on."""

_SORTS = {"n": z3.IntSort(), "f": z3.BoolSort()}


def prove(name: str, operation: Callable[..., Steps]) -> Iterator[StepVerdict]:
    """Put every clause of every way of an operation to z3, for any number of everything."""
    before = _unknown_state(None)
    known = [_always(clause, before) for clause in (*FOREST, *INVARIANTS)]
    for way, step in operation(before, **_unknown_arguments(operation)).items():
        hypotheses = [*known, *step.guard.values()]
        yield from _verdicts(name, way, goals(before, step), step.after, hypotheses, operation)


def prove_initial() -> Iterator[StepVerdict]:
    """Show that the invariants hold initially."""
    state = initial(_unknown_state(None))
    hypotheses = [_always(clause, state) for clause in FOREST]
    yield from _verdicts(INITIAL, "", (*INVARIANTS, *INITIALLY), state, hypotheses, None)


def _verdicts(
    name: str,
    way: str,
    clauses: Sequence[Clause],
    after: Partition,
    hypotheses: Sequence[Any],
    operation: Callable[..., Steps] | None,
) -> Iterator[StepVerdict]:
    """One verdict a rule; for what does not follow from the hypotheses, a counterexample is looked for."""
    for rule in dict.fromkeys(clause.rule for clause in clauses):
        started = perf_counter()
        left = [clause.what for clause in clauses if clause.rule == rule and not _follows(clause, after, hypotheses)]
        found = counterexample(operation, way, rule) if left and operation is not None else ""
        outcome: StepOutcome = "refuted" if found else "unproved" if left else "proved"
        seconds = round(perf_counter() - started, 3)
        yield StepVerdict(name, way, rule, outcome, found or "; ".join(left), seconds)


def _follows(clause: Clause, after: Partition, hypotheses: Sequence[Any]) -> bool:
    solver = z3.Solver()
    solver.set("timeout", SECONDS * 1000)
    solver.add(*hypotheses)
    solver.add(z3.Not(clause.body(after, *_numbers(clause))))
    return bool(solver.check() == z3.unsat)


def _numbers(clause: Clause) -> list[Any]:
    """The numbers for which a clause is to fail."""
    return [z3.Int(f"number {place}") for place in range(clause.variables)]


def _unknown_state(domain: Sequence[int] | None) -> Partition:
    """Any state at all."""
    hints = get_type_hints(Partition, include_extras=True)
    return Partition(
        **{part.name: _unknown(part.name, hints[part.name]) for part in fields(Partition) if part.name != "domain"},
        domain=domain,
    )


def _unknown_arguments(operation: Callable[..., Steps]) -> dict[str, Any]:
    hints = get_type_hints(operation, include_extras=True)
    return {name: _unknown(f"the {name}", hints[name]) for name in list(inspect.signature(operation).parameters)[1:]}


def _unknown(name: str, annotation: Any) -> Any:
    """A z3 constant or function of the sorts that the annotation spells."""
    (letters,) = annotation.__metadata__
    sorts = [_SORTS[letter] for letter in letters]
    return z3.Function(name, *sorts) if len(sorts) > 1 else z3.Const(name, sorts[0])


def _always(clause: Clause, state: Partition) -> Any:
    numbers = [z3.FreshInt() for _ in range(clause.variables)]
    body = clause.body(state, *numbers)
    return z3.ForAll(numbers, body) if numbers else body


def counterexample(operation: Callable[..., Steps], way: str, rule: str | None = None) -> str:
    """A small state in which all invariants hold, and a step after which this rule, or any, is broken; "" for none.

    Every number of such a state lies in a small scope, `NONE` included, so each `for all` is a plain conjunction and
    z3's answer is exact.
    """
    for size in range(1, LARGEST_SCOPE + 1):
        scope = range(NONE, size)
        before = _unknown_state(scope)
        arguments = _unknown_arguments(operation)
        step = operation(before, **arguments)[way]
        solver = z3.Solver()
        solver.add(*_scoped(before, arguments, scope))
        for clause in (*FOREST, *INVARIANTS):
            solver.add(*(clause.body(before, *numbers) for numbers in product(scope, repeat=clause.variables)))
        solver.add(*step.guard.values())
        for clause in goals(before, step):
            if rule not in (None, clause.rule):
                continue
            numbers = _numbers(clause)
            solver.push()
            solver.add(*(z3.And(number >= NONE, number < size) for number in numbers))
            solver.add(z3.Not(clause.body(step.after, *numbers)))
            if solver.check() == z3.sat:
                return _told(clause, solver.model(), before, step, arguments, scope)
            solver.pop()
    return ""


def _scoped(before: Partition, arguments: dict[str, Any], scope: range) -> Iterator[Any]:
    """All unknown numbers are in the scope. Pages are numbered from 1, rows from 0."""
    values = [getattr(before, part.name) for part in fields(before) if part.name != "domain"]
    for value in (*values, *arguments.values()):
        function = isinstance(value, z3.FuncDeclRef)
        if (value.range() if function else value.sort()) != z3.IntSort():
            continue
        for numbers in product(scope, repeat=value.arity() if function else 0):
            term = value(*numbers) if function else value
            yield z3.And(term >= scope.start, term < scope.stop)
    sizes = before.num_pages, before.num_rows, before.num_window_pages, before.num_states
    yield from (size >= 0 for size in sizes)


def _told(clause: Clause, model: Any, before: Partition, step: Step, arguments: dict[str, Any], scope: range) -> str:
    given = [
        f"{name} = {model.eval(value, model_completion=True)}"
        for name, value in arguments.items()
        if not isinstance(value, z3.FuncDeclRef)
    ]
    numbers = [str(model.eval(number, model_completion=True)) for number in _numbers(clause)]
    return (
        f"{clause.rule}: {clause.what}: not so of {', '.join(numbers) or 'the sums'}\n"
        f"  with {', '.join(given) or 'no arguments'}\n"
        f"  before: {_state_told(model, before, scope)}\n"
        f"  after: {_state_told(model, step.after, scope)}"
    )


def _state_told(model: Any, state: Partition, scope: range) -> str:
    """Who owns what, in words."""

    def value(term: Any) -> int:
        return term if isinstance(term, int) else int(model.eval(term, model_completion=True).as_long())

    def holds(formula: Any) -> bool:
        return formula if isinstance(formula, bool) else z3.is_true(model.eval(formula, model_completion=True))

    told = []
    for page in range(1, value(state.num_pages) + 1):
        kind, owner = value(state.page_kind(page)), value(state.page_owner(page))
        whose = {FREE: "free", STORE: f"of prefix {owner}", PRIVATE: f"of record {owner}"}[kind]
        side = value(state.side(page))
        told.append(f"page {page} {whose}{'' if side == NONE else f', before window page {side}'}")
    for side in range(1, value(state.num_window_pages) + 1):
        page = value(state.behind(side))
        told.append(f"window page {side} {'free' if page == NONE else f'behind page {page}'}")
    for slot in range(1, value(state.num_states) + 1):
        kind, owner = value(state.state_kind(slot)), value(state.state_owner(slot))
        kinds = {FREE: "free", OF_PREFIX: "of prefix", OF_RECORD: "of record", OF_REQUEST: "of request"}
        told.append(f"state slot {slot} {kinds[kind]}{'' if kind == FREE else f' {owner}'}")
    for row in range(value(state.num_rows)):
        kind, owner = value(state.row_kind(row)), value(state.row_of(row))
        told.append(f"row {row} {({FREE: 'free', RECORD: f'of record {owner}', WITHHELD: 'withheld'})[kind]}")
    for prefix in scope:
        if holds(state.cached(prefix)):
            slot = value(state.state(prefix))
            told.append(
                f"prefix {prefix} cached in page {value(state.page(prefix))}"
                f"{'' if slot == NONE else f', its state in slot {slot}'}"
            )
    for record in scope:
        if holds(state.live(record)):
            holders = {HELD: "held by request", LENT: "lent to request", SLOT: "in the slot of session"}
            table = [value(state.table(record, index)) for index in range(value(state.last(record)))]
            told.append(
                f"record {record} {holders[value(state.role(record))]} {value(state.holder(record))}, "
                f"row {value(state.row(record))}, pages {table} after {value(state.first(record))} of the store, "
                f"cursor {value(state.cursor(record))}"
            )
    return "; ".join(told) or "nothing"


def main() -> None:
    """Prove what the command line names."""
    (name,) = sys.argv[1:]
    for verdict in prove_initial() if name == INITIAL else prove(name, OPERATIONS[name]):
        print(msgspec.json.encode(verdict).decode(), flush=True)


if __name__ == "__main__":
    main()
