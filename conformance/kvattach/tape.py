"""The tape of hooks that never wait for a device: their captures, in order, until they are resolved.

A hook *captures* on the engine's thread: it copies what it reads of the host, and queues a copy of each tensor on the
current stream, so that the copy has what the tensor has at that place of the stream. A *resolution* runs later, once
these copies are complete: it turns them into pages, and emits events. Resolutions run one at a time, in the order of
the captures, so what only they touch needs no lock.
"""

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from time import sleep
from typing import Any

MOST = 1 << 16
"""The most captures that wait. One step of an engine makes about ten."""
POLL = 0.0005
"""Seconds between two looks at whether copies have arrived."""
PAUSE = 0.0005
"""Seconds that the engine's thread has for itself after a capture, before a batch of captures is resolved."""
BATCH = 32
"""The most further captures of a batch. One step of an engine makes about ten."""
PATIENCE = 5.0
"""Seconds that an ending process waits for the rest of its tape."""


class TapeFullError(RuntimeError):
    """The device, or the thread that resolves, is too far behind."""


class Tape:
    """Captures that are not resolved yet, and the thread that resolves them."""

    def __init__(self, stream: Callable[[], Any] | None = None, event: Callable[[], Any] | None = None) -> None:
        """`stream` returns the current stream of a device, and `event` makes an event of it, which no hook observes.

        Without them tensors are on the CPU.
        """
        self.captures = 0
        """Captures so far."""
        self.waits: Counter[str] = Counter()
        """Hook -> how often it has waited for the tape."""
        self._stream, self._event = stream, event
        self._arrived: dict[Any, int] = {}
        """Stream -> the last capture of which it is known that all its copies on this stream have arrived."""
        self._queue: SimpleQueue[tuple[Callable[..., object], list[Any], int, Any]] = SimpleQueue()
        self._counting = threading.Lock()
        self._turn = threading.RLock()
        """Held by the thread that may touch what resolutions touch."""
        self._turns: int | None = None
        """That thread's identity."""
        self._broken: BaseException | None = None
        """The error of a resolution, which stops the others."""

    @property
    def defers(self) -> bool:
        """Whether what this thread does now is resolved later: it is not itself resolving."""
        return self._turns != threading.get_ident()

    def put(self, resolve: Callable[..., object], *tensors: Any) -> None:
        """Call `resolve` later, with what these tensors have on the current stream now; for `None` with `None`.

        Raises:
            TapeFullError: too many captures wait.
            BaseException: a resolution has raised it.
        """
        if self._broken is not None:
            raise self._broken
        if self._queue.qsize() >= MOST:
            raise TapeFullError(f"{MOST} captures wait")
        copies = [None if tensor is None else self._copied(tensor) for tensor in tensors]
        stream = self._stream() if copies and self._stream is not None else None
        # The copies are queued before the number counts them.
        with self._counting:
            self.captures += 1
            self._queue.put((resolve, copies, self.captures, stream))

    def _copied(self, tensor: Any) -> Any:
        """A tensor in memory of the host; from a device it arrives later, in pinned memory."""
        return tensor.clone() if tensor.is_cpu else tensor.to("cpu", non_blocking=True)

    def start(self) -> None:
        """Resolve from now on, in a thread of its own, until the process ends."""
        threading.Thread(target=self._run, name="kvspec-tape", daemon=True).start()
        atexit.register(self._end, os.getpid())

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            # The engine's thread goes first: usually it captures more in this step.
            sleep(PAUSE)
            self._resolve(*first)
            further = BATCH
            while further and not self._queue.empty():
                self._resolve(*self._queue.get())
                further -= 1

    def _end(self, process: int) -> None:
        if os.getpid() == process:  # a forked child has no such thread
            self.drain(PATIENCE)

    def _resolve(self, resolve: Callable[..., object], copies: list[Any], number: int, stream: Any) -> None:
        try:
            if stream is not None and self._arrived.get(stream, 0) < number:
                self._wait(stream)
            with self._taken():
                resolve(*copies)
        except BaseException as error:
            self._broken = error

    def _wait(self, stream: Any) -> None:
        """Wait for all copies that a stream has now. The event is recorded here: the engine's thread has no time."""
        assert self._event is not None
        queued, event = self.captures, self._event()
        event.record(stream)
        while not event.query():
            sleep(POLL)
        self._arrived[stream] = queued

    @contextmanager
    def _taken(self) -> Iterator[None]:
        with self._turn:
            before, self._turns = self._turns, threading.get_ident()
            try:
                yield
            finally:
                self._turns = before

    @contextmanager
    def caught_up(self, hook: str) -> Iterator[None]:
        """Wait until everything is resolved. Within this context the calling thread captures nothing.

        Raises:
            BaseException: a resolution has raised it.
        """
        if self.defers:
            self.waits[hook] += 1
            self.drain()
        if self._broken is not None:
            raise self._broken
        with self._taken():
            yield

    def drain(self, seconds: float | None = None) -> None:
        """Wait until everything is resolved, at most for some seconds."""
        resolved = threading.Event()
        self._queue.put((resolved.set, [], 0, None))
        resolved.wait(seconds)
