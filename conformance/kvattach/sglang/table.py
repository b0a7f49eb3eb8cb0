"""Looks at SGLang's table of rows (`req_to_token`), at launches: the first entry of each page, and its window."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from kvattach.sglang.view import KV, WINDOW, Ids, Stay

Look = tuple[int, bytes, bytes]
"""A look at a row: its first page that was looked at, the entries from there on, and the window's slots behind them."""
NOTHING: Look = (0, b"", b"")
"""A look without entries."""
Seen = Callable[..., Iterable[Look]]
"""Makes a look at each row from the tensors that were captured."""
SLOTS = ("req_index_to_mamba_index_mapping", "req_index_to_mamba_ping_pong_track_buffer_mapping")
"""The release's tables of the slots of each row's states."""
SIDE = 8
"""The bytes of the slot of a window."""


class Table:
    """The table of one memory, with pages of `size` tokens."""

    def __init__(
        self, torch: Any, entries: Any, size: int, sides: Any = None, slots: Sequence[Any] = (), *, whole: bool
    ) -> None:
        """`entries` is the tensor, with a row for each request; `sides` has the window's slot of each slot, if any.

        `slots` are the tensors with the slots of each row's states: that in which a launch advances them, and those in
        which kept states are tracked. `whole`: each look is at all entries of a row, and not only at new ones, if the
        host has them.
        """
        self._slots = slots
        self._torch, self._entries, self._size, self._sides = torch, entries, size, sides
        self._bytes = entries.element_size()
        self._width = int(entries.shape[1])
        on_host = entries.device.type == "cpu"
        self.whole = on_host and whole
        """Whether a look is at all entries."""
        # An array is quicker than a tensor.
        self._array: Any = entries.numpy() if on_host else None
        self._behind: Any = sides.numpy() if on_host and sides is not None else None

    def look(self, stays: Sequence[Stay], stops: Sequence[int], *, anew: bool = False) -> tuple[Seen, list[Any]]:
        """Capture the rows of requests, each up to a position; `anew` also the entries that were captured before.

        Returns the maker of a look at each, and the tensors that hold their entries.
        """
        if self.whole:
            looks = [self._all(stay, stop) for stay, stop in zip(stays, stops, strict=True)]
            return lambda: looks, []
        size, width = self._size, self._width
        index, seen = array("q"), partial(self._seen, stays, stops, anew)
        for stay, stop in zip(stays, stops, strict=True):
            first = 0 if anew else stay.looked
            if first >= stop:
                continue
            row, end = stay.row * width, first + size
            if end >= stop:
                index.append(row + first)
            else:
                index.extend(range(row + first, row + stop, size))
                end = stop + -stop % size
            if end > stay.looked:
                stay.looked = end
        if not index:
            return partial(repeat, NOTHING, len(stays)), []
        entries = self._torch.take(self._entries, self._sent(index))
        return seen, [entries] if self._sides is None else [entries, self._torch.take(self._sides, entries.long())]

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

    def _all(self, stay: Stay, stop: int) -> Look:
        if stop > stay.looked:
            stay.looked = stop + -stop % self._size
        entries = self._array[stay.row, : stop : self._size]
        return 0, entries.tobytes(), b"" if self._behind is None else self._behind[entries].tobytes()

    def _seen(self, stays: Sequence[Stay], stops: Sequence[int], anew: bool, *tensors: Any) -> Iterator[Look]:
        """A look at the entries of each row up to a position, from the tensors as they were then."""
        entries, sides = ([tensor.cpu().numpy().tobytes() for tensor in tensors] + [b"", b""])[:2]
        at, size = 0, self._bytes
        for stay, stop in zip(stays, stops, strict=True):
            first, end = 0 if anew else stay.seen, -(-stop // self._size)
            if first >= end:
                yield first, b"", b""
                continue
            stay.seen = max(stay.seen, end)
            begin, at = at, at + end - first
            yield first, entries[begin * size : at * size], sides[begin * SIDE : at * SIDE]

    def pages(self, stay: Stay, first: int, entries: bytes) -> tuple[int, Ids]:
        """The pages that a request's row names, and did not name before, and the index of the first of them.

        All entries are compared with those of the looks before; only those after them become pages.
        """
        size, had, begin = self._bytes, stay.entries, first * self._bytes
        if begin == len(had):
            new = entries
            had += new
        elif had.startswith(entries, begin):
            return 0, []
        elif entries.startswith(had[begin:]):
            first, new = len(had) // size, entries[len(had) - begin :]
            had += new
        else:
            had[begin:] = entries
            first, new = 0, bytes(had)
        known = stay.pages.setdefault(KV, [])
        pages = [slot // self._size for slot in array("i" if size == 4 else "q", new)]
        if len(known) <= first:
            return first, pages
        same = shared(known[first:], pages)
        return first + same, pages[same:]

    def behind(self, stay: Stay, first: int, sides: bytes) -> tuple[int, Ids]:
        """The same of its window pages, from the first one on that layers with a window read."""
        known = stay.pages.setdefault(WINDOW, [])
        if not sides:
            return 0, []
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
