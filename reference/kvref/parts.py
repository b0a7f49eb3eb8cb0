"""The parts of a manager, by the pools of its configuration."""

from kvref.allocator import PagedAllocator, TokenAllocator
from kvref.chunk_cache import ChunkCache
from kvref.mamba_radix_cache import MambaRadixCache
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.swa_radix_cache import SWARadixCache
from kvref.window_pool import SWAAllocator
from kvspec.events import Config


def make_allocator(config: Config) -> TokenAllocator:
    """The free pages: with window sides (20070), of one token, or of several."""
    if config.sliding_window:
        return SWAAllocator(config.num_pages, config.page_size, config.num_window_pages)
    if config.page_size == 1:
        return TokenAllocator(config.num_pages)
    return PagedAllocator(config.num_pages, config.page_size)


def make_pool(config: Config) -> ReqToTokenPool:
    """The rows, and the state slots if there are any (17850)."""
    return ReqToTokenPool(
        config.num_rows,
        config.num_states,
        config.tracking_states,
        withholds=config.rows_read == "until_complete",
    )


def make_tree_cache(config: Config, pool: ReqToTokenPool, allocator: TokenAllocator) -> RadixCache:
    """The prefix store.

    Raises:
        ValueError: there are window sides and states at once.
    """
    if config.sliding_window and config.num_states:
        raise ValueError("a sliding window and recurrent states at once are not supported")
    if not config.prefix_cache:
        return ChunkCache(config.page_size, pool, allocator)
    if isinstance(allocator, SWAAllocator):
        return SWARadixCache(config.page_size, pool, allocator, config.sliding_window)
    if config.num_states:
        return MambaRadixCache(config.page_size, pool, allocator)
    return RadixCache(config.page_size, pool, allocator)
