"""The slots for recurrent states. Like rows, slots are numbers that the host hands out from a free list."""

from kvspec.events import Config


class StateSlots:
    """The free state slots, as a ring. Each holder has the numbers of its own slots."""

    def __init__(self, config: Config) -> None:
        """All slots are free."""
        self.size = config.num_states
        self.a_run = 1 + config.tracking_states if self.size else 0
        """Slots of a running request: one to compute in, and those that keep states at page borders."""
        self._ring = list(range(1, self.size + 1))
        self._popped = 0
        self.pushed = 0
        """Slots that became free since the start."""

    @property
    def available(self) -> int:
        """Free slots."""
        return self.size + self.pushed - self._popped

    def take(self) -> int:
        """Take a free slot. The caller has checked that there is one."""
        slot = self._ring[self._popped % self.size]
        self._popped += 1
        return slot

    def give_back(self, slots: list[int]) -> None:
        """Free slots."""
        for slot in slots:
            self._ring[self.pushed % self.size] = slot
            self.pushed += 1

    def since(self, pushed: int) -> list[int] | None:
        """The slots that became free since the counter was `pushed`; `None` without recurrent states."""
        return [self._ring[number % self.size] for number in range(pushed, self.pushed)] if self.size else None

    def free(self) -> list[int]:
        """All free slots."""
        return [self._ring[number % self.size] for number in range(self._popped, self.size + self.pushed)]
