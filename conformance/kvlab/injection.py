"""Plants a defect in an engine's own code: one function, with one place of its source replaced."""

import __future__

import inspect
import textwrap
from typing import Any, NamedTuple

from kvattach.patches import Patches


class Defect(NamedTuple):
    """What is done to an engine, and what that means."""

    name: str
    what: str
    places: tuple[tuple[Any, str, str, str], ...]
    """Class or module, function, what stands there, and what is to stand there instead."""


_SOURCE = "__planted__"
"""An attribute of a function with a defect: its source, which the file does not have."""


class NotPlanted(Exception):
    """The engine's source has no such place: it is another version than the defect was written for."""


def plant(defect: Defect, patches: Patches) -> None:
    """Put a defect in; undoing `patches` takes it out. Where another one is in the same function, both are.

    Raises:
        NotPlanted: the engine's source has changed.
    """
    for owner, name, old, new in defect.places:
        original = inspect.unwrap(vars(owner)[name])
        lines, first = inspect.getsourcelines(original)
        source: str = getattr(original, _SOURCE, textwrap.dedent("".join(lines)))
        if source.count(old) != 1:
            like = "" if old in source else _but_for_indentation(old, source)
            raise NotPlanted(f"{defect.name}: {name} has {source.count(old)} places like {old!r}{like}")
        made: dict[str, Any] = {}
        # Annotations may name what only a type checker imports.
        flags = __future__.annotations.compiler_flag
        # Behind so many empty lines an error names the line that the file has.
        source = source.replace(old, new)
        code = compile("\n" * (first - 1) + source, inspect.getfile(original), "exec", flags, dont_inherit=True)
        exec(code, original.__globals__, made)
        setattr(inspect.unwrap(made[name]), _SOURCE, source)
        patches.set(owner, name, made[name])


def _but_for_indentation(old: str, source: str) -> str:
    """How the source has lines that are `old` but for their indentation; nothing if it has none."""
    bare, wanted = ("\n".join(map(str.strip, text.splitlines())) for text in (source, old))
    before, found, _ = bare.partition(wanted)
    first = before.count("\n")
    there = "\n".join(source.splitlines()[first : first + found.count("\n") + 1])
    return f"; its lines, without the function's own indentation, are {there!r}" if found else ""
