"""The window pool: the K/V of layers with a sliding window, a page of its own behind each page (20070)."""

from collections.abc import Collection, Iterable

from kvref.allocator import PagedAllocator, TokenAllocator


class SWAAllocator(PagedAllocator):
    """Pages with a *window side*: a page of a second, smaller pool, which may be freed before them.

    `alloc` takes pages with their window sides, or neither; `free` frees a page's window side too, if it still has one.
    So only `free_window` depends on there being two pools, and no side is freed twice (SWA-1).
    """

    def __init__(self, num_pages: int, page_size: int, num_window_pages: int) -> None:
        """All pages and all window pages `1..num_window_pages` are free."""
        super().__init__(num_pages, page_size)
        self.window = TokenAllocator(num_window_pages)
        self.window_of: dict[int, int] = {}
        """Page -> its window side. A page in use that is not here has lost its side."""

    def alloc(self, count: int) -> list[int]:
        """Take `count` free pages with their window sides.

        Raises:
            ValueError: fewer are free in one of the pools; nothing was taken from either.
        """
        if count > self.window.available:
            raise ValueError(f"{count} window pages were asked for, {self.window.available} are free")
        pages = super().alloc(count)
        self.window_of.update(zip(pages, self.window.alloc(count), strict=True))
        return pages

    def free(self, pages: Collection[int]) -> None:
        """Free pages, and the window sides that they still have.

        Raises:
            DoubleFreeError: some page was free already, or is named twice.
        """
        super().free(pages)
        self.free_window(pages)

    def free_window(self, pages: Iterable[int]) -> None:
        """Free the window sides that pages still have; the pages stay in use."""
        self.window.free([self.window_of.pop(page) for page in pages if page in self.window_of])

    def move_window(self, page: int, to: int) -> None:
        """Put the window side of `page` behind the page `to`, which has none."""
        self.window_of[to] = self.window_of.pop(page)

    def windows_of(self, pages: Iterable[int]) -> list[int]:
        """The window sides of new pages, in their order."""
        return [self.window_of[page] for page in pages]
