"""The traffic of the drives: requests that share prompts, and aborts of any of them, at any moment.

`Traffic` draws the requests that arrive; a driver turns them into the engine's messages. All draws of a run come from
one generator, so the same seed gives the same run.
"""

import random
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

EOS = 0
STUCK = "the requests never finish"
DRAIN = 2_000
"""The most loops until the last requests end."""
CHATS = 3
"""The number of latest chats that may go on."""
ERRORS = (AssertionError, IndexError, KeyError, RuntimeError, ValueError)
"""Errors with which an engine gives up. Any other error comes from a stub that does not fit the engine."""


class Done(BaseException):
    """No further request arrives, and nothing is left to do."""


def last_ones(running: int) -> int:
    """The number of requests at the end of a run: none is aborted or fails, and each must end by itself.

    If aborts went on to the end, they would remove every request that hangs.
    """
    return max(1, running // 2)


class Traffic:
    """The requests of one run. Their prompts have beginnings in common, the stems."""

    def __init__(
        self, rng: random.Random, requests: int, longest: int, alphabet: int, *, running: int = 1, stems: int = 3
    ) -> None:
        """`requests` requests of at most `longest` tokens between 1 and `alphabet`; at most `running` run at once."""
        self._last = last_ones(running)
        self.rng, self.left, self.longest, self._alphabet = rng, requests, longest, alphabet
        self._stems = [self.tokens(longest) for _ in range(stems)]
        self.texts: list[list[int]] = []
        """Prompts with their answers, from which chats go on."""
        self.live: list[Any] = []
        """Requests that have arrived and have not finished."""
        self.gone: set[Any] = set()
        """Requests that were aborted: their answers are not delivered."""
        self._loops = self._count = self._drained = 0

    @property
    def calm(self) -> bool:
        """Whether only the last requests are left."""
        return not self.left and len(self.live) <= self._last

    def end(self) -> NoReturn:
        """End the run: nothing is left to do.

        Raises:
            RuntimeError: requests never finished.
            Done: all did.
        """
        if self.live:
            raise RuntimeError(f"{STUCK}: {len(self.live)} were forgotten")
        raise Done

    def loop(self, most: int) -> None:
        """One more loop of the scheduler.

        Raises:
            RuntimeError: there were more than `most`, or more than `DRAIN` for the last requests.
        """
        self._loops += 1
        self._drained += bool(self.live) and self.calm
        if self._loops > most or self._drained > DRAIN:
            raise RuntimeError(STUCK)

    def arriving(self, request: Callable[[], T], *, least: int = 0) -> list[T]:
        """The requests that arrive now, each made by `request`: at least `least` of them, if so many are left."""
        arrived: list[T] = []
        while self.left and (len(arrived) < least or self.rng.random() < 0.4):
            arrived.append(request())
            self.left -= 1
        return arrived

    def number(self) -> int:
        """The number of the next request."""
        self._count += 1
        return self._count

    def prompt(self, length: int, shared: int | None = None) -> list[int]:
        """A prompt that has `shared` tokens of a stem, or of a chat; without a number it is drawn."""
        shared = self.rng.randint(0, length) if shared is None else shared
        start = self.rng.choice([*self._stems, *self.texts[-CHATS:]])[:shared]
        return start + self.tokens(length - len(start))

    def tokens(self, count: int) -> list[int]:
        """Random tokens."""
        return [self.rng.randint(1, self._alphabet) for _ in range(count)]

    def length(self, parts: int) -> int:
        """The length of a prompt or an output, at most one of so many `parts` of the longest."""
        return self.rng.randint(1, max(1, self.longest // parts))

    def aborted(self, aborts: float) -> Any | None:
        """The request that is aborted now, if any; `aborts` is the probability of an abort."""
        if self.live and not self.calm and self.rng.random() < aborts:
            self.gone.add(name := self.live.pop(self.rng.randrange(len(self.live))))
            return name
        return None

    def finished(self, name: Any) -> None:
        """A request is complete: its last answer was sent."""
        if name in self.live:
            self.live.remove(name)


class PausingTraffic(Traffic):
    """Traffic for a server that is paused now and then, with the messages of SGLang."""

    paused = False
    _idled = 0

    def idle(self, is_idle: bool) -> bool:
        """Whether the scheduler has been idle for a while, and nothing arrives any more."""
        self._idled = self._idled + 1 if is_idle and not self.paused else 0
        return self._idled > 2 and not self.left

    def pausing(self, messages: Any, pauses: float, *, flushes: float = 0.0) -> list[Any]:
        """Pause the server, or let it go on. `flushes` is the probability that its cache is flushed in a pause."""
        if not self.paused:
            self.paused = not self.calm and self.rng.random() < pauses
            mode = self.rng.choice(["in_place", "retract"]) if self.paused else ""
            return [messages.PauseGenerationReqInput(mode=mode)] if self.paused else []
        self.paused = not self.calm and self.rng.random() < 0.7
        if not self.paused:
            return [messages.ContinueGenerationReqInput()]
        # A flush, as before new weights are loaded. It is refused while requests run.
        return [messages.FlushCacheReqInput()] if flushes and self.rng.random() < flushes else []


def until_done(loop: Callable[[], object], errors: tuple[type[Exception], ...] = ERRORS) -> str:
    """Run a scheduler until nothing is left to do. Returns the error with which the engine gave up, if any."""
    try:
        loop()
    except Done:
        pass
    except errors as error:
        return f"{type(error).__name__}: {error}"
    return ""
