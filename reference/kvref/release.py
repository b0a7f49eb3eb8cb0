"""The one way by which memory leaves a holder."""

from kvref.allocator import TokenAllocator
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord


def release_kv_cache(kv: KvRecord, cache: RadixCache, pool: ReqToTokenPool, allocator: TokenAllocator) -> None:
    """Release everything that a record has; its holder must forget it (994).

    Finish, retract, abort, preempt and close all end here, so none of them can forget a part. In pages:

    [0, protected)                 the prefix store's: unlocked, they stay cached
    [protected, ceil(allocated))   private: freed, the page that is held in part and the over-allocated ones too
    the row                        free, or withheld while a launch in flight reads it
    """
    table = pool.req_to_token[kv.req_pool_idx]
    allocator.free(table[kv.cache_protected_len // cache.page_size :])
    cache.dec_lock_ref(kv.last_node)
    pool.free(kv.req_pool_idx)
