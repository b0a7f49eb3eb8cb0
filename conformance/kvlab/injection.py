"""Injects a defect into an engine's own code: one place in the source of a function is replaced."""

import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple, TypeAlias

from kvattach.patches import Patches

Place: TypeAlias = tuple[Any, str, str, str]
"""Class or module, function, the old text, the new text."""


class Defect(NamedTuple):
    """A change of an engine's code, with its effect in words."""

    name: str
    what: str
    places: tuple[Place, ...]


class _Injected(NamedTuple):
    """A function with injected defects."""

    source: str
    """Its source with the defects."""
    called: Callable[[], None]
    """Called at each call of the function."""


_INJECTED = "__injected__"
"""The attribute of a changed function that holds its injected defects."""


class NotInjected(Exception):
    """The engine's source has no such place: it is another version than the defect was written for."""


def inject_fault(defect: Defect, patches: Patches) -> set[str]:
    """Inject a defect; undoing `patches` removes it. A function may have several.

    Returns the changed functions that have not been called yet: a call removes its function from the set.

    Raises:
        NotInjected: the engine's source has changed, or there is none.
    """
    uncalled = {name for _, name, _, _ in defect.places}
    for owner, name, old, new in defect.places:
        original = _function(defect, owner, name)
        try:
            lines, first = inspect.getsourcelines(original)
        except (OSError, TypeError):
            raise NotInjected(f"{defect.name}: {name} has no source to change: is it compiled?") from None
        before = getattr(original, _INJECTED, _Injected(textwrap.dedent("".join(lines)), lambda: None))
        source = before.source
        if source.count(old) != 1:
            like = "" if old in source else _but_for_indentation(old, source)
            raise NotInjected(f"{defect.name}: {name} has {source.count(old)} places like {old!r}{like}")
        source = source.replace(old, new)
        called = partial(_called, before.called, uncalled, name)
        tree = ast.increment_lineno(ast.parse(source), first - 1)  # an error names the line that the file has
        injected = _made(tree, owner, name, original, called)
        setattr(inspect.unwrap(injected), _INJECTED, _Injected(source, called))
        patches.set(owner, name, injected)
    return uncalled


def where_driven(prepared: Callable[[], str], fix: Callable[[Patches], None]) -> Callable[[Patches], None]:
    """A fix that does nothing where `prepared` says why its part of an engine is not driven."""

    @wraps(fix)
    def applied(patches: Patches) -> None:
        if not prepared():
            fix(patches)

    return applied


def mend(patches: Patches, name: str, *places: Place) -> bool:
    """Fix a known defect of the engine. Returns whether all its lines were there: another release may have others."""
    with suppress(NotInjected):
        inject_fault(Defect(name, "", places), patches)
        return True
    return False


def chosen(defects: list[Defect], name: str) -> list[Defect]:
    """The defects of this name; without one, all of them.

    Raises:
        NotInjected: none has this name.
    """
    found = [defect for defect in defects if name in ("", defect.name)]
    if name and not found:
        raise NotInjected(f"no fault is called {name!r}; without --fault each one is injected and named")
    return found


def _called(before: Callable[[], None], uncalled: set[str], name: str) -> None:
    before()
    uncalled.discard(name)


def _function(defect: Defect, owner: Any, name: str) -> Any:
    """The function that a place names, without its wrappers."""
    found = vars(owner).get(name)
    if found is None:
        raise NotInjected(f"{defect.name}: {getattr(owner, '__name__', owner)} has no {name} of its own")
    if isinstance(found, property):
        raise NotInjected(f"{defect.name}: {name} is a property: inject the defect into a function that it calls")
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
    injected = made["around"](**cells)
    bare = inspect.unwrap(injected)
    bare.__qualname__ = original.__qualname__
    for variable, cell in zip(bare.__code__.co_freevars, bare.__closure__, strict=True):
        if variable == "__class__":
            cell.cell_contents = owner
    return injected


def _but_for_indentation(old: str, source: str) -> str:
    """A note on the source's lines that are `old` except for their indentation; empty if there are none."""
    bare, wanted = ("\n".join(map(str.strip, text.splitlines())) for text in (source, old))
    before, found, _ = bare.partition(wanted)
    first = before.count("\n")
    there = "\n".join(source.splitlines()[first : first + found.count("\n") + 1])
    return f"; its lines, without the function's own indentation, are {there!r}" if found else ""
