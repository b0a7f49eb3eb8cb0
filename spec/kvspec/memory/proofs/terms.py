"""The terms of proofs besides z3's connectives: quantifiers, and functions changed in some places."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from itertools import product
from typing import Annotated, Any, TypeAlias

from z3 import And, BoolSort, ForAll, FreshInt, If, Implies, IntSort, Not  # type: ignore[import-untyped]

Number: TypeAlias = Annotated[Any, IntSort]
"""A Python integer or a z3 term. The sort is that of the unknown in a proof."""
Formula: TypeAlias = Annotated[Any, BoolSort]
"""A Python truth value or a z3 formula."""
Map: TypeAlias = Callable[[Number], Number]
Set: TypeAlias = Callable[[Number], Formula]
Map2: TypeAlias = Callable[[Number, Number], Number]
Set2: TypeAlias = Callable[[Number, Number], Formula]

NONE = -1
"""No page, no content, nothing promised."""


class Every:
    """For all numbers of a small range if one is set, otherwise for all integers."""

    domain: range | None = None

    def __call__(self, *conditions: Callable[..., Formula]) -> Formula:
        """Whether all numbers, or all tuples of as many as the last condition takes, are such if they are as before."""
        *given, due = conditions

        def holds(*numbers: Number) -> Formula:
            return Implies(And(*(condition(*numbers) for condition in given)), due(*numbers))

        count = len(signature(due).parameters)
        if self.domain is not None:
            return And(*(holds(*numbers) for numbers in product(self.domain, repeat=count)))
        unknown = [FreshInt() for _ in range(count)]
        return ForAll(unknown, holds(*unknown)) if unknown else holds()


every = Every()


def some(condition: Callable[[Number], Formula]) -> Formula:
    """Whether some number fulfils the condition."""
    return Not(every(lambda number: Not(condition(number))))


def everything(*_: Number) -> Formula:
    """All numbers."""
    return True


def image(chosen: Set, function: Map, back: Map) -> Set:
    """The image of the chosen numbers under a function; `back` is its inverse."""
    return lambda made: And(chosen(back(made)), function(back(made)) == made)


def choose(condition: Formula, then: Any, otherwise: Any) -> Any:
    """`then` if the condition holds, else `otherwise`: terms, or functions or records with terms at their ends."""
    if is_dataclass(then) and not isinstance(then, type):
        parts = ((getattr(then, part.name), getattr(otherwise, part.name)) for part in fields(then))
        return type(then)(*(choose(condition, *both) for both in parts))
    if callable(then):
        return lambda *at: choose(condition, then(*at), otherwise(*at))
    return If(condition, then, otherwise)


def among(
    chosen: Callable[..., Formula], value: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """The function that is `value` at the chosen places, else `otherwise`; each term is made once."""
    return cache(lambda *at: choose(chosen(*at), value(*at), otherwise(*at)))


def put(function: Map, place: Number, value: Number) -> Map:
    """The function with another value at one place."""
    return among(lambda number: number == place, lambda _: value, function)
