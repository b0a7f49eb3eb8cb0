"""Looks at SGLang's table of rows (`req_to_token`), at launches: the first entry of each page, and its window."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from kvattach.sglang.view import KV, WINDOW, Ids, Stay

Looks = Sequence[tuple[bytes, bytes] | int]
"""Looks at rows: the entries of each, and the window behind them; or its first page that was looked at, how many."""

Look = tuple[int, bytes, bytes]
"""A look at a row: its first page that was looked at, the entries from there on, and the window's slots behind them."""
SLOTS = ("req_index_to_mamba_index_mapping", "req_index_to_mamba_ping_pong_track_buffer_mapping")
"""The release's tables of the slots of each row's states."""
SIDE = 8
"""The bytes of the slot of a window."""


class Table:
    """The table of one memory, with pages of `size` tokens."""

    def __init__(self, torch: Any, entries: Any, size: int, sides: Any = None, slots: Sequence[Any] = ()) -> None:
        """`entries` is the tensor, with a row for each request; `sides` has the window's slot of each slot, if any.

        `slots` are the tensors with the slots of each row's states: that in which a launch advances them, and those in
        which kept states are tracked.
        """
        self._slots = slots
        self._torch, self._entries, self._size, self._sides = torch, entries, size, sides
        self._bytes = entries.element_size()
        self._width = int(entries.shape[1])
        self.whole = entries.device.type == "cpu"
        """Whether a look is at all entries, which an array of the host has at once, and not only at new ones."""
        # An array is quicker than a tensor.
        self._array: Any = entries.numpy() if self.whole else None
        self._behind: Any = sides.numpy() if self.whole and sides is not None else None

    def look(
        self, stays: Sequence[Stay | None], stops: Sequence[int], *, anew: bool = False
    ) -> tuple[Looks, list[Any]]:
        """Capture the rows of requests, each up to a position; `anew` also the entries that were captured before.

        Returns a look at each, and the tensors that hold their entries. `None` has no row.
        """
        if self.whole:
            return [self._all(stay, stop) for stay, stop in zip(stays, stops, strict=True)], []
        looks: list[int] = []
        index, size = array("q"), self._size
        for stay, stop in zip(stays, stops, strict=True):
            pages = -(-stop // size)
            if stay is None or (pages <= stay.looked and not anew):
                looks += (0, 0)
                continue
            first = 0 if anew else stay.looked
            looks += (first, pages - first)
            begin = stay.row * self._width + first * size
            if pages - first == 1:
                index.append(begin)
            else:
                index.extend(range(begin, begin + (pages - first) * size, size))
            if pages > stay.looked:
                stay.looked = pages
        if not index:
            return looks, []
        entries = self._torch.take(self._entries, self._sent(index))
        return looks, [entries] if self._sides is None else [entries, self._torch.take(self._sides, entries.long())]

    def _sent(self, numbers: "array[int]") -> Any:
        """Numbers on the device, without a wait for it."""
        made = self._torch.frombuffer(numbers, dtype=self._torch.int64)
        if self._entries.device.type == "cpu":
            return made
        return made.pin_memory().to(self._entries.device, non_blocking=True)

    def states(self, rows: list[int]) -> list[Any]:
        """Capture the slots of the states of rows; `None` for slots that there are not."""
        where = self._sent(array("q", rows))
        return [None if slots is None else slots[where] for slots in self._slots]

    def _all(self, stay: Stay | None, stop: int) -> tuple[bytes, bytes]:
        if stay is None:
            return b"", b""
        stay.looked = max(stay.looked, -(-stop // self._size))
        entries = self._array[stay.row, : stop : self._size]
        return entries.tobytes(), b"" if self._behind is None else self._behind[entries].tobytes()

    def seen(self, looks: Looks, *tensors: Any) -> Iterator[Look]:
        """Each look, from the tensors as they were then."""
        entries, sides = ([tensor.cpu().numpy().tobytes() for tensor in tensors] + [b"", b""])[:2]
        further: Iterator[Any] = iter(looks)
        at = 0
        for one in further:
            if isinstance(one, tuple):
                yield 0, *one
            else:
                begin, at = at, at + next(further)
                yield (
                    one,
                    entries[begin * self._bytes : at * self._bytes],
                    sides[begin * SIDE : at * SIDE],
                )

    def pages(self, stay: Stay, first: int, entries: bytes) -> tuple[int, Ids]:
        """The pages that a request's row names, and did not name before, and the index of the first of them.

        All entries are compared with those of the looks before; only those after them become pages.
        """
        known, size = stay.pages.setdefault(KV, []), self._bytes
        if not entries:
            return 0, []
        if first:
            entries = stay.entries[: first * size] + entries
        if stay.entries.startswith(entries):
            return 0, []
        first = len(stay.entries) // size if entries.startswith(stay.entries) else 0
        stay.entries = entries
        slots = memoryview(entries)[first * size :].cast("i" if size == 4 else "q")
        pages = [slot // self._size for slot in slots]
        same = shared(known[first:], pages)
        return first + same, pages[same:]

    def behind(self, stay: Stay, first: int, sides: bytes) -> tuple[int, Ids]:
        """The same of its window pages, from the first one on that layers with a window read."""
        known = stay.pages.setdefault(WINDOW, [])
        skipped = min(max(stay.reads_from - first, 0), len(sides) // SIDE)
        slots = memoryview(sides)[skipped * SIDE :].cast("q")
        # A page that was never read has none.
        first, unread = first + skipped, max(first + skipped - len(known), 0)
        pages = [0] * unread + [slot // self._size for slot in slots]
        same = shared(known[first - unread :], pages)
        return first - unread + same, pages[same:]


def shared(known: Ids, pages: Ids) -> int:
    """The number of common first pages of two lists. Usually one list continues the other."""
    both = min(len(known), len(pages))
    if known[:both] == pages[:both]:
        return both
    return next(at for at, (one, other) in enumerate(zip(known, pages, strict=False)) if one != other)
