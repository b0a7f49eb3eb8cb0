"""Defects for SGLang 0.5.23 in its streaming sessions."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_sessions(release: Release) -> list[Defect]:
    """Five of them."""
    slots, controller = release.session_slots, release.sessions.SessionController
    return [
        Defect(
            "slot kept by an aborted turn",
            "a turn that is aborted gives its memory back, and leaves its session the record of it",
            ((slots, "try_cache_finished_req", "del self.slots[req.session.session_id]", "pass"),),
        ),
        Defect(
            "closed under a turn",
            "a session is closed while its turn runs",
            ((controller, "_close", "session.streaming and session._inflight", "False"),),
        ),
        Defect(
            "tail lost on closing",
            "a session that is closed forgets the last page that it has",
            (
                (
                    slots,
                    "release_session",
                    "[(protected_len, slot.kv.kv_allocated_len)]",
                    "[(protected_len, max(protected_len, slot.kv.kv_allocated_len - self.cache.page_size))]",
                ),
            ),
        ),
        Defect(
            "tail lost on resuming",
            "a turn that resumes forgets the pages that its record has past that",
            ((slots, "_free_tail", "self._free_kv_aligned(kv, prefix_len, kv.kv_allocated_len)", "pass"),),
        ),
        Defect(
            "one token too many",
            "a slot counts one token more than was computed, where its last page has room",
            (
                (
                    slots,
                    "try_cache_finished_req",
                    "slot.kv.kv_committed_len = min(target, slot.kv.kv_allocated_len)",
                    "slot.kv.kv_allocated_len += slot.kv.kv_allocated_len % self.cache.page_size > 0; "
                    "slot.kv.kv_committed_len = slot.kv.kv_allocated_len",
                ),
            ),
        ),
    ]
