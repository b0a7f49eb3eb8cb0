"""Defects for the requests and sessions of SGLang from 0.5.19 on, in its own tree, sessions, allocators and tables."""

import importlib
from typing import Any

from kvlab.injection import Defect
from kvlab.sglang.adapter.between import BetweenEngine
from kvlab.sglang.adapter.engine import Engine
from kvlab.sglang.adapter.unified import UnifiedEngine
from kvlab.stubs import EngineError


def defects(engine: Engine) -> list[Defect]:
    """Eleven of them.

    Raises:
        EngineError: the release is older.
    """
    if not isinstance(engine, (UnifiedEngine, BetweenEngine)) or getattr(engine, "has_plain_tree", False):
        raise EngineError("the defects are for releases from 0.5.19 on")
    full = importlib.import_module("sglang.srt.mem_cache.unified_cache.components.full").FullComponent
    session = importlib.import_module("sglang.srt.session.streaming_session").StreamingSession
    paged, token = engine.allocators.PagedTokenToKVPoolAllocator, engine.allocators.TokenToKVPoolAllocator
    overshoot = "self._free_kv_aligned(req.kv, target, req.kv.kv_allocated_len)"
    unlocked, taken = "while cur != root:", "self.free_pages[num_new_pages:]"
    return [
        *(_unified(engine, session) if isinstance(engine, UnifiedEngine) else _between(engine, session)),
        Defect(
            "reference not counted",
            "two locks on the same pages count as one",
            (
                (full, "acquire_component_lock", "cd.lock_ref += 1", "cd.lock_ref = 1"),
                (full, "release_component_lock", unlocked, f"{unlocked[:-1]} and cur.component_data[ct].lock_ref:"),
            ),
        ),
        Defect(
            "overshoot not freed",
            "the pages of a stopped turn beyond its tokens are forgotten",
            ((session, "_trim_overshoot", overshoot, "pass"),),
        ),
        Defect(
            "tail not freed on resume",
            "a turn that resumes forgets the pages that its record has past that",
            ((session, "_free_tail", "self._free_kv_aligned(kv, prefix_len, kv.kv_allocated_len)", "pass"),),
        ),
        Defect(
            "left in the free list",
            "a page is handed out and stays in the list of free ones",
            (
                (paged, "alloc_extend", taken, "self.free_pages[max(num_new_pages - 1, 0) :]"),
                (token, "alloc", "self.free_pages[need_size:]", "self.free_pages[need_size - 1 :]"),
            ),
        ),
    ]


def _unified(engine: UnifiedEngine, session: Any) -> list[Defect]:
    """Seven, at places that exist since 0.5.22."""
    tree, common = engine.tree.UnifiedRadixCache, engine.common
    tail = "tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, owned_kv_len)])"
    row = "self.cache.req_to_token_pool.free(slot)"
    return [
        Defect(
            "lock kept",
            "a request that ends keeps its lock on its published pages",
            ((common, "release_kv_cache", "tree_cache.unlock(req.lock)", "pass"),),
        ),
        Defect(
            "lock not taken",
            "a request goes on without a lock on its published pages",
            ((tree, "checkpoint_into_tree", "req.lock = self.lock(", "req.lock = (lambda *_, **__: None)("),),
        ),
        Defect(
            "published short",
            "the last token before a page border is not published",
            (
                (
                    tree,
                    "checkpoint_into_tree",
                    "full_untruncated_fill_ids[:up_to]",
                    "full_untruncated_fill_ids[: up_to - 1]",
                ),
            ),
        ),
        Defect(
            "published long",
            "a request publishes all that it has allocated, not only its own tokens",
            ((common, "release_kv_cache", "req.owned_kv_len()", "req.kv.kv_allocated_len"),),
        ),
        Defect(
            "tail not freed",
            "a request's pages outside the tree are forgotten when it ends",
            ((common, "release_kv_cache", tail, "pass"),),
        ),
        Defect("row not freed", "a session that is closed keeps its row", ((session, "release_session", row, "pass"),)),
        Defect(
            "slot not cleared",
            "a turn that is aborted leaves its session the record that it has given back",
            ((session, "try_cache_finished_req", "del self.slots[req.session.session_id]", "pass"),),
        ),
    ]


def _between(engine: BetweenEngine, session: Any) -> list[Defect]:
    """Seven, at the places of older releases."""
    tree, common = engine.tree, engine.common
    unlock = "self._dec_req_lock(req, skip_swa=req.swa_prefix_lock_released)"
    lock = "lock_result = self.inc_lock_ref("
    return [
        Defect(
            "lock kept",
            "a request that ends keeps its lock on its published pages",
            ((tree, "cache_finished_req", unlock, "pass"),),
        ),
        Defect(
            "lock not taken",
            "a request goes on without a lock on its published pages",
            ((tree, "cache_unfinished_req", lock, "lock_result = (lambda *_, **__: IncLockRefResult())("),),
        ),
        Defect(
            "published short",
            "the last token before a page border is not published",
            ((tree, "cache_unfinished_req", "req.get_fill_ids()", "req.get_fill_ids()[:-1]"),),
        ),
        Defect(
            "published long",
            "a request publishes all that it has allocated, not only its own tokens",
            ((common, "release_kv_cache", "req.effective_kv_committed_len()", "req.kv.kv_allocated_len"),),
        ),
        Defect(
            "tail not freed",
            "a request's pages outside the tree are forgotten when it ends",
            ((tree, "cache_finished_req", "self.free_kv_row(req.kv, ranges)", "pass"),),
        ),
        Defect(
            "row not freed",
            "a session that is closed keeps its row",
            ((session, "release_session", "self.req_to_token_pool.free(slot)", "pass"),),
        ),
        Defect(
            "slot not cleared",
            "a session whose memory is given back keeps its slot",
            ((session, "release_session", "self.slots.pop(session_id, None)", "self.slots.get(session_id)"),),
        ),
    ]
