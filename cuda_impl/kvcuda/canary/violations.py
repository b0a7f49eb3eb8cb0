"""What the canary found, as the host is told: a ring that the device writes, polled without waiting for it."""

from typing import Any, NamedTuple

import torch

from kvcuda.backend import DEVICE
from kvcuda.canary.words import ENTRY_WORDS, LAUNCH_BITS, What
from kvcuda.digest import mix, signed


class Held(NamedTuple):
    """What a slot holds, as far as stamps say."""

    position: int
    token: int
    request: str
    launch: int

    def __str__(self) -> str:
        return f"position {self.position} of request {self.request}, written at launch {self.launch}"


class Violation(NamedTuple):
    """One slot that a forward pass was about to read, or write, and that is not what it should be."""

    what: What
    launch: int
    """The pass, counted from 1."""
    pool: str
    request: str
    """For whom the slot was looked at."""
    position: int
    slot: int
    """In slots of its pool."""
    expected: int
    """The label that it should have; labels are those of `kvcuda.canary.chain`."""
    found: int
    """The label that it has."""
    held: Held | None
    """What was written there last; `None` if nothing ever was, or there is no such slot."""
    times: int
    """How many positions of the same block are wrong; this is the first one."""

    def __str__(self) -> str:
        where = f"slot {self.slot}" if not self.pool else f"slot {self.slot} of {self.pool}"
        reads = f"launch {self.launch} reads position {self.position} of request {self.request} from {where}"
        more = f" ({self.times - 1} more behind it)" if self.times > 1 else ""
        match self.what:
            case What.WRITES:
                said = f"launch {self.launch} writes position {self.position} of request {self.request} to {where}, "
                return f"{said}which is none{more}"
            case What.RANGE:
                return f"{reads}, which is none{more}"
            case What.NEVER:
                return f"{reads}, where nothing was ever written{more}"
            case What.BYTES:
                return f"{reads}, whose bytes are not those that were written: it holds {self.held}{more}"
        same = self.held is not None and (self.held.position, self.held.request) == (self.position, self.request)
        other = ", behind other tokens than the request has" if same else ""
        return f"{reads}, but it holds {self.held}{other}{more}"


class Ring:
    """The ring of violations: in pinned memory of the host where there is a GPU, so that reading it waits for nothing.

    The device overwrites the oldest ones; how many the host has missed, `lost` counts.
    """

    def __init__(self, capacity: int = 1024) -> None:
        """An empty ring."""
        self.capacity = capacity
        self.entries: Any = torch.zeros(capacity, ENTRY_WORDS, dtype=torch.int64, pin_memory=DEVICE == "cuda")
        """int64 [capacity, ENTRY_WORDS]: written by the device."""
        self.count: Any = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        """int64 [1], on the device: violations so far."""
        self._seen: Any = self.entries.numpy()
        self.taken = 0
        """Violations that the host has taken or missed."""
        self.lost = 0

    def take(self) -> list[list[int]]:
        """The words of all violations that are whole and were not taken yet, in order."""
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
    """Whether an entry was written to its end."""
    *said, check = words
    return mix(signed(sum(mix(signed(word + lane)) for lane, word in enumerate([*said, 0])))) == check


def launch_of(writer: int) -> int:
    """The launch in a word that says who wrote a slot."""
    return writer & ((1 << LAUNCH_BITS) - 1)


def number_of(writer: int) -> int:
    """The request's number in it."""
    return writer >> LAUNCH_BITS
