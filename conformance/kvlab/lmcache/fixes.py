"""Fixes of LMCache's known issues: a remaining finding is a new issue, or a defect of kvspec.

Each fix is the smallest that removes the issue, not a proposal.
"""

import importlib
from typing import Any

from kvattach.lmcache.modules import Engine
from kvattach.patches import Patches
from kvlab.injection import Defect, inject_fault
from kvlab.issues import remaining


def _lfu() -> Any:
    return importlib.import_module("lmcache.v1.storage_backend.cache_policy.lfu").LFUCachePolicy


def files_in_flight_are_no_candidates(engine: Engine, patches: Patches) -> None:
    """A key is not evicted before its file is written."""
    candidates = _lfu().get_evict_candidates

    def fixed(self: Any, cache_dict: Any, num_candidates: int = 1) -> Any:
        in_flight = {freq: [key for key in keys if key not in cache_dict] for freq, keys in self.freq_to_keys.items()}
        for freq, keys in in_flight.items():
            for key in keys:
                del self.freq_to_keys[freq][key]
        found = candidates(self, cache_dict, num_candidates)
        for freq, keys in in_flight.items():
            if keys:
                self.freq_to_keys.setdefault(freq, {}).update(dict.fromkeys(keys))
        return found

    patches.set(_lfu(), "get_evict_candidates", fixed)


def candidates_that_stay_count_again(engine: Engine, patches: Patches) -> None:
    """A key that was chosen for eviction, but not evicted, counts anew."""
    hit = _lfu().update_on_hit

    def fixed(self: Any, key: Any, cache_dict: Any) -> None:
        if key in self.key_to_freq:
            hit(self, key, cache_dict)
        else:
            self.update_on_put(key)

    patches.set(_lfu(), "update_on_hit", fixed)


def removed_files_are_given_back(engine: Engine, patches: Patches) -> None:
    """The size of a removed file no longer counts."""
    backend = engine.disk.LocalDiskBackend
    remove = backend.remove

    def fixed(self: Any, key: Any, force: bool = True) -> Any:
        file = self.dict.get(key)
        removed = remove(self, key, force)
        if removed and force:
            self.current_cache_size -= file.size
        return removed

    patches.set(backend, "remove", fixed)


def pinned_objects_stay(engine: Engine, patches: Patches) -> None:
    """An object that a lookup has pinned is not removed."""
    backend = engine.cpu.LocalCPUBackend
    remove = backend.remove

    def fixed(self: Any, key: Any, force: bool = True) -> Any:
        if force and key in self.hot_cache and self.hot_cache[key].is_pinned:
            return False
        return remove(self, key, force)

    patches.set(backend, "remove", fixed)


def pins_of_lookups_stay(engine: Engine, patches: Patches) -> None:
    """Loading layers releases only its own pins, those on objects from the disk."""
    own = 'if mem_obj.is_pinned and location == "LocalDiskBackend":'
    place = engine.cache_engine.LMCacheEngine, "retrieve_layer", "if mem_obj.is_pinned:", own
    inject_fault(Defect("pins-of-lookups", "", (place,)), patches)


def nothing_to_load_is_no_error(engine: Engine, patches: Patches) -> None:
    """If no layer is found there is nothing to wait for."""
    waits = "    next(mem_obj_consumer)\n\n    # Unpin"
    place = engine.cache_engine.LMCacheEngine, "retrieve_layer", waits, f"    if not keys: return\n{waits}"
    inject_fault(Defect("nothing-to-load", "", (place,)), patches)


def half_found_chunks_are_unpinned(engine: Engine, patches: Patches) -> None:
    """The layers of an incomplete chunk are unpinned at once."""
    tail = "extend(key_all_layers)\n                    res = end\n                    continue\n"
    unpins = "for location, pinned in block_mapping.items(): self.storage_manager.batched_unpin(pinned, [location])"
    place = engine.cache_engine.LMCacheEngine, "lookup", tail, f"{tail}                if pin:\n{' ' * 20}{unpins}\n"
    inject_fault(Defect("half-found", "", (place,)), patches)


def images_have_numbers_of_their_own(engine: Engine, patches: Patches) -> None:
    """The number that an image has in a key is made of all of its hash. Newer releases do so."""
    utils = importlib.import_module("lmcache.integration.vllm.utils")
    if hasattr(utils, "hex_hash_to_int16"):
        patches.set(utils, "hex_hash_to_int16", lambda image: int(image, 16) % (2**31 - 1))


FIXES = {
    "key-in-flight": files_in_flight_are_no_candidates,
    "candidate-forgotten": candidates_that_stay_count_again,
    "size-not-given-back": removed_files_are_given_back,
    "pin-of-another": pinned_objects_stay,
    "pins-of-lookups": pins_of_lookups_stay,
    "nothing-to-load": nothing_to_load_is_no_error,
    "half-found": half_found_chunks_are_unpinned,
    "images-share-chunks": images_have_numbers_of_their_own,
}
"""Known issue -> the patch that fixes it."""


WITH = {"nothing-to-load": "pins-of-lookups"}
"""Known issue -> the other issue without which it does not occur: a lookup's hit is evicted before it is loaded."""


def fix(engine: Engine, patches: Patches, but: str = "") -> None:
    """Apply all fixes except the named one and the one that it needs. Undoing `patches` restores the issues."""
    for one in remaining(FIXES, but, WITH):
        one(engine, patches)
