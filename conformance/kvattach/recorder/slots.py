"""Slot indices in a tensor, for a trace that is written later.

On a CPU they are copied at once. On a GPU they are copied to pinned memory, in the order of the engine's own stream,
and the writer's thread waits for the copy: the engine's thread never waits for the device.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

Read = Callable[[], list[int]]
"""Returns the slot indices. It is called once, in the writer's thread, in the order of the captures."""

PINNED = 1 << 20
"""The most slot indices that may wait in pinned memory (8 bytes each)."""


class NoRoom(Exception):
    """More slot indices wait than fit in pinned memory."""


class Slots:
    """Reads slot indices from tensors."""

    def __init__(self, torch: Any, device: str, capacity: int = PINNED) -> None:
        """Read from tensors on `device`."""
        self._torch = torch
        on_cpu = device == "cpu"
        self._ring = None if on_cpu else Ring(capacity)
        self._pinned: Any = None if on_cpu else torch.empty(capacity, dtype=torch.int64, pin_memory=True)

    def capture(self, tensor: Any) -> Read:
        """Capture the current content of a tensor.

        Raises:
            NoRoom: too many slot indices wait already.
        """
        if self._ring is None or tensor.device.type == "cpu":
            read: Read = tensor.clone().tolist
            return read
        place = self._ring.take(tensor.numel())
        view = self._pinned[place]
        view.copy_(tensor, non_blocking=True)
        done = self._torch.cuda.Event()
        done.record()
        return lambda: self._read(done, view)

    def _read(self, done: Any, view: Any) -> list[int]:
        done.synchronize()
        slots: list[int] = view.tolist()
        assert self._ring is not None
        self._ring.give_back()
        return slots


class Ring:
    """Places in a ring buffer, given back in the order in which they were taken: one thread takes, one gives back."""

    def __init__(self, capacity: int) -> None:
        """Begin with all places free."""
        self._capacity = capacity
        self._ends: deque[int] = deque()
        self._head = self._tail = 0
        """The total numbers of elements taken and given back, including those that were skipped at the buffer's end."""

    def take(self, count: int) -> slice:
        """A free place of `count` elements.

        Raises:
            NoRoom: there is no such place.
        """
        start = self._head
        if start % self._capacity + count > self._capacity:
            start += self._capacity - start % self._capacity
        if start + count - (self._tail if self._ends else start) > self._capacity:
            raise NoRoom(f"no room for {count:,} slot indices in pinned memory")
        self._head = start + count
        self._ends.append(self._head)
        return slice(start % self._capacity, start % self._capacity + count)

    def give_back(self) -> None:
        """Free the oldest place."""
        self._tail = self._ends.popleft()
