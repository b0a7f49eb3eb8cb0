"""Temporarily replaced attributes of modules and classes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Patches:
    """Replaced attributes, which can be restored; a context manager that does so."""

    _undo: list[Callable[[], None]] = field(default_factory=list)
    _replaced: list[tuple[Any, str, object]] = field(default_factory=list)

    def __enter__(self) -> "Patches":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replace an attribute of `owner`, or add it."""
        if name in vars(owner):
            before = vars(owner)[name]
            self._undo.append(lambda: setattr(owner, name, before))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)
        self._replaced.append((owner, name, value))

    def undo(self) -> None:
        """Restore everything, the last first."""
        while self._undo:
            self._undo.pop()()

    def redo(self) -> None:
        """Replace the restored attributes again."""
        replaced, self._replaced = self._replaced, []
        for owner, name, value in replaced:
            self.set(owner, name, value)
