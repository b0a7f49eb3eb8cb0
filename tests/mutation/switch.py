"""A changed module imports this in place of mutmut's trampolines: a function is exchanged in a forked process, once.

mutmut writes each function with all its mutants behind it. Its own trampoline asks at every call which of them is
wanted, which costs more than most functions do; here the original stays as it is until `exchange` gives it the code
of a mutant.
"""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

MutantDict = dict[str, Any]

_ORIGINAL = "_mutmut_orig"


class Switch(NamedTuple):
    """A function, and its mutants by their names."""

    original: FunctionType
    mutants: MutantDict


SWITCHES: list[Switch] = []


def wrap_in_trampoline(mutants: MutantDict, is_classmethod: bool = False) -> Callable[[FunctionType], FunctionType]:
    """Remember a function with its mutants; it stays as it is."""

    def remember(function: FunctionType) -> FunctionType:
        SWITCHES.append(Switch(function, mutants))
        return function

    return remember


def mutants() -> dict[str, tuple[CodeType, CodeType]]:
    """The mutants of all that is imported, each with the code that it takes the place of, and its own."""
    return {
        f"{switch.original.__module__}.{name}": (switch.original.__code__, _function(switch.mutants[name]).__code__)
        for switch in SWITCHES
        for name in switch.mutants
        if name != _ORIGINAL and _fits(switch, name)
    }


def exchange(name: str) -> None:
    """Make the mutant of that name what is called from now on."""
    for original, mutants in SWITCHES:
        module, _, short = name.rpartition(".")
        if original.__module__ == module and short in mutants:
            mutant = _function(mutants[short])
            original.__code__ = mutant.__code__
            original.__defaults__, original.__kwdefaults__ = mutant.__defaults__, mutant.__kwdefaults__
            return
    raise KeyError(name)


def _fits(switch: Switch, name: str) -> bool:
    """Whether the mutant closes over the same names; one that loses its `super()` does not."""
    return _function(switch.mutants[name]).__code__.co_freevars == switch.original.__code__.co_freevars


def _function(method: Any) -> FunctionType:
    function: FunctionType = getattr(method, "__func__", method)
    return function
