"""Fixes of vLLM 0.33.0's KV events for routers, after its block pools have made them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from kvattach.patches import Patches
from kvlab.injection import mend

_STORED = """            primary_block_hash = gpu_block.block_hash
            assert primary_block_hash is not None
"""
_STORED_IF_ITS_OWN = f"""{_STORED}            if get_block_hash(primary_block_hash) != resolved_hashes[i]:
                advanced_per_group[g] += 1
                continue
"""


def copies_once(patches: Patches) -> None:
    """A block is announced as stored with its first copy, and as removed with its last."""
    from vllm.v1.core.block_pool import BlockPool

    copies: WeakKeyDictionary[Any, Counter[Any]] = WeakKeyDictionary()
    take_events = BlockPool.take_events

    def taken(pool: Any) -> list[Any]:
        counts = copies.setdefault(pool, Counter())
        return [one for event in take_events(pool) for one in _once(counts, event)]

    patches.set(BlockPool, "take_events", taken)


def cleared_by_pool(patches: Patches) -> None:
    """A reset of a pool removes its blocks by their hashes: other pools keep their blocks."""
    from vllm.distributed.kv_events import BlockRemoved
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash

    reset_prefix_cache = BlockPool.reset_prefix_cache

    def reset(pool: Any) -> bool:
        found = dict(pool.cached_block_hash_to_block._cache)
        done: bool = reset_prefix_cache(pool)
        if done and pool.enable_kv_cache_events:
            pool.kv_event_queue.pop()
            for key, blocks in found.items():
                block, count = get_block_hash(key), len(blocks) if isinstance(blocks, dict) else 1
                hashes = [maybe_convert_block_hash(block)] * count
                medium = getattr(pool, "medium", "GPU")  # older releases have no other
                removed = BlockRemoved(block_hashes=hashes, medium=medium)
                if hasattr(removed, "group_idx"):
                    removed.group_idx = get_group_id(key)
                pool.kv_event_queue.append(removed)
        return done

    patches.set(BlockPool, "reset_prefix_cache", reset)


def tokens_of_kept(patches: Patches) -> None:
    """If some blocks are not cached, each other block has its own event with its own tokens and parent."""
    from vllm.v1.core.block_pool import BlockPool

    cache_full_blocks = BlockPool.cache_full_blocks

    def cached(pool: Any, **more: Any) -> None:
        cache_full_blocks(pool, **more)
        first, last, mask = more["num_cached_blocks"], more["num_full_blocks"], more.get("block_mask")
        kept = [
            index
            for index, block in enumerate(more["blocks"][first:last], first)
            if not block.is_null and (mask is None or mask[index - first])
        ]
        if first < last and len(kept) < last - first and pool.enable_kv_cache_events:
            event = pool.kv_event_queue.pop()
            pool.kv_event_queue += _one_by_one(pool, event, more["request"], kept)

    patches.set(BlockPool, "cache_full_blocks", cached)


def parts_behind_blocks(patches: Patches) -> None:
    """A partial block is stored with all its tokens, and with the last whole block as its parent."""
    from vllm.v1.core.block_pool import BlockPool

    if not hasattr(BlockPool, "cache_partial_block"):
        return  # an older release has no partial blocks
    cache_partial_block = BlockPool.cache_partial_block

    def cached(pool: Any, **more: Any) -> Any:
        before = len(pool.kv_event_queue)
        key = cache_partial_block(pool, **more)
        event = pool.kv_event_queue[-1] if len(pool.kv_event_queue) > before else None
        if type(event).__name__ == "BlockStored":
            pool.kv_event_queue[-1] = _whole_part(pool, event, more["request"], more["num_tokens"], more["block_size"])
        return key

    patches.set(BlockPool, "cache_partial_block", cached)


def tokens_of_owner(patches: Patches) -> None:
    """A request does not store a block that belongs to another request by now."""
    try:
        from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler as Scheduler
    except ImportError:
        return  # an older release announces no tokens of host blocks
    mend(patches, "tokens of owner", (Scheduler, "_select_eager_blocks_to_store", _STORED, _STORED_IF_ITS_OWN))


FIXES = (copies_once, cleared_by_pool, tokens_of_kept, parts_behind_blocks, tokens_of_owner)


def _whole_part(pool: Any, event: Any, request: Any, end: int, size: int) -> Any:
    """The event of a partial block, from the block's first token to before token `end`."""
    from vllm.v1.core import kv_cache_utils

    start = (end - 1) // size * size
    keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, 0)
    parent = request.block_hashes[start // pool.hash_block_size - 1] if start else None
    return replace(
        event,
        parent_block_hash=kv_cache_utils.maybe_convert_block_hash(parent) if start else None,
        token_ids=request.all_token_ids[start:end],
        block_size=end - start,
        extra_keys=getattr(kv_cache_utils, "to_event_extra_keys", list)([keys]),
    )


def _one_by_one(pool: Any, event: Any, request: Any, kept: list[int]) -> Iterator[Any]:
    """One event for each block."""
    from vllm.v1.core.kv_cache_utils import BlockHashListWithBlockSize, maybe_convert_block_hash

    size, hashes = event.block_size, request.block_hashes
    if size != pool.hash_block_size:
        hashes = BlockHashListWithBlockSize(hashes, pool.hash_block_size, size)
    for place, index in enumerate(kept):
        yield replace(
            event,
            block_hashes=[event.block_hashes[place]],
            parent_block_hash=maybe_convert_block_hash(hashes[index - 1]) if index else None,
            token_ids=request.all_token_ids[index * size : (index + 1) * size],
            extra_keys=event.extra_keys and event.extra_keys[place : place + 1],
        )


def _once(copies: Counter[Any], event: Any) -> Iterator[Any]:
    """The parts of an event that store the first copy of a block, or remove the last."""
    kind = type(event).__name__
    if kind == "AllBlocksCleared":
        copies.clear()
        yield event
        return
    for index, block in enumerate(event.block_hashes):
        key = block, getattr(event, "group_idx", None)  # older releases name no group
        copies[key] += 1 if kind == "BlockStored" else -1
        if kind == "BlockRemoved" and not copies[key]:
            yield replace(event, block_hashes=[block])
        elif kind == "BlockStored" and copies[key] == 1:
            yield _part(event, index)


def _part(event: Any, index: int) -> Any:
    """One block of an event that stores several. If the tokens do not match the blocks, it gets all of them."""
    size = event.block_size
    if len(event.token_ids) not in (0, size * len(event.block_hashes)):
        return replace(event, block_hashes=[event.block_hashes[index]])
    return replace(
        event,
        block_hashes=[event.block_hashes[index]],
        parent_block_hash=event.block_hashes[index - 1] if index else event.parent_block_hash,
        token_ids=event.token_ids[index * size : (index + 1) * size],
        extra_keys=event.extra_keys and event.extra_keys[index : index + 1],
    )
