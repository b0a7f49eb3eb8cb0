"""Defects for LMCache's own engine, pool and disk."""

import importlib

from kvattach.lmcache.modules import Engine
from kvlab.injection import Defect


def defects(engine: Engine) -> list[Defect]:
    """Thirteen of them."""
    whole, manager = engine.cache_engine.LMCacheEngine, engine.storage_manager.StorageManager
    cpu, disk = engine.cpu.LocalCPUBackend, engine.disk.LocalDiskBackend
    tokens = importlib.import_module("lmcache.v1.token_database").ChunkedTokenDatabase
    key = importlib.import_module("lmcache.utils").CacheEngineKey
    given_back = "memory_obj.unpin()\n            memory_obj.ref_count_down()"
    return [
        Defect(
            "kept by a store",
            "a store keeps its references",
            ((manager, "batched_put", "memory_obj.ref_count_down()", "pass"),),
        ),
        Defect(
            "kept by a retrieve",
            "a retrieve keeps its references",
            ((whole, "retrieve", given_back, "memory_obj.unpin()"),),
        ),
        Defect(
            "pin kept",
            "the first chunk that a lookup has pinned stays so",
            ((whole, "lookup_unpin", "batched_unpin(keys,", "batched_unpin(keys[1:],"),),
        ),
        Defect(
            "not pinned",
            "a lookup finds chunks without pinning them, and unpins them",
            ((cpu, "contains", "self.hot_cache[key].pin()", "pass"),),
        ),
        Defect(
            "found without a reference",
            "the hot cache names an object without holding it",
            ((cpu, "submit_put_task", "memory_obj.ref_count_up()", "pass"),),
        ),
        Defect(
            "removed and still found",
            "an object is given back, and its key still finds it",
            ((cpu, "remove", "memory_obj = self.hot_cache.pop(key)", "memory_obj = self.hot_cache[key]"),),
        ),
        Defect(
            "written without a reference",
            "memory that is to be written to disk is not held until then",
            ((disk, "submit_put_task", "memory_obj.ref_count_up()", "pass"),),
        ),
        Defect(
            "given back before it is written",
            "memory is given back when its write to disk is queued",
            (
                (
                    disk,
                    "submit_put_task",
                    "memory_obj.ref_count_up()",
                    "memory_obj.ref_count_up(), memory_obj.ref_count_down()",
                ),
                (disk, "async_save_bytes_to_disk", "memory_obj.ref_count_down()", "pass"),
            ),
        ),
        Defect(
            "other files read",
            "files are read into the memory of each other",
            ((disk, "batched_get_blocking", "keys, paths, memory_objs", "keys, paths[::-1], memory_objs"),),
        ),
        Defect(
            "key without its prefix",
            "a chunk's key is made of its own tokens only",
            ((tokens, "_prefix_hash", "(token_chunk, prefix_hash)", "(token_chunk)"),),
        ),
        Defect(
            "key without its tags",
            "tags that separate requests are left out of the key",
            ((key, "__post_init__", "tuple(tag_list)", "()"),),
        ),
        Defect(
            "memory lost",
            "freed memory does not go back to the list of free memory",
            (
                (
                    engine.allocator.TensorMemoryAllocator,
                    "free",
                    "self.address_manager.free(memory_obj.meta.address, memory_obj.meta.phy_size)",
                    "pass",
                ),
            ),
        ),
        Defect(
            "left in the free list",
            "memory that is handed out stays in the list of free memory",
            ((engine.memory.AddressManager, "allocate", "self._explicit_list.remove(block)", "pass"),),
        ),
    ]
