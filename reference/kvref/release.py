"""The release of memory: every way out of a holder ends here."""

from kvref.allocator import TokenAllocator
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord
from kvref.window_pool import SWAAllocator
from kvspec.window import evictable_until, left_behind


def release_kv_cache(kv: KvRecord, cache: RadixCache, pool: ReqToTokenPool, allocator: TokenAllocator) -> None:
    """Release everything that a record has; its holder must forget it (994).

    Finish, retract, abort, preempt and close all end here, so none of them can forget a part. In pages:

    [0, protected)                 the prefix store's: unlocked, still cached
    [protected, ceil(allocated))   private: freed, with the last page in part and the over-allocated ones
    the row                        free, or withheld while a launch in flight reads it
    the state slots                freed

    A freed page frees its window side too, if it still has one, at any position of the cursor (20070).
    """
    table = pool.req_to_token[kv.req_pool_idx]
    allocator.free(table[kv.cache_protected_len // cache.page_size :])
    cache.dec_lock_ref(kv.last_node)
    pool.free(kv.req_pool_idx)
    pool.states.free(kv.states)


def evict_swa(kv: KvRecord, next_position: int, sliding_window: int, pool: ReqToTokenPool, swa: SWAAllocator) -> None:
    """Free the window sides behind a holder's window: no step at `next_position` or later reads them (20070).

    [max(protected, cursor), until)   lose their window side, keep their page
    [until, ceil(allocated))          keep both
    """
    cursor = max(kv.cache_protected_len, kv.swa_evicted_seqlen)
    until = max(cursor, evictable_until(next_position, sliding_window, swa.page_size))
    behind = left_behind(kv.lengths, cursor, until, swa.page_size)
    swa.free_window(pool.req_to_token[kv.req_pool_idx][behind.start : behind.stop])
    kv.swa_evicted_seqlen = until
