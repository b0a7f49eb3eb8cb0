"""The holders for whom functions of an engine act."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from kvattach.hooks import Hooks

H = TypeVar("H")


class Acting(Generic[H]):
    """The holders for whom the running functions of a thread act, the innermost last."""

    def __init__(self, hooks: Hooks, otherwise: H) -> None:
        """Begin with no running function. Changes outside of any function are for `otherwise`."""
        self._hooks, self._otherwise, self._threads = hooks, otherwise, threading.local()

    @property
    def _stack(self) -> list[H]:
        stack: list[H] = vars(self._threads).setdefault("stack", [self._otherwise])
        return stack

    @property
    def now(self) -> H:
        """The holder for whom the innermost function acts."""
        return self._stack[-1]

    @contextmanager
    def as_one(self, holder: H) -> Iterator[None]:
        """Let all changes within this context be for a holder."""
        self._stack.append(holder)
        try:
            yield
        finally:
            self._stack.pop()

    def within(self, owner: Any, name: str, who: Callable[..., H], ended: Callable[[H], None] | None = None) -> None:
        """Let a function act for the holder that `who(*arguments)` returns. Then call `ended`, even after an error."""
        original = getattr(owner, name)

        def within(*args: Any, **kwargs: Any) -> Any:
            holder = self._hooks.guarded(who, *args, **kwargs) or self.now
            try:
                with self.as_one(holder):
                    return original(*args, **kwargs)
            finally:
                if ended is not None:
                    self._hooks.guarded(ended, holder)

        within.__wrapped__ = original  # type: ignore[attr-defined]
        self._hooks.set(owner, name, within)
