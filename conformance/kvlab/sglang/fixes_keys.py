"""Fixes of known defects of SGLang's cache keys, besides the tokens.

A release with other lines is left unchanged.
"""

import inspect
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import mend

_JOINED = ") + lora_id  # lora_id is concatenated to the extra key\n"
_APART = ') + "\\0" + lora_id\n'

_TAKEN = "slot = SessionSlot(kv=req.kv, publishes_prompt=True)\n"
_NAMED = f"{_TAKEN}    slot.space = req.extra_key, req.cache_salt\n"
_HELD = "return slot is not None and slot.kv.holds_kv\n"
_OWN = f"{_HELD[:-1]} and slot.space == (req.extra_key, req.cache_salt)\n"
_FOUND = """        return None
    return slot
"""
_FOUND_OWN = """        return None
    if slot.space != (req.extra_key, req.cache_salt):
        self.release_session(req.session.session_id)
        return None
    return slot
"""


_PREFIX = "prefix_keys = (\n"


def fix_joined(release: Release, patches: Patches) -> None:
    """An adapter's id cannot be taken for the end of a client's key."""
    mend(patches, "keys apart", (release.batches.Req, "__init__", _JOINED, _APART))


def fix_adapters(release: Release, patches: Patches) -> None:
    """A turn whose key differs from that of the previous turn begins anew."""
    slots = release.session_slots
    if slots is not None:
        mend(
            patches,
            "turns under other keys",
            (slots, "take", _TAKEN, _NAMED),
            (slots, "will_lend_record", _HELD, _OWN),
            (slots, "find_active_slot", _FOUND, _FOUND_OWN),
        )


_EVICTED = "    self.evict(EvictParams(num_tokens=len(host_indices)))\n"
_KEPT = f"""    for one in nodes_to_load:
            one.protect_host()
    {_EVICTED}        for one in nodes_to_load:
            one.release_host()
"""


def fix_sources(release: Release, patches: Patches) -> None:
    """Pages that are about to be loaded are not evicted from the host to make room on the device."""
    if not release.unified:
        mend(patches, "sources kept", (release.cache_class, "load_back", _EVICTED, _KEPT))


def fix_stored(release: Release, patches: Patches) -> None:
    """Only content without a key or a salt is stored and prefetched: the storage names content by tokens alone."""
    if hasattr(release.hashes, "storage_namespace_seed"):
        return
    asked = "last_host_node.protect_host()\n"
    mend(
        patches,
        "nothing with a key is stored",
        (release.cache_class, "write_backup_storage", _PREFIX, _keyless("node", _PREFIX)),
        (release.cache_class, "prefetch_from_storage", asked, _keyless("last_host_node", asked)),
    )


def fix_storage_weights(release: Release, patches: Patches) -> None:
    """A server that flushes its cache, as it does for new weights, clears its storage, too."""
    if release.weight_updater is None:
        return
    reset = release.controller_class.reset

    def fixed(self: Any) -> None:
        reset(self)
        if self.enable_storage:
            self.storage_backend.clear()

    patches.set(release.controller_class, "reset", fixed)


def fix_splits(release: Release, patches: Patches) -> None:
    """A node that is locked on the host stays locked there when it is split, both parts of it."""
    if not release.unified:
        return
    full, core = release.full_component, release.core.UnifiedTreeCore
    if "host_lock_ref" in inspect.getsource(full.redistribute_on_node_split):
        return
    split, acquire, release_lock = full.redistribute_on_node_split, core.inc_host_lock_ref, core.dec_host_lock_ref

    def locks_of(tree: Any) -> dict[int, list[list[Any]]]:
        """Node -> the further nodes of each lock on it."""
        known: dict[int, list[list[Any]]] = vars(tree).setdefault("kvspec_locks", {})
        return known

    def acquired(self: Any, node: int) -> Any:
        locks_of(self).setdefault(node, []).append([])
        return acquire(self, node)

    def parted(self: Any, new_parent: Any, child: Any) -> None:
        split(self, new_parent=new_parent, child=child)
        locks = locks_of(self.tree_core)
        held = [lock for node, of_node in locks.items() for lock in of_node if node == child.id or child in lock]
        for lock in held:
            lock.append(new_parent)
        new_parent.component_data[self.component_type].host_lock_ref = len(held)

    def released(self: Any, node: int, params: Any) -> Any:
        answer = release_lock(self, node, params)
        # Locks have no names: the longest one is released last.
        of_node = locks_of(self)[node]
        lock = min(of_node, key=len)
        of_node.remove(lock)
        for other in lock:
            other.component_data[release.component.ComponentType.FULL].host_lock_ref -= 1
            self._update_evictable_leaf_sets(other)
        return answer

    patches.set(full, "redistribute_on_node_split", parted)
    patches.set(core, "inc_host_lock_ref", acquired)
    patches.set(core, "dec_host_lock_ref", released)


def _keyless(node: str, lines: str) -> str:
    """These lines of a function, after a return if the node has a key or a salt."""
    salt = f'getattr({node}.key, "cache_salt", None)'
    return f"if {node}.key.extra_key is not None or {salt} is not None:\n        return\n    {lines}"


FIXES = (fix_joined, fix_adapters, fix_sources, fix_splits, fix_stored, fix_storage_weights)
