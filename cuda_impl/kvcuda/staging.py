"""Words for kernels: a ring of preallocated buffers on the host, pinned if there is a GPU.

A kernel that reads each job once reads them there. That takes half the time of a copy and a kernel after it.
"""

import torch

from kvcuda.arrays import Words
from kvcuda.streams import Event, Streams


def padded(used: int) -> int:
    """The words that are copied to upload `used` words: the next power of two."""
    return 1 << (used - 1).bit_length()


class Slot:
    """One buffer on the host, and its copy on the device."""

    __slots__ = ("_device", "_host", "device", "passed", "pinned", "words")

    def __init__(self, num_words: int, device: str, passed: Event) -> None:
        """Make both, zeroed; `num_words` is a power of two."""
        self.pinned: torch.Tensor = torch.zeros(num_words, dtype=torch.int32, pin_memory=device == "cuda")
        """The host's side, int32 [num_words]; a kernel can read it."""
        self.words: Words = self.pinned.numpy()
        """The same for the host."""
        self.device: torch.Tensor = torch.zeros(num_words, dtype=torch.int32, device=device)
        """The device's side, int32 [num_words]."""
        self.passed = passed
        """Passed once the kernels that read the slot are done."""
        # One view for each size, made once: a step allocates nothing.
        self._host = [self.pinned[: 1 << size] for size in range(num_words.bit_length())]
        self._device = [self.device[: 1 << size] for size in range(num_words.bit_length())]

    def upload(self, used: int) -> None:
        """Enqueue the copy of the first `used` words to the device."""
        size = (used - 1).bit_length()
        self._device[size].copy_(self._host[size], non_blocking=True)

    def upload_to(self, device: torch.Tensor, used: int) -> None:
        """Enqueue the copy of the first `used` words to another tensor of at least `padded(used)` words."""
        size = (used - 1).bit_length()
        device[: 1 << size].copy_(self._host[size], non_blocking=True)


class Staging:
    """Slots that are used in turn."""

    def __init__(self, num_words: int, device: str, streams: Streams, slots: int = 32) -> None:
        """Make `slots` buffers of at least `num_words` words."""
        self._streams = streams
        self._slots = [Slot(padded(num_words), device, streams.event()) for _ in range(slots)]
        self._next = 0
        self._turns = 0

    def take(self) -> Slot:
        """The next slot, free to be written. Its user records `passed` behind the kernels that read it.

        Waits only if the device is a whole ring of slots behind.
        """
        slot = self._slots[self._next]
        self._next += 1
        if self._next == len(self._slots):
            self._next = 0
            self._turns += 1
        if self._turns and not slot.passed.query():
            slot.passed.synchronize()
        if self._streams.listener is not None:
            self._streams.listener.stage(slot)
        return slot
