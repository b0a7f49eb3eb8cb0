"""The law's events, the steps above it and the operations put to z3, in a process of their own.

    python -m kvconform.proving.law                       lists what there is to prove, by kind
    python -m kvconform.proving.law step take publish

Each verdict is one line of JSON on standard output.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from time import perf_counter
from typing import Any, get_type_hints

import msgspec
import z3  # type: ignore[import-untyped]

from kvconform.proving.prove import StepOutcome, StepVerdict
from kvspec.memory.proofs import page, pool
from kvspec.memory.proofs.operations import WAYS, Way, arguments_of
from kvspec.memory.proofs.page import Clause, Page, follows
from kvspec.memory.proofs.pool import INVARIANTS, Memory
from kvspec.memory.proofs.steps import STEPS, Run
from kvspec.memory.proofs.terms import NONE, all_of, every, implies, negation

SECONDS = 30
"""How long z3 may take for one clause. The slowest that is proved needs one."""

LARGEST_SCOPE = 2
"""Counterexamples are looked for among so many pages, holders, indices, keys and slots."""

_SORTS = {"n": z3.IntSort(), "f": z3.BoolSort()}


_COUNTS = ("holds", "pins", "references", "named", "names", "kind", "reads", "readers")
"""What is no page, holder, index, key, slot or label."""


@dataclass(frozen=True)
class Goal:
    """What is to follow, and from what."""

    kind: str
    hypotheses: list[Any]
    clauses: Sequence[Clause]
    about: Any
    """What the clauses are about."""
    unknowns: Sequence[Any]


def unknown(name: str, annotation: Any) -> Any:
    """A z3 constant or function of the sorts that the annotation spells."""
    (letters,) = annotation.__metadata__
    sorts = [_SORTS[letter] for letter in letters]
    return z3.Function(name, *sorts) if len(sorts) > 1 else z3.Const(name, sorts[0])


def unknown_fields(kind: type) -> Any:
    """Any state at all."""
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{part.name: unknown(part.name, hints[part.name]) for part in fields(kind)})


def unknown_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Any arguments besides the first."""
    named = function.arguments if isinstance(function, Way) else arguments_of(function)
    return {name: unknown(f"the {name}", hint) for name, hint in named.items()}


def always(clause: Clause, about: Any) -> Any:
    """The clause for all numbers."""
    return (
        every(lambda *numbers: clause.body(about, *numbers), clause.variables)
        if clause.variables
        else clause.body(about)
    )


def counted(memory: Memory, state: int) -> Iterator[Any]:
    """Counting: a sum is none if and only if each of its parts is. In a small scope the sum itself."""
    yield from _counted(memory.references, lambda *at: memory.holds(*at) + memory.pins(*at), f"references {state}")
    yield from _counted(memory.names, lambda *at: z3.If(memory.named(*at) != 0, 1, 0), f"names {state}")
    yield from _counted(memory.readers, memory.reads, f"readers {state}")


def _counted(whole: Callable[[Any], Any], part: Callable[[Any, Any], Any], name: str) -> Iterator[Any]:
    domain = every.domain
    if domain is not None:
        yield every(lambda number: whole(number) == sum(part(number, other) for other in domain))
        return
    somebody = z3.Function(f"somebody of the {name}", z3.IntSort(), z3.IntSort())
    yield every(
        lambda number: z3.And(whole(number) >= 0, implies(whole(number) > 0, part(number, somebody(number)) != 0))
    )
    yield every(lambda number, other: implies(whole(number) == 0, part(number, other) == 0), 2)


def counted_page(before: Page) -> Iterator[Any]:
    """The same of one page."""
    if every.domain is not None:
        yield before.references == sum(before.holds(number) + before.pins(number) for number in every.domain)
        yield before.names == sum(z3.If(before.named(number) != 0, 1, 0) for number in every.domain)
        return
    yield every(
        lambda other: implies(before.references == 0, all_of(before.holds(other) == 0, before.pins(other) == 0))
    )
    yield every(lambda key: implies(before.names == 0, before.named(key) == 0))


def lawful(memory: Memory) -> Iterator[Any]:
    """What is known of a pool in which nothing forbidden has happened."""
    yield always(pool.GIVEN, memory)
    for clause in page.INVARIANTS:
        if clause.variables:
            yield every(lambda number, *rest, c=clause: c.body(memory.page(number), *rest), clause.variables + 1)
    yield from (always(clause, memory) for clause in INVARIANTS)


def event_goals(name: str, wrong: Callable[..., Any] | None = None) -> Iterator[Goal]:
    """Of an event of one page: counts follow whatever happens, names are kept if it is allowed."""
    event = wrong or EVENTS[name]
    before, arguments = unknown_fields(Page), unknown_arguments(event)
    allowed, after = event(before, **arguments)
    known = [always(clause, before) for clause in page.INVARIANTS]
    known += counted_page(before)
    unknowns = [*vars(before).values(), *arguments.values()]
    holders = tuple(value for part, value in arguments.items() if part in ("holder", "old", "new"))
    keys = tuple(value for part, value in arguments.items() if part == "key" and name != "share")
    sums = follows(before, after, holders, keys)
    counts = [clause for clause in page.INVARIANTS if clause.rule == "MEM-COUNT"]
    free_of_names = () if name != "take" else (sums[2:])
    yield Goal("whatever happens", known, [clause for clause in sums if clause not in free_of_names], before, unknowns)
    yield Goal("whatever happens", known, counts, after, unknowns)
    yield Goal("if allowed", [*known, allowed], [*page.INVARIANTS, *free_of_names], after, unknowns)


def step_goals(name: str, wrong: Callable[..., Run] | None = None) -> Iterator[Goal]:
    """Of a step: each of its events is allowed, and the invariants hold after."""
    step = wrong or STEPS[name]
    before = unknown_fields(Memory)
    arguments = unknown_arguments(step)
    run = step(Run(before), **arguments)
    unknowns = [*vars(before).values(), *arguments.values()]
    known = [*lawful(before), *(formula for _, formula in run.asked)]
    for state, memory in enumerate([before, *run.between]):
        known += counted(memory, state)
    for what, allowed in run.told:
        yield Goal(what, known, [_plain("the law allows it", allowed())], before, unknowns)
    yield Goal("after it", known, INVARIANTS, run.memory, unknowns)


def operation_goals(name: str, wrong: Callable[..., Run] | None = None) -> Iterator[Goal]:
    """Of an operation: each step gets what it asks for."""
    operation = wrong or WAYS[name]
    before = unknown_fields(Memory)
    arguments = unknown_arguments(operation)
    run = operation(Run(before), **arguments)
    unknowns = [*vars(before).values(), *arguments.values()]
    known = [*lawful(before), *(formula for _, formula in run.granted)]
    for what, formula in run.asked:
        yield Goal("its steps", known, [_plain(what, formula)], before, unknowns)


def initial_goals(_: str, wrong: Callable[..., Any] | None = None) -> Iterator[Goal]:
    """The pool in which all is free."""
    before = unknown_fields(Memory)
    start = pool.initial(before)
    unknowns = [*vars(before).values()]
    yield Goal("at first", [always(pool.GIVEN, start)], INVARIANTS, start, unknowns)
    yield Goal("at first", [], page.INVARIANTS, start.page(0), unknowns)


def _plain(what: str, formula: Any) -> Clause:
    return Clause("MEM-*", what, 0, lambda _: formula)


EVENTS: dict[str, Callable[..., Any]] = {
    event.__name__: event for event in (page.take, page.share, page.release, page.pass_on, page.publish, page.drop)
} | {event.__name__: event for event in (page.write, page.read, page.unwritten, page.leave)}
KINDS: dict[str, tuple[Mapping[str, Callable[..., Any]], Callable[..., Iterator[Goal]]]] = {
    "initial": ({"initial": pool.initial}, initial_goals),
    "event": (EVENTS, event_goals),
    "step": (STEPS, step_goals),
    "operation": (WAYS, operation_goals),
}


def prove(kind: str, name: str, wrong: Callable[..., Any] | None = None) -> Iterator[StepVerdict]:
    """One verdict for each goal; for what does not follow, a counterexample is looked for."""
    goals = KINDS[kind][1]
    for number, goal in enumerate(goals(name, wrong)):
        for clause in goal.clauses:
            started = perf_counter()
            outcome: StepOutcome = "proved"
            found = ""
            if not _follows(goal, clause):
                found = counterexample(kind, name, wrong, (number, clause.what))
                outcome = "refuted" if found else "unproved"
            seconds = round(perf_counter() - started, 3)
            yield StepVerdict(
                f"{kind} {name}", goal.kind, clause.rule, outcome, found or clause.what * (outcome != "proved"), seconds
            )


def _follows(goal: Goal, clause: Clause) -> bool:
    solver = z3.Solver()
    solver.set("timeout", SECONDS * 1000)
    solver.add(*goal.hypotheses)
    numbers = [z3.Int(f"number {place}") for place in range(clause.variables)]
    solver.add(negation(clause.body(goal.about, *numbers)))
    return bool(solver.check() == z3.unsat)


def counterexample(
    kind: str, name: str, wrong: Callable[..., Any] | None = None, which: tuple[int, str] | None = None
) -> str:
    """A small state in which all that is assumed holds, and something to be shown does not; "" for none.

    Every number lies in a small scope, `NONE` included, so each `for all` is a plain conjunction and the answer exact.
    `which`: the number of the goal, and its clause.
    """
    for size in range(1, LARGEST_SCOPE + 1):
        every.domain = range(NONE, size)
        try:
            for number, goal in enumerate(KINDS[kind][1](name, wrong)):
                solver = z3.Solver()
                solver.set("timeout", SECONDS * 1000)
                solver.add(*goal.hypotheses, *_scoped(goal.unknowns, every.domain))
                for clause in goal.clauses:
                    numbers = [z3.Int(f"number {place}") for place in range(clause.variables)]
                    solver.push()
                    solver.add(*(z3.And(value >= NONE, value < size) for value in numbers))
                    solver.add(negation(clause.body(goal.about, *numbers)))
                    if which in (None, (number, clause.what)) and solver.check() == z3.sat:
                        return _told(clause, solver.model(), goal.unknowns, every.domain)
                    solver.pop()
        finally:
            every.domain = None
    return ""


def _places(value: Any, scope: range) -> Iterator[tuple[tuple[int, ...], Any]]:
    """All terms of an unknown in a scope."""
    if isinstance(value, z3.FuncDeclRef):
        yield from ((at, value(*at)) for at in product(scope, repeat=value.arity()))
    else:
        yield (), value


def _scoped(unknowns: Sequence[Any], scope: range) -> Iterator[Any]:
    """All unknown numbers are in the scope, sums aside."""
    for value in unknowns:
        for _, term in _places(value, scope):
            if term.sort() == z3.IntSort() and str(value) not in _COUNTS:
                yield z3.And(term >= scope.start, term < scope.stop)


def _told(clause: Clause, model: Any, unknowns: Sequence[Any], scope: range) -> str:
    """What is so in the counterexample, apart from what is nothing."""
    told = [f"{clause.what}: not so"]
    numbers = [model.eval(z3.Int(f"number {place}"), model_completion=True) for place in range(clause.variables)]
    told += [f"of {', '.join(map(str, numbers))}"] * bool(numbers)
    for value in unknowns:
        name = str(value.name() if isinstance(value, z3.FuncDeclRef) else value)
        for at, term in _places(value, scope):
            found = str(model.eval(term, model_completion=True))
            if found not in ("False", "0", str(NONE)):
                told.append(f"{name}{at if at else ''} = {found}".replace(",)", ")"))
    return "; ".join(told)


def main() -> None:
    """List, or prove, what the command line names."""
    if not sys.argv[1:]:
        print(msgspec.json.encode({kind: list(names) for kind, (names, _) in KINDS.items()}).decode())
        return
    kind, *names = sys.argv[1:]
    for name in names:
        for verdict in prove(kind, name):
            print(msgspec.json.encode(verdict).decode(), flush=True)


if __name__ == "__main__":
    main()
