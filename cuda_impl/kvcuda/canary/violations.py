"""The canary's violations: a ring that the device writes and the host polls without waiting."""

from typing import NamedTuple

import torch

from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.canary.words import ENTRY_WORDS, LAUNCH_BITS, ViolationKind
from kvcuda.digest import mix, signed


class Held(NamedTuple):
    """The content of a slot, by its stamps."""

    position: int
    token: int
    request: str
    launch: int

    def __str__(self) -> str:
        return f"position {self.position} of request {self.request}, written at launch {self.launch}"


class Violation(NamedTuple):
    """One wrong slot that a forward pass was about to read or write."""

    kind: ViolationKind
    launch: int
    """The pass, counted from 1."""
    pool: str
    request: str
    """The request that the pass reads or writes the slot for."""
    position: int
    slot: int
    """In slots of its pool."""
    expected: int
    """The expected label; labels are those of `kvcuda.canary.chain`."""
    found: int
    """Its label."""
    held: Held | None
    """The last write there; `None` if there was none, or there is no such slot."""
    times: int
    """Wrong positions of the same block; this is the first one."""

    def __str__(self) -> str:
        where = f"slot {self.slot}" if not self.pool else f"slot {self.slot} of {self.pool}"
        reads = f"launch {self.launch} reads position {self.position} of request {self.request} from {where}"
        more = f" ({self.times - 1} more behind it)" if self.times > 1 else ""
        match self.kind:
            case ViolationKind.WRITES:
                writes = f"launch {self.launch} writes position {self.position} of request {self.request} to {where}, "
                return f"{writes}which does not exist{more}"
            case ViolationKind.RANGE:
                return f"{reads}, which does not exist{more}"
            case ViolationKind.NEVER:
                return f"{reads}, which was never written{more}"
            case ViolationKind.BYTES:
                return f"{reads}, whose bytes have changed since they were written: it holds {self.held}{more}"
        same = self.held is not None and (self.held.position, self.held.request) == (self.position, self.request)
        other = ", behind other tokens than the request has" if same else ""
        return f"{reads}, but it holds {self.held}{other}{more}"


class Ring:
    """The ring of violations, in pinned host memory if there is a GPU, so that the host reads it without waiting.

    The device overwrites the oldest entries; `lost` counts those that the host has missed.
    """

    def __init__(self, capacity: int = 1024) -> None:
        """An empty ring."""
        self.capacity = capacity
        self.entries: torch.Tensor = torch.zeros(capacity, ENTRY_WORDS, dtype=torch.int64, pin_memory=DEVICE == "cuda")
        """int64 [capacity, ENTRY_WORDS]: written by the device."""
        self.count: torch.Tensor = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        """int64 [1], on the device: violations so far."""
        self._seen: Ints = self.entries.numpy()
        self.taken = 0
        """Violations that the host has taken or missed."""
        self.lost = 0

    def take(self) -> list[list[int]]:
        """The words of all complete violations that were not taken yet, in order."""
        found: list[list[int]] = []
        while True:
            words: list[int] = self._seen[self.taken % self.capacity].tolist()
            if words[0] <= self.taken or not _is_whole(words):
                return found
            missed = words[0] - 1 - self.taken
            self.lost += missed
            self.taken += missed + 1
            found.append(words)


def _is_whole(words: list[int]) -> bool:
    """Whether an entry was written completely: its last word is the digest of the others."""
    *content, check = words
    return mix(signed(sum(mix(signed(word + index)) for index, word in enumerate([*content, 0])))) == check


def launch_of(writer: int) -> int:
    """The launch in the word that names a slot's writer."""
    return writer & ((1 << LAUNCH_BITS) - 1)


def number_of(writer: int) -> int:
    """The request's number in that word."""
    return writer >> LAUNCH_BITS
