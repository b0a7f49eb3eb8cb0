"""The pools behind SGLang's allocators: what is free in each, and which window page is behind which page.

A model without a second kind of layer has one pool, of pages. With sliding-window layers there is a pool of window
pages besides, and a mapping from the slots of the one to those of the other; with state space layers there are slots
for recurrent states. SGLang's objects are typed `Any`.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from kvconform.scheduler_state import Room
from kvspec.events import Config
from kvspec.pages import Runs, compress


class Freed(NamedTuple):
    """The pages and slots that were freed, as in an answer; `None` for a pool that does not exist."""

    pages: Runs
    window: Runs | None
    states: Runs | None


class Free(NamedTuple):
    """The free numbers of each pool. A number that was freed twice counts twice."""

    pages: Counter[int]
    window: Counter[int] | None
    states: Counter[int] | None

    def since(self, before: "Free") -> Freed:
        """The numbers that became free since `before`."""
        pages, window, states = (
            None if now is None or then is None else compress(sorted((now - then).elements()))
            for now, then in zip(self, before, strict=True)
        )
        assert pages is not None, "every model has pages"
        return Freed(pages, window, states)


class Pools:
    """The pools of one engine."""

    def __init__(self, config: Config, rows: Any, allocator: Any) -> None:
        """Look into a row pool and an allocator as SGLang made them."""
        self._page_size = config.page_size
        self._rows = rows
        self.pages: Any = getattr(allocator, "full_attn_allocator", allocator)
        self.window: Any = getattr(allocator, "swa_attn_allocator", None)
        self._mapping: Any = getattr(allocator, "full_to_swa_index_mapping", None)
        """Slot of a page -> slot of the window page behind it, 0 if there is none."""
        self.states: Any = getattr(rows, "mamba_allocator", None) or getattr(rows, "mamba_pool", None)
        self._first_state = 1 if self.states is None else int(self.states.free_slots.min())
        """Newer releases keep slot 0 for padding."""

    def free(self) -> Free:
        """The numbers that are free now."""
        return Free(
            _free_pages(self.pages),
            None if self.window is None else _free_pages(self.window),
            None if self.states is None else Counter(self.state(slot) for slot in self.states.free_slots),
        )

    def room(self) -> Room:
        """The room that is free now; 0 for a pool that does not exist."""
        return Room(
            self.pages.available_size() // self._page_size,
            len(self._rows.free_slots),
            0 if self.window is None else self.window.available_size() // self._page_size,
            0 if self.states is None else self.states.available_size(),
        )

    def need(self, pages: int, rows: int = 0, states: int = 0) -> Room:
        """The room for so many new pages; with window pages there is one behind each page."""
        return Room(pages, rows, 0 if self.window is None else pages, 0 if self.states is None else states)

    def state(self, slot: Any) -> int:
        """The number of a state slot, counted from 1."""
        return int(slot) - self._first_state + 1

    def side(self, page: int) -> int:
        """The window page behind a page in use; 0 if there is none."""
        return int(self._mapping[page * self._page_size]) // self._page_size

    def sides(self, pages: Iterable[int]) -> dict[int, int]:
        """Page -> the window page behind it, for those of `pages` that have one."""
        return {page: side for page in pages if (side := self.side(page))}


def _free_pages(allocator: Any) -> Counter[int]:
    parts = (allocator.free_pages, allocator.release_pages)  # newer releases have no second part unless they sort
    return Counter(page for part in parts if part is not None for page in part.tolist())
