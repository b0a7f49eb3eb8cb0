"""A defect of the gallery, and the engines that mutants derive from."""

from collections.abc import Callable, Collection
from typing import Literal, NamedTuple

from kvconform.protocol import Implementation
from kvref.allocator import PagedAllocator, TokenAllocator
from kvref.chunk_cache import ChunkCache
from kvref.mamba_radix_cache import MambaRadixCache
from kvref.manager import Manager
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.scheduler import Scheduler
from kvref.session_cache import SessionCache
from kvref.state_pool import StatePool
from kvref.swa_radix_cache import SWARadixCache
from kvref.window_pool import SWAAllocator
from kvspec.events import Config

SYNTHETIC = "no document describes an engine that did this; it shows that the rule can fail"
"""The note that is shown with each synthetic defect."""


Pool = Literal["", "sliding_window", "recurrent_states"]
"""The pool that traffic needs to show a defect: none besides pages and rows, or a hybrid pool."""


class Bug(NamedTuple):
    """One defect: a real one of an engine, or a synthetic one."""

    name: str
    title: str
    """The fault of the code, in one line."""
    source: tuple[str, ...]
    """The documents that describe it, or those of the rule for a synthetic one: pull requests by number."""
    rule: str
    """The rule that it breaks."""
    symptom: str
    """Its symptom in an engine."""
    factory: Callable[[Config], Implementation] = Manager
    """The reference with the defect."""
    scheduler: type[Scheduler] = Scheduler
    """The scheduler with the defect, if the defect is the scheduler's."""
    also: tuple[str, ...] = ()
    """Further rules that may be named first, depending on the next operation."""
    pool: Pool = ""
    """The pool besides pages and rows that shows it, if it needs one."""
    traffic: bool = True
    """Whether traffic through the scheduler can show it. The scheduler takes one speculative step at a time."""
    synthetic: bool = False
    """Whether no document describes an engine that did this: it shows that the rule can fail."""

    @property
    def is_of_scheduler(self) -> bool:
        """Whether the manager is sound, so that only traffic through the scheduler can show it."""
        return self.factory is Manager

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules; one of them must be named when the defect is found."""
        return self.rule, *self.also


class _TrustingTokenAllocator(TokenAllocator):
    """Takes back any page, as engines' allocators do: their free list is a tensor that is never searched."""

    def free(self, pages: Collection[int]) -> None:
        self._in_use.difference_update(pages)
        self._recycled.extend(pages)
        self._freed.extend(pages)


class _TrustingPagedAllocator(_TrustingTokenAllocator, PagedAllocator):
    """The same for larger pages."""


class Engine(Manager):
    """The reference with replaceable parts, and with an allocator that does not notice double frees."""

    lacks = frozenset({"sliding_window", "recurrent_states"})
    rows_read = ("until_complete",)
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


class TrustingSWAAllocator(SWAAllocator):
    """The same for pages with window sides."""

    def __init__(self, num_pages: int, page_size: int, num_window_pages: int) -> None:
        super().__init__(num_pages, page_size, num_window_pages)
        self.window = _TrustingTokenAllocator(num_window_pages)


class WindowEngine(Manager):
    """The reference with a sliding window, with replaceable parts."""

    lacks = frozenset({"recurrent_states"})
    allocator_class: type[SWAAllocator] = TrustingSWAAllocator
    tree_class: type[SWARadixCache] = SWARadixCache

    def __init__(self, config: Config) -> None:
        """Put the parts together."""
        super().__init__(config)
        if not config.sliding_window:
            return
        self.allocator = self.allocator_class(config.num_pages, config.page_size, config.num_window_pages)
        if config.prefix_cache:
            self.tree_cache = self.tree_class(config.page_size, self.pool, self.allocator, config.sliding_window)
        else:
            self.tree_cache = ChunkCache(config.page_size, self.pool, self.allocator)
        self.session_cache = SessionCache(self.tree_cache, self.pool, self.allocator)


class TrustingStatePool(_TrustingTokenAllocator, StatePool):
    """The same for state slots."""


class StateEngine(Manager):
    """The reference with recurrent states, with replaceable parts."""

    lacks = frozenset({"sliding_window"})
    states_class: type[StatePool] = TrustingStatePool
    tree_class: type[MambaRadixCache] = MambaRadixCache

    def __init__(self, config: Config) -> None:
        """Put the parts together."""
        super().__init__(config)
        if not config.num_states:
            return
        self.pool.states = self.states_class(config.num_states, config.tracking_states)
        if config.prefix_cache:
            self.tree_cache = self.tree_class(config.page_size, self.pool, self.allocator)
            self.session_cache = SessionCache(self.tree_cache, self.pool, self.allocator)
