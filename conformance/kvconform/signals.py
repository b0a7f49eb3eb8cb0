"""SIGINT and SIGTERM: the first one ends what is under way, and what there is by then is told; a second ends all."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Somebody wants the command to end. Only `listen` raises it, so that whoever embeds kvspec keeps his own ways."""


_ENDING = (signal.SIGINT, signal.SIGTERM)

_caught = 0
"""The signal, once there was one."""


def listen() -> None:
    """Raise `Interrupted` at SIGINT and SIGTERM from now on."""
    for number in _ENDING:
        signal.signal(number, _interrupt)


def ignore_terminal() -> None:
    """In a worker process: whoever started it ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def obey() -> None:
    """In a worker process that tells what it has when it is interrupted: whoever started it does that, by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextmanager
def held() -> Iterator[None]:
    """A signal that comes meanwhile counts afterwards: what is done here is done whole. Processes inherit that."""
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
    """The signal that ended what was under way; 0 if none did."""
    return _caught


def forgive() -> None:
    """It was the ordinary end, not an early one."""
    global _caught  # noqa: PLW0603
    _caught = 0


@contextmanager
def until_interrupted() -> Iterator[None]:
    """What is done until somebody interrupts it; what comes after it tells what there is."""
    with suppress(Interrupted):
        yield
