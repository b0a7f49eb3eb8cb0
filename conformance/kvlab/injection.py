"""Plants a defect in an engine's own code: one function, with one place of its source replaced."""

import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kvattach.patches import Patches


class Defect(NamedTuple):
    """What is done to an engine, and what that means."""

    name: str
    what: str
    places: tuple[tuple[Any, str, str, str], ...]
    """Class or module, function, what stands there, and what is to stand there instead."""


class _Planted(NamedTuple):
    """A function with defects."""

    source: str
    """The file has another one."""
    called: Callable[[], None]
    """A call of the function calls it."""


_PLANTED = "__planted__"
"""The attribute that knows it."""


class NotPlanted(Exception):
    """The engine's source has no such place: it is another version than the defect was written for."""


def plant(defect: Defect, patches: Patches) -> set[str]:
    """Put a defect in; undoing `patches` takes it out. Where another one is in the same function, both are.

    Returns the functions that have it and have not been called yet: a call takes its function out.

    Raises:
        NotPlanted: the engine's source has changed, or there is none.
    """
    uncalled = {name for _, name, _, _ in defect.places}
    for owner, name, old, new in defect.places:
        original = _function(defect, owner, name)
        try:
            lines, first = inspect.getsourcelines(original)
        except (OSError, TypeError):
            raise NotPlanted(f"{defect.name}: {name} has no source to change: is it compiled?") from None
        before = getattr(original, _PLANTED, _Planted(textwrap.dedent("".join(lines)), lambda: None))
        source = before.source
        if source.count(old) != 1:
            like = "" if old in source else _but_for_indentation(old, source)
            raise NotPlanted(f"{defect.name}: {name} has {source.count(old)} places like {old!r}{like}")
        source = source.replace(old, new)
        called = partial(_called, before.called, uncalled, name)
        tree = ast.increment_lineno(ast.parse(source), first - 1)  # an error names the line that the file has
        planted = _made(tree, owner, name, original, called)
        setattr(inspect.unwrap(planted), _PLANTED, _Planted(source, called))
        patches.set(owner, name, planted)
    return uncalled


def _called(before: Callable[[], None], uncalled: set[str], name: str) -> None:
    before()
    uncalled.discard(name)


def _function(defect: Defect, owner: Any, name: str) -> Any:
    """The function that a place names, without what was put around it."""
    found = vars(owner).get(name)
    if found is None:
        raise NotPlanted(f"{defect.name}: {getattr(owner, '__name__', owner)} has no {name} of its own")
    if isinstance(found, property):
        raise NotPlanted(f"{defect.name}: {name} is a property: plant the defect in a function that it calls")
    return inspect.unwrap(found)


def _made(tree: ast.Module, owner: Any, name: str, original: Any, called: Callable[[], None]) -> Any:
    """The function in `tree`, which sees what `original` sees: variables around it, private names, `super()`.

    Its first statement calls `called`.
    """
    cells = {**inspect.getclosurevars(original).nonlocals, "__called__": called}
    function: Any = tree.body[0]
    function.body[:0] = ast.increment_lineno(ast.parse("__called__()"), function.body[0].lineno - 1).body
    answer, body = function.name, function
    if isinstance(owner, type):
        inner: Any = ast.parse(f"class {owner.__name__}: pass").body[0]
        inner.body = [function]
        answer, body = f"vars({owner.__name__})[{name!r}]", inner
    cells.pop("__class__", None)  # the class above has its own
    around: Any = ast.parse(f"def around({', '.join(cells)}):\n return {answer}")
    around.body[0].body.insert(0, body)
    # Annotations may name what only a type checker imports.
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {}
    exec(compile(around, inspect.getfile(original), "exec", flags, dont_inherit=True), original.__globals__, made)
    planted = made["around"](**cells)
    bare = inspect.unwrap(planted)
    bare.__qualname__ = original.__qualname__
    for variable, cell in zip(bare.__code__.co_freevars, bare.__closure__, strict=True):
        if variable == "__class__":
            cell.cell_contents = owner
    return planted


def _but_for_indentation(old: str, source: str) -> str:
    """How the source has lines that are `old` but for their indentation; nothing if it has none."""
    bare, wanted = ("\n".join(map(str.strip, text.splitlines())) for text in (source, old))
    before, found, _ = bare.partition(wanted)
    first = before.count("\n")
    there = "\n".join(source.splitlines()[first : first + found.count("\n") + 1])
    return f"; its lines, without the function's own indentation, are {there!r}" if found else ""
