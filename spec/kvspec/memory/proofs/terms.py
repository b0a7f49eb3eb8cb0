"""Connectives over z3 terms. They fold constants, so that the same text can be evaluated on plain numbers."""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import z3  # type: ignore[import-untyped]

Number: TypeAlias = Annotated[Any, "n"]
"""A Python integer or a z3 term. The letters tell a proof which unknown to put in."""
Formula: TypeAlias = Annotated[Any, "f"]
"""A Python truth value or a z3 formula."""
Map: TypeAlias = Annotated[Callable[[Any], Any], "nn"]
Set: TypeAlias = Annotated[Callable[[Any], Any], "nf"]
Map2: TypeAlias = Annotated[Callable[[Any, Any], Any], "nnn"]
Set2: TypeAlias = Annotated[Callable[[Any, Any], Any], "nnf"]
Map3: TypeAlias = Annotated[Callable[[Any, Any, Any], Any], "nnnn"]
Set3: TypeAlias = Annotated[Callable[[Any, Any, Any], Any], "nnnf"]

NONE = -1
"""No page, no content, nothing promised."""


def all_of(*parts: Formula) -> Formula:
    """Conjunction."""
    open_parts = [part for part in parts if not isinstance(part, bool)]
    if not all(part for part in parts if isinstance(part, bool)):
        return False
    return z3.And(*open_parts) if open_parts else True


def any_of(*parts: Formula) -> Formula:
    """Disjunction."""
    return negation(all_of(*map(negation, parts)))


def negation(part: Formula) -> Formula:
    """Negation."""
    return not part if isinstance(part, bool) else z3.Not(part)


def implies(condition: Formula, consequence: Formula) -> Formula:
    """Implication."""
    return any_of(negation(condition), consequence)


def choose(condition: Formula, then: Any, otherwise: Any) -> Any:
    """`then` where the condition holds, else `otherwise`: two numbers or two formulas."""
    if isinstance(condition, bool):
        return then if condition else otherwise
    return z3.If(condition, then, otherwise)


def put(function: Callable[[Number], Any], place: Number, value: Any) -> Callable[[Number], Any]:
    """The function that differs from `function` in one place."""
    return lambda number: choose(number == place, value, function(number))


def among(condition: Callable[..., Formula], value: Any, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is `value`, a constant or a function, where the condition holds."""
    return lambda *at: choose(condition(*at), value(*at) if callable(value) else value, otherwise(*at))


class Every:
    """For all numbers: of a small range where there is one, else of the integers."""

    domain: range | None = None

    def __call__(self, body: Callable[..., Formula], variables: int = 1) -> Formula:
        """Whether all numbers, or all tuples of so many, are such."""
        if self.domain is not None:
            if variables == 1:
                return all_of(*map(body, self.domain))
            return all_of(*(self(lambda *rest, n=n: body(n, *rest), variables - 1) for n in self.domain))
        numbers = [z3.FreshInt() for _ in range(variables)]
        return z3.ForAll(numbers, body(*numbers))


every = Every()


def each(chosen: Callable[[Number], Formula], condition: Callable[[Number], Formula]) -> Formula:
    """Whether all that are chosen are such."""
    return every(lambda number: implies(chosen(number), condition(number)))


def some(body: Callable[[Number], Formula]) -> Formula:
    """Whether there is a number that is such."""
    return negation(every(lambda number: negation(body(number))))
