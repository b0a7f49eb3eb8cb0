"""Token sequences that cost per page, not per token.

A sequence is written as a list whose elements are token ids (integers) or *page keys* (strings): a page key stands for
one whole page of tokens whose text is not given, as in production traces, and may only stand at a page border.
Two sequences share a prefix of whole pages exactly if they share the `PrefixKey` of its last page, so a comparison
costs one step a page.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, groupby
from marshal import dumps

Element = int | str
"""A token id, or the key of one whole page."""

Page = tuple[int, ...] | str
"""The content of one full page: its token ids, or its page key."""

PrefixKey = bytes
"""The digest (16 bytes) of all pages up to and including one: it names a page-aligned prefix."""

_NAME = blake2b(digest_size=16)
"""A digest of nothing yet: to copy it costs less than to make one."""


class Tokens:
    """An append-only token sequence.

    `pages` holds the full pages, `rest` the token ids after them (fewer than `page_size`).
    """

    __slots__ = ("_keys", "page_size", "pages", "rest")

    def __init__(self, page_size: int, elements: Sequence[Element] = ()) -> None:
        """Build a sequence.

        Raises:
            ValueError: a page key does not stand at a page border.
        """
        self.page_size = page_size
        self.pages: list[Page] = []
        self.rest: list[int] = []
        self._keys: list[PrefixKey] = []
        for kind, same in groupby(elements, type):
            if kind is int:
                self.extend(same)  # type: ignore[arg-type]
            elif self.rest:
                raise ValueError(
                    f"page key {next(same)!r} stands at position {len(self)}, not at a border of pages of {page_size}"
                )
            else:
                self.pages.extend(same)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.pages) * self.page_size + len(self.rest)

    def append(self, token: int) -> None:
        """Add one token at the end."""
        self.rest.append(token)
        if len(self.rest) == self.page_size:
            self.pages.append(tuple(self.rest))
            self.rest.clear()

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        self.rest.extend(tokens)
        self.part()

    def part(self) -> None:
        """Make pages of what has been added to `rest`, as far as it fills them."""
        rest, size = self.rest, self.page_size
        if len(rest) < size:
            return
        whole = len(rest) - len(rest) % size
        self.pages.extend(tuple(rest[start : start + size]) for start in range(0, whole, size))
        del rest[:whole]

    def key(self, page_index: int) -> PrefixKey:
        """The name of the prefix whose last page is the full page `page_index`."""
        keys = self._keys
        if len(keys) <= page_index:
            parent = keys[-1] if keys else b""
            for page in self.pages[len(keys) : page_index + 1]:
                # Marks, so that ids and keys cannot be mistaken for each other.
                content = b"k" + page.encode() if isinstance(page, str) else b"t" + dumps(page, 2)
                name = _NAME.copy()
                name.update(parent + content)
                parent = name.digest()
                keys.append(parent)
        return keys[page_index]

    def keys(self, start: int, stop: int) -> list[PrefixKey]:
        """The names of the prefixes whose last pages are the full pages from `start` up to `stop`."""
        if start < stop:
            self.key(stop - 1)
        return self._keys[start:stop]

    def extends(self, history: "Tokens") -> bool:
        """Whether `history` is a prefix of this sequence (equal counts)."""
        full, rest = len(history.pages), history.rest
        if full > len(self.pages) or (full and self.key(full - 1) != history.key(full - 1)):
            return False
        following = self.pages[full] if full < len(self.pages) else self.rest
        return [*following[: len(rest)]] == rest  # never of a page that is known by its key alone: that has no ids

    def elements(self) -> list[Element]:
        """The sequence as it is written in a trace."""
        pages: Iterator[Iterable[Element]] = ((page,) if isinstance(page, str) else page for page in self.pages)
        return [*chain.from_iterable(pages), *self.rest]

    def copy(self) -> "Tokens":
        """An independent copy."""
        other = Tokens.__new__(Tokens)
        other.page_size = self.page_size
        other.pages, other.rest, other._keys = self.pages.copy(), self.rest.copy(), self._keys.copy()
        return other
