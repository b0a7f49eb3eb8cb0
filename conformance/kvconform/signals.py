"""SIGINT and SIGTERM: the first ends the work and the results so far are reported; the second ends the process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal ends the command. Raised only after `listen`: programs that embed kvspec keep their handlers."""


_ENDING = (signal.SIGINT, signal.SIGTERM)

_caught = 0
"""The signal that was caught; 0: none."""


def listen() -> None:
    """Raise `Interrupted` at SIGINT and SIGTERM from now on."""
    for number in _ENDING:
        signal.signal(number, _interrupt)


def ignore_terminal() -> None:
    """In a worker process: its parent process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def obey() -> None:
    """In a worker process that returns its results when interrupted: its parent process sends it SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextmanager
def held() -> Iterator[None]:
    """Defer signals to the end of the block, which completes. Child processes inherit the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    global _caught  # noqa: PLW0603 - signals are the process's, and so is this
    _caught = number
    raise Interrupted


def caught() -> int:
    """The signal that ended the work; 0 if none did."""
    return _caught


def forgive() -> None:
    """Forget the signal: it was the ordinary end, not an early one."""
    global _caught  # noqa: PLW0603
    _caught = 0


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block until a signal interrupts it; the code after it reports the results."""
    with suppress(Interrupted):
        yield
