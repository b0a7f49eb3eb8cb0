"""The whole state of a manager as an answer tells it. Costs the whole pool; only a snapshot asks."""

from collections.abc import Callable, Mapping

from kvref.allocator import TokenAllocator
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord
from kvref.window_pool import SWAAllocator
from kvspec.events import HolderView, SnapshotAnswer
from kvspec.pages import Runs, compress


def snapshot(
    requests: Mapping[str, KvRecord],
    sessions: Mapping[str, KvRecord],
    cache: RadixCache,
    pool: ReqToTokenPool,
    allocator: TokenAllocator,
    slots_of: Callable[[KvRecord], Runs],
) -> SnapshotAnswer:
    """Everything: `requests` and `sessions` are the records of those that hold one, by name."""
    windowed, has_states = isinstance(allocator, SWAAllocator), pool.states.num_pages > 0
    answer = SnapshotAnswer(
        rows={kv.req_pool_idx: slots_of(kv) for kv in (*requests.values(), *sessions.values())},
        free_pages=compress(allocator.free_pages()),
        store_pages=compress(sorted(cache.all_pages())),
        requests={req: _view(kv, windowed, has_states) for req, kv in requests.items()},
        sessions={session: _view(kv, windowed, has_states) for session, kv in sessions.items()},
    )
    if isinstance(allocator, SWAAllocator):
        answer.window_sides = dict(allocator.window_of)
    if has_states:
        answer.free_states = compress(pool.states.free_pages())
        answer.store_states = compress(sorted(cache.all_states()))
    return answer


def _view(kv: KvRecord, windowed: bool, has_states: bool) -> HolderView:
    return HolderView(
        kv.req_pool_idx,
        *kv.lengths,
        max(kv.cache_protected_len, kv.swa_evicted_seqlen) if windowed else None,
        compress(sorted(kv.states)) if has_states else None,
    )
