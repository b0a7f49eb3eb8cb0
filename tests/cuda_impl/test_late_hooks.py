"""On a GPU SGLang's hooks emit late what they would emit at once, and never wait for the device."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from benchmarks.late_hooks import Engine, Events, attached, tape_of

from kvattach.sglang.hooks import Attached
from kvattach.tape import Tape
from kvspec.memory.events import MemoryEvent

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


class Held(Tape):
    """Resolves nothing until the engine has ended: then all rows have been written over."""

    naive = False
    """Whether a capture keeps the engine's own tensor, and not a copy."""

    def start(self) -> None:
        """Do nothing yet."""

    def drain(self, seconds: float | None = None) -> None:
        super().start()
        super().drain(seconds)

    def _copied(self, tensor: Any) -> Any:
        return tensor if self.naive else super()._copied(tensor)


def run(device: str, tape: Tape | None, page_size: int) -> list[MemoryEvent]:
    """The events of requests that come, decode and end, in rows and pages that others had."""
    events = Events()
    engine = Engine(6, page_size, device, 4 * page_size)
    waits = no_waits() if device == "cuda" and tape is not None else nullcontext()
    with attached(engine, events, tape) as hooked, waits:
        serve(engine, hooked)
    return events.all


@contextmanager
def no_waits() -> Iterator[None]:
    """Fail if anything waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def serve(engine: Engine, hooked: Attached) -> None:
    for count in (3, 2, 1, 3):
        engine.admit(count)
        for _ in range(9):
            engine.decode()
            hooked.looked()
        engine.finish(count)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_late_events_are_those_of_hooks_that_read_at_once(device: str, page_size: int) -> None:
    expected = run(device, None, page_size)
    assert len(expected) > 200
    assert run(device, tape_of(device, Held), page_size) == expected
    assert run(device, tape_of(device, Tape), page_size) == expected


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_view_of_a_row_in_the_place_of_a_copy_shows(device: str) -> None:
    tape = tape_of(device, Held)
    tape.naive = True
    assert run(device, tape, 4) != run(device, None, 4)
