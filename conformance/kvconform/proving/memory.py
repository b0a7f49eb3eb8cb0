"""z3 proves memory events, steps and operations, in a separate process.

    python -m kvconform.proving.memory                       lists the claims, by kind
    python -m kvconform.proving.memory step take publish

Each verdict is one line of JSON on standard output.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from inspect import signature
from itertools import product
from time import perf_counter
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import z3  # type: ignore[import-untyped]

from kvconform.proving.prove import StepOutcome, StepVerdict
from kvspec.memory.proofs import books, page, pool
from kvspec.memory.proofs.books import Books
from kvspec.memory.proofs.moves import MOVES, Move
from kvspec.memory.proofs.operations import WAYS, Way, arguments_of
from kvspec.memory.proofs.page import Clause, Page, Sum
from kvspec.memory.proofs.pool import INVARIANTS, Memory
from kvspec.memory.proofs.steps import STEPS, Run
from kvspec.memory.proofs.terms import NONE, every

SECONDS = 4
"""The most seconds of z3 for one attempt. Most successful ones need a hundredth of it."""

ATTEMPTS = 8
"""The attempts at a clause, each with other random numbers: about one of a thousand gets lost among instances."""

LARGEST_SCOPE = 3
"""The most pages, holders, indices, keys and slots of a counterexample."""

_COUNTS = ("holds", "pins", "references", "named", "names", "kind", "reads")
"""Unknowns that are not a page, holder, index, key, slot or label."""


@dataclass(frozen=True)
class Goal:
    """Clauses to prove, and their hypotheses."""

    kind: str
    hypotheses: list[Any]
    clauses: Sequence[Clause]
    about: Any
    """The subject of the clauses."""
    unknowns: Sequence[Any]


class Unknowns:
    """z3 constants and functions, and states made from them."""

    def __init__(self) -> None:
        """Begin without unknowns."""
        self.terms: list[Any] = []

    def state(self, kind: type) -> Any:
        """Any state."""
        return self._made("", kind)()

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Any arguments except the first."""
        named = function.arguments if isinstance(function, Way) else arguments_of(function)
        return {name: self._made(f"the {name}", hint)() for name, hint in named.items()}

    def _made(self, name: str, hint: Any, sorts: Sequence[Any] = ()) -> Callable[..., Any]:
        """The value of an annotation (a term, a function, a record of such), for each tuple of its kinds."""
        if is_dataclass(hint):
            hints = get_type_hints(hint, include_extras=True)
            within = f"{name}." if name else ""
            parts = {part.name: self._made(within + part.name, hints[part.name], sorts) for part in fields(hint)}
            return cache(lambda *at: hint(**{name: part(*at) for name, part in parts.items()}))  # type: ignore[operator]
        if get_origin(hint) is Callable:
            arguments, result = get_args(hint)
            function = self._made(name, result, [*sorts, *arguments])
            return lambda *at: lambda *rest: function(*at, *rest)
        *before, last = (kind.__metadata__[0]() for kind in (*sorts, hint))
        term = z3.Function(name, *before, last) if before else z3.Const(name, last)
        self.terms.append(term)
        return lambda *at: term(*at) if at else term


def always(clause: Clause, about: Any) -> Any:
    """The clause for all numbers."""
    return every(partial(clause.body, about))


def counted(pages: Callable[[Any], Page], state: int = 0) -> Iterator[Any]:
    """Facts on sums: a sum is 0 if and only if each of its parts is. In a small scope the sum itself."""
    for total in page.SUMS:
        yield from _counted(total, pages, f"{total.what} {state}")


def _counted(total: Sum, pages: Callable[[Any], Page], name: str) -> Iterator[Any]:
    def whole(number: Any) -> Any:
        return total.whole(pages(number))

    def part(number: Any, other: Any) -> Any:
        return total.part(pages(number), other)

    domain = every.domain
    if domain is not None:
        yield every(lambda number: whole(number) == sum(part(number, other) for other in domain))
        return
    nonzero = z3.Function(f"a nonzero part of the {name}", z3.IntSort(), z3.IntSort())
    yield every(lambda number: whole(number) >= 0)
    yield every(lambda number: whole(number) > 0, lambda number: part(number, nonzero(number)) != 0)
    yield every(lambda number, _: whole(number) == 0, lambda number, other: part(number, other) == 0)


def follows(total: Sum, before: Page, after: Page, changed: Sequence[Any]) -> tuple[Clause, Clause]:
    """A sum changes like its parts, as an event changes only these parts."""

    def change(number: Any) -> Any:
        return total.part(after, number) - total.part(before, number)

    def due(_: Page) -> Any:
        return total.whole(after) - total.whole(before) == sum(map(change, changed))

    def stays(_: Page, other: Any) -> Any:
        return z3.Or(change(other) == 0, *(other == number for number in changed))

    sums, others = f"{total.what} change as their parts do", f"the {total.what} of others stay"
    return Clause("MEM-COUNT", sums, due), Clause("MEM-COUNT", others, stays)


def sound(memory: Memory) -> Iterator[Any]:
    """The invariants of a pool in which every event was allowed."""
    yield every(lambda number: z3.And(*(always(clause, memory.page(number)) for clause in page.INVARIANTS)))
    yield from (always(clause, memory) for clause in (pool.GIVEN, *INVARIANTS))


def event_goals(name: str, wrong: Callable[..., Any] | None = None) -> Iterator[Goal]:
    """The goals of an event of one page: counts follow in any case, names are kept if it is allowed."""
    event, unknowns = wrong or EVENTS[name], Unknowns()
    before, arguments = unknowns.state(Page), unknowns.arguments(event)
    allowed, after = event(before, **arguments)
    known = [always(clause, before) for clause in page.INVARIANTS]
    known += counted(lambda _: before)
    holders = [value for part, value in arguments.items() if part in ("holder", "old", "new")]
    keys = [value for part, value in arguments.items() if part == "key" and name != "share"]
    changed = zip(page.SUMS, (holders, keys), strict=True)
    sums = [clause for total, numbers in changed for clause in follows(total, before, after, numbers)]
    counts = [clause for clause in page.INVARIANTS if clause.rule == "MEM-COUNT"]
    always_so = sums[: 2 if name == "take" else 4]
    yield Goal("whatever happens", known, always_so, before, unknowns.terms)
    yield Goal("whatever happens", known, counts, after, unknowns.terms)
    yield Goal("if allowed", [*known, allowed], [*page.INVARIANTS, *sums[len(always_so) :]], after, unknowns.terms)


def step_goals(name: str, wrong: Callable[..., Run] | None = None) -> Iterator[Goal]:
    """The goals of a step: each of its events is allowed, and the invariants hold after it."""
    step, unknowns = wrong or STEPS[name], Unknowns()
    before = unknowns.state(Memory)
    run = step(Run(before), **unknowns.arguments(step))
    known = [*sound(before), *(formula for _, formula in run.asked)]
    for state, memory in enumerate([before, *(after for _, _, after in run.emitted)]):
        known += counted(memory.page, state)
    for what, allowed, _ in run.emitted:
        yield Goal(what, known, [_plain("the memory model allows it", allowed)], before, unknowns.terms)
    yield Goal("after it", known, INVARIANTS, run.memory, unknowns.terms)


def operation_goals(name: str, wrong: Callable[..., Run] | None = None) -> Iterator[Goal]:
    """The goals of an operation: the preconditions of each step hold."""
    operation, unknowns = wrong or WAYS[name], Unknowns()
    before = unknowns.state(Memory)
    run = operation(Run(before), **unknowns.arguments(operation))
    known = [*sound(before), *(formula for _, formula in run.granted)]
    for what, formula in run.asked:
        yield Goal("its steps", known, [_plain(what, formula)], before, unknowns.terms)


@cache
def _any_books(_domain: range | None) -> tuple[Books, list[Any]]:
    """Any books with valid invariants: the same unknowns each time, in a scope."""
    before = Unknowns().state(Books)
    return before, [always(clause, before) for clause in books.INVARIANTS]


def move_goals(name: str, wrong: Callable[..., Move] | None = None) -> Iterator[Goal]:
    """The goals of an operation on requests and sessions: the invariants hold after it, and it keeps `KEPT`."""
    move, unknowns = wrong or MOVES[name], Unknowns()
    before, holds = _any_books(every.domain)
    unknowns.state(Books)
    done = move(before, **unknowns.arguments(move))
    known = [*holds, *(formula for _, formula in done.asked)]
    yield Goal("after it", known, books.INVARIANTS, done.after, unknowns.terms)
    yield Goal("from before to after", known, books.KEPT, (before, done.after), unknowns.terms)
    yield Goal("it promises", known, done.due, before, unknowns.terms)


def initial_goals(_: str, wrong: Callable[..., Any] | None = None) -> Iterator[Goal]:
    """The goals of the initial pool, which is free."""
    unknowns = Unknowns()
    start = (wrong or pool.initial)(unknowns.state(Memory))
    yield Goal("at first", [always(pool.GIVEN, start)], INVARIANTS, start, unknowns.terms)
    yield Goal("at first", [], page.INVARIANTS, start.page(0), unknowns.terms)
    unknowns = Unknowns()
    empty = books.initial(unknowns.state(Books))
    yield Goal("at first", [], books.INVARIANTS, empty, unknowns.terms)


def _plain(what: str, formula: Any) -> Clause:
    return Clause("MEM-*", what, lambda _: formula)


EVENTS: dict[str, Callable[..., Any]] = {
    event.__name__: event for event in (page.take, page.share, page.release, page.transfer, page.publish, page.drop)
} | {event.__name__: event for event in (page.write, page.read, page.unwritten, page.end_holder)}
KINDS: dict[str, tuple[Mapping[str, Callable[..., Any]], Callable[..., Iterator[Goal]]]] = {
    "initial": ({"initial": pool.initial}, initial_goals),
    "event": (EVENTS, event_goals),
    "step": (STEPS, step_goals),
    "operation": (WAYS, operation_goals),
    "move": (MOVES, move_goals),
}


def prove(kind: str, name: str, wrong: Callable[..., Any] | None = None) -> Iterator[StepVerdict]:
    """One verdict for each goal, with a search for a counterexample if the goal does not follow."""
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


def _numbers(clause: Clause) -> list[Any]:
    """One number for each parameter of a clause."""
    return [z3.Int(name) for name in list(signature(clause.body).parameters)[1:]]


def _follows(goal: Goal, clause: Clause) -> bool:
    refuted = z3.Not(clause.body(goal.about, *_numbers(clause)))

    def attempt(seed: int) -> bool:
        solver = z3.Solver()
        solver.set("timeout", SECONDS * 1000)
        solver.set("random_seed", seed)
        solver.set("qi.eager_threshold", 20.0)
        solver.add(*goal.hypotheses, refuted)
        return bool(solver.check() == z3.unsat)

    return any(map(attempt, range(ATTEMPTS)))


def counterexample(
    kind: str, name: str, wrong: Callable[..., Any] | None = None, which: tuple[int, str] | None = None
) -> str:
    """A small state in which the hypotheses hold and a clause does not; "" if there is none.

    Every number is in a small scope, including `NONE`, so each `for all` is a plain conjunction and the answer exact.
    `which`: the number of the goal, and its clause.
    """
    for size in range(1, LARGEST_SCOPE + 1):
        every.domain = range(NONE, size)
        try:
            for number, goal in enumerate(KINDS[kind][1](name, wrong)):
                solver = z3.Solver()
                solver.set("timeout", SECONDS * ATTEMPTS * 1000)
                solver.add(*goal.hypotheses, *_scoped(goal.unknowns, every.domain))
                for clause in goal.clauses:
                    if which not in (None, (number, clause.what)):
                        continue
                    numbers = _numbers(clause)
                    solver.push()
                    solver.add(*(z3.And(value >= NONE, value < size) for value in numbers))
                    solver.add(z3.Not(clause.body(goal.about, *numbers)))
                    if solver.check() == z3.sat:
                        return _described(clause, solver.model(), goal.unknowns, every.domain)
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
    """All unknown numbers, except sums, are in the scope."""
    for value in unknowns:
        for _, term in _places(value, scope):
            if term.sort() == z3.IntSort() and str(value).rpartition(".")[2] not in _COUNTS:
                yield z3.And(term >= scope.start, term < scope.stop)


def _described(clause: Clause, model: Any, unknowns: Sequence[Any], scope: range) -> str:
    """The values of the counterexample, without zeros."""
    parts = [f"{clause.what}: not so"]
    numbers = [model.eval(number, model_completion=True) for number in _numbers(clause)]
    parts += [f"of {', '.join(map(str, numbers))}"] * bool(numbers)
    for value in unknowns:
        name = str(value.name() if isinstance(value, z3.FuncDeclRef) else value)
        for at, term in _places(value, scope):
            found = str(model.eval(term, model_completion=True))
            if found not in ("False", "0", str(NONE)):
                parts.append(f"{name}{at if at else ''} = {found}".replace(",)", ")"))
    return "; ".join(parts)


def main() -> None:
    """List the claims, or prove those that the command line names."""
    if not sys.argv[1:]:
        print(msgspec.json.encode({kind: list(names) for kind, (names, _) in KINDS.items()}).decode())
        return
    kind, *names = sys.argv[1:]
    for name in names:
        for verdict in prove(kind, name):
            print(msgspec.json.encode(verdict).decode(), flush=True)


if __name__ == "__main__":
    main()
