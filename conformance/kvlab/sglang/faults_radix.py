"""Defects for the trees of SGLang's servers before 0.5.19: `RadixCache`, and `HiRadixCache` with a host cache."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_radix(release: Release) -> list[Defect]:
    """Seven of them: five where a request publishes and ends, two where a session is closed."""
    tree, slots = release.radix.RadixCache, release.session_slots
    return [
        Defect(
            "lock kept",
            "a request that has ended keeps the lock on its path",
            ((tree, "cache_finished_req", "self.dec_lock_ref(req.last_node)", "pass"),),
        ),
        Defect(
            "lock not taken",
            "a request that publishes releases its old lock and takes no new one",
            ((tree, "cache_unfinished_req", "self.inc_lock_ref(new_last_node)", "pass"),),
        ),
        Defect(
            "duplicates kept",
            "pages that the tree had already are not given back",
            ((tree, "cache_unfinished_req", ": new_prefix_len]", ": 0]"),),
        ),
        Defect(
            "row keeps duplicates",
            "the row of a request names its own pages where the tree had others already",
            ((tree, "cache_unfinished_req", "self.req_to_token_pool.write(", "(lambda *_: None)("),),
        ),
        Defect(
            "tail not freed",
            "the tokens after the last whole page are forgotten",
            ((tree, "cache_finished_req", "kv_indices[key_len:]", "kv_indices[:0]"),),
        ),
        Defect(
            "session closed and kept",
            "a session that is closed forgets the pages that it has",
            ((slots, "release_session", "self.token_to_kv_pool_allocator.free(kv_indices)", "pass"),),
        ),
        Defect(
            "session's row freed twice",
            "a session that is closed puts its row into the free list twice",
            (
                (
                    slots,
                    "release_session",
                    "free_slots.append(slot.req_pool_idx)",
                    "free_slots += 2 * [slot.req_pool_idx]",
                ),
            ),
        ),
    ]
