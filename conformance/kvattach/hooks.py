"""The common part of all attachments: hooks that never disturb the engine, and the trace that takes their events."""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any, Protocol

from kvattach.patches import Patches
from kvattach.tape import Tape, TapeFullError
from kvspec.memory.events import Failed, MemoryEvent, Pool

_log = logging.getLogger(__name__)
_NOTHING = nullcontext()


class RuleBroken(AssertionError):
    """A rule was broken in an engine that must then stop. No other error of kvspec reaches the engine."""


def is_error(error: BaseException) -> bool:
    """Whether this is an error, and not the end of a process or run. A panic of Rust code is no `Exception`."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


class Trace(Protocol):
    """Takes the events of hooks."""

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """A memory with these pools was made, all of it free. The following events are about it, on one host."""

    def emit(self, *events: MemoryEvent) -> None:
        """Events in the order of the engine."""


class Hooks:
    """Calls before and after functions of an engine.

    An error in a hook or an event ends the trace, and never reaches the engine; only `RuleBroken` does. An error of the
    engine propagates as without hooks. Several threads may call hooks: events are emitted one at a time, in the order
    of these calls.
    """

    def __init__(self, trace: Trace) -> None:
        """Nothing is hooked yet."""
        self.trace = trace
        self.problem: str | None = None
        """Why the trace ended; `None` while it goes on."""
        self.events = 0
        """Events so far."""
        self._at_once = 0
        """Captures and hooks so far that were resolved at once."""
        self._reports = 0
        """Events or captures that only report."""
        self._patches = Patches()
        self.lock = threading.RLock()
        """Held while events are emitted."""
        self.held: list[MemoryEvent] = []
        """The events of `together`."""
        self.holds: int | None = None
        """The thread in `together`."""
        self.tape: Tape | None = None
        """Takes what hooks capture, to be resolved late; `None`: it is resolved at once."""

    @property
    def late(self) -> bool:
        """Whether what this thread captures now is resolved late."""
        return self.tape is not None and self.tape.defers

    @property
    def order(self) -> AbstractContextManager[object]:
        """Held while events are emitted in a certain order. A thread whose events are late waits for no other one."""
        return _NOTHING if self.late else self.lock

    @property
    def seen(self) -> int:
        """Grows with each change of the engine's memory, and not with reports: the same at once and late."""
        return (self.events if self.tape is None else self.tape.captures) + self._at_once - self._reports

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """The events of this context change no memory: they compare, or say that nothing runs."""
        before = self.seen
        yield
        self._reports += self.seen - before

    def later(self, resolve: Callable[..., object], *tensors: Any) -> None:
        """Call `resolve` with what these tensors have on the current stream now: at once, or late on the tape."""
        if self.tape is None or not self.tape.defers:
            self._at_once += 1
            resolve(*tensors)
        elif self.problem is None:
            try:
                self.tape.put(partial(self._resolves, resolve), *tensors)
            except TapeFullError as error:
                self._fails("the trace cannot keep up", error)

    def _resolves(self, resolve: Callable[..., object], *copies: Any) -> None:
        with self.together():
            self.guarded(resolve, *copies)

    @contextmanager
    def at_once(self, hook: str) -> Iterator[None]:
        """Resolve at once within this context, for a hook: it waits until everything before it is resolved."""
        self._at_once += 1
        if self.tape is None or self.problem is not None:
            yield
            return
        with self.tape.caught_up(hook):
            yield

    def emit(self, *events: MemoryEvent) -> None:
        """Emit events, within a hook or not. A malformed event is a problem of the hooks, never of the engine."""
        if self.holds == get_ident():
            self.held += events
            return
        if self.late:
            self.later(partial(self.emit, *events))
            return
        with self.lock:
            if self.problem is not None:
                return
            self.events += len(events)
            try:
                self.trace.emit(*events)
            except RuleBroken:
                raise
            except Exception as error:
                self._fails(f"{', '.join(dict.fromkeys(map(_named, events)))} cannot be emitted", error)

    def together(self) -> AbstractContextManager[object]:
        """Emit all events of this context at its end, in one call of the trace."""
        return _NOTHING if self.late else _Together(self)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replace an attribute of the engine."""
        self._patches.set(owner, name, value)

    def hook(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        """Call `before(*arguments)`, then the function, then `after(seen, answer, *arguments)`.

        `seen` is the result of `before`. After an error of the engine `after` is not called.
        """
        original = getattr(owner, name)

        def hooked(*args: Any, **kwargs: Any) -> Any:
            # As `guarded`, without its call: hooks are called many times a step.
            seen = None
            if before is not None and self.problem is None:
                try:
                    seen = before(*args, **kwargs)
                except BaseException as error:
                    self._caught(before, error)
            answer = original(*args, **kwargs)
            if after is not None and self.problem is None:
                try:
                    after(seen, answer, *args, **kwargs)
                except BaseException as error:
                    self._caught(after, error)
            return answer

        hooked.__wrapped__ = original  # type: ignore[attr-defined]
        self._patches.set(owner, name, hooked)

    def watch(self, owner: Any, name: str, *, expected: Callable[[BaseException], bool] = lambda _: False) -> None:
        """Emit `failed` if this function of the engine raises, unless the error is `expected`."""
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except RuleBroken:
                raise
            except BaseException as error:
                if is_error(error) and not expected(error):
                    self.gave_up(name, error)
                raise

        self._patches.set(owner, name, watched)

    def gave_up(self, name: str, error: BaseException) -> None:
        """Emit that the engine raised this error in a function of that name."""
        line, function = _raised_at(error)
        self.emit(Failed("assertion", f"{name}: {type(error).__name__}: {str(error) or line}", at=function))

    def guarded(self, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `do` and return its result. If it fails, the trace ends, and the result is `None`."""
        if self.problem is not None:
            return None
        try:
            return do(*args, **kwargs)
        except BaseException as error:
            self._caught(do, error)
            return None

    def _caught(self, do: Callable[..., Any], error: BaseException) -> None:
        """A hook raised this: the trace ends, unless the engine must stop, or the process ends."""
        if isinstance(error, RuleBroken) or not is_error(error):
            raise error
        self._fails(getattr(do, "__qualname__", str(do)), error)

    def _fails(self, where: str, error: BaseException) -> None:
        self.problem = f"{where}: {type(error).__name__}: {error}"
        _log.warning("kvspec: the trace ends: %s", self.problem, exc_info=True, stack_info=True)

    def detach(self) -> None:
        """Take the hooks out."""
        self._patches.undo()

    def attach(self) -> None:
        """Put the hooks in again."""
        self._patches.redo()


class _Together:
    """Holds the events of one thread."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def __enter__(self) -> None:
        self._hooks.lock.acquire()
        self._hooks.holds = get_ident()

    def __exit__(self, *_: object) -> None:
        hooks = self._hooks
        held, hooks.held, hooks.holds = hooks.held, [], None
        try:
            hooks.emit(*held)
        finally:
            hooks.lock.release()


def _named(event: MemoryEvent) -> str:
    """The kind of an event, and its place in the engine."""
    return f"{event.__struct_config__.tag}" + ("" if event.at is None else f" ({event.at})")


def _raised_at(error: BaseException) -> tuple[str, str]:
    """The line that raised an error, and its function. The line describes an error without a message."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.line or "", last.name


def chained(label: str, tokens: object) -> str:
    """The label of the content that ends with `tokens`, after the content of `label`. It reveals no token.

    After a `~` follow the marks of the tenant or weights that the content belongs to (`kvattach.residency.foreign`),
    and after another `~` those of the images in it (`illustrated`).
    """
    number, mark, whose = label.partition("~")
    return f"{hash((int(number, 16) if number else 0, tokens)) & 0xFFFF_FFFF_FFFF_FFFF:x}{mark}{whose}"


def illustrated(label: str, images: object) -> str:
    """The label of the same tokens with these images or sounds added to those that it has."""
    if not images:
        return label
    number, _, marks = label.partition("~")
    whose, _, before = marks.partition("~")
    return f"{number}~{whose}~{chained(before, images)}"
