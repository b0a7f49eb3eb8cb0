"""What the gallery tells of a defect, and the engine that its mutants are made of."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from kvconform.protocol import Implementation
from kvref.allocator import PagedAllocator, TokenAllocator
from kvref.chunk_cache import ChunkCache
from kvref.manager import Manager
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.scheduler import Scheduler
from kvref.session_cache import SessionCache
from kvspec.events import Config

SYNTHETIC = "no document tells of an engine that did this; it shows that the rule can fail"
"""What must be said of a synthetic defect, wherever it is shown."""


class Bug(NamedTuple):
    """One defect: one that an engine really had, or a synthetic one."""

    name: str
    title: str
    """What the code does, in one line."""
    source: tuple[str, ...]
    """The documents that describe it, of a synthetic one those that its rule comes from: pull requests by number."""
    rule: str
    """The rule that it breaks."""
    symptom: str
    """How it shows in an engine."""
    factory: Callable[[Config], Implementation] = Manager
    """The reference with the defect."""
    scheduler: type[Scheduler] = Scheduler
    """The scheduler with the defect, where it is the scheduler's."""
    also: tuple[str, ...] = ()
    """Rules that are as rightly named first, where it depends on the next operation which one is."""
    synthetic: bool = False
    """Whether no document tells of an engine that did this: it shows that the rule can fail."""

    @property
    def is_of_scheduler(self) -> bool:
        """Whether the manager is sound, so that only traffic through the scheduler can show it."""
        return self.factory is Manager

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of which one must be named when the defect is found."""
        return self.rule, *self.also


class _TrustingTokenAllocator(TokenAllocator):
    """Takes back whatever it is given, as engines' allocators do: the free list is a tensor that nobody searches."""

    def free(self, pages: Collection[int]) -> None:
        self._in_use.difference_update(pages)
        self._recycled.extend(pages)
        self._freed.extend(pages)


class _TrustingPagedAllocator(_TrustingTokenAllocator, PagedAllocator):
    """The same for larger pages."""


class Engine(Manager):
    """The reference with parts that a mutant may exchange, and an allocator that does not notice a double free."""

    pool_class: type[ReqToTokenPool] = ReqToTokenPool
    tree_class: type[RadixCache] = RadixCache
    session_class: type[SessionCache] = SessionCache

    def __init__(self, config: Config) -> None:
        """Put the parts together."""
        super().__init__(config)
        page_size, num_pages = config.page_size, config.num_pages
        self.allocator = (
            _TrustingTokenAllocator(num_pages) if page_size == 1 else _TrustingPagedAllocator(num_pages, page_size)
        )
        self.pool = self.pool_class(config.num_rows)
        tree_class = self.tree_class if config.prefix_cache else ChunkCache
        self.tree_cache = tree_class(page_size, self.pool, self.allocator)
        self.session_cache = self.session_class(self.tree_cache, self.pool, self.allocator)
