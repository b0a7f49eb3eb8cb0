"""The allocators: the free pages.

A page is only a number here. Neither start-up nor any step costs more in a larger pool: unused pages are a counter,
freed pages a stack.
"""

from collections.abc import Collection

from kvspec.pages import ceil_pages


class DoubleFreeError(Exception):
    """A free page was freed (rule PAGE-1): two owners would get it next."""


class TokenAllocator:
    """The allocator of a pool with `page_size` 1: a page is one token's slot.

    Every page in `1..num_pages` is in exactly one of three sets:

        never used               [_next_unused, num_pages]
        freed                    _recycled, the last freed is the first to be taken
        in use                   _in_use
    """

    def __init__(self, num_pages: int) -> None:
        """All pages `1..num_pages` are free; page 0 is the padding page and has no owner."""
        self.num_pages = num_pages
        self._next_unused = 1
        self._recycled: list[int] = []
        self._in_use: set[int] = set()
        self._freed: list[int] = []

    @property
    def available(self) -> int:
        """The number of free pages."""
        return len(self._recycled) + self.num_pages + 1 - self._next_unused

    def short_of(self, count: int) -> int:
        """The shortage if `count` free pages are needed."""
        return max(0, count - self.available)

    def pages_missing(self, held: int, length: int) -> int:
        """The number of pages that a block table of `held` pages lacks to hold `length` tokens."""
        return max(0, length - held)

    def alloc(self, count: int) -> list[int]:
        """Take `count` free pages.

        Raises:
            ValueError: fewer are free; nothing was taken.
        """
        if count > self.available:
            raise ValueError(f"{count} pages were asked for, {self.available} are free")
        recycled = self._recycled
        split = max(0, len(recycled) - count)
        pages = recycled[split:]
        del recycled[split:]
        first = self._next_unused
        self._next_unused += count - len(pages)
        pages.extend(range(first, self._next_unused))
        self._in_use.update(pages)
        return pages

    def alloc_extend(self, table: list[int], length: int) -> list[int]:
        """Lengthen a block table so that it holds `length` tokens, and return the new pages (17850).

        Raises:
            ValueError: fewer pages are free; nothing was taken.
        """
        pages = self.alloc(self.pages_missing(len(table), length))
        table += pages
        return pages

    def free(self, pages: Collection[int]) -> None:
        """Give pages back.

        Raises:
            DoubleFreeError: some page was free already, or is named twice.
        """
        used = len(self._in_use)
        self._in_use.difference_update(pages)
        if used - len(self._in_use) != len(pages):
            raise DoubleFreeError(f"of the pages {pages}, some were free already, or are named twice")
        self._recycled.extend(pages)
        self._freed.extend(pages)

    def drain_freed(self) -> list[int]:
        """The pages freed since the last call, in order, so that an operation answers with its actual frees."""
        freed = self._freed
        self._freed = []
        return freed

    def free_pages(self) -> list[int]:
        """All free pages, in ascending order. The cost grows with the pool; only a snapshot asks."""
        return [*sorted(self._recycled), *range(self._next_unused, self.num_pages + 1)]


class PagedAllocator(TokenAllocator):
    """The allocator of a pool with larger pages: the last page of a block table may be held in part (20070)."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        """All pages are free; each holds `page_size` tokens."""
        super().__init__(num_pages)
        self.page_size = page_size

    def pages_missing(self, held: int, length: int) -> int:
        """The pages that a block table of `held` pages lacks for `length` tokens after its last page is filled."""
        return max(0, ceil_pages(length, self.page_size) - held)
