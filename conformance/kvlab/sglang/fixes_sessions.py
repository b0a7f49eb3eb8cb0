"""Fixes of known defects of SGLang's streaming sessions.

A release with other lines is left unchanged.
"""

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import mend

_ENDS = "req.session.finish_req(req)\n"
_ENDS_ONCE = """if req.finished():
        vars(slot).pop("turn", None)
        req.session.finish_req(req)
    else:
        slot.turn = req.rid
"""
_BORROWED = 'assert slot is not None, f"streaming {req.rid=} does not run on its slot"\n'
_TO_ABORT = f"""{_BORROWED}
    if not req.finished() and req.to_finish is not None:
        del self.slots[req.session.session_id]
        req.lock, slot.lock = slot.lock, None
        return False
"""
_LENT = "req = params.req\n"
_LENT_TO_ITS_TURN = """req = params.req
    if getattr(slot, "turn", req.rid) != req.rid:
        self.release_session(req.session.session_id)
        return None
"""

_ABORTED = "if isinstance(req.finished_reason, FINISH_ABORT):"
_SOON_ABORTED = f"{_ABORTED[:-1]} or (not req.finished() and req.to_finish is not None):"
_GONE_ON = "if isinstance(req.finished_reason, FINISH_ABORT) or (not req.finished() and req.kv.holds_mamba):"
_FREE = "req.session.abort_req()\n"
_FREE_IF_OVER = "req.session._inflight = not req.finished()\n"

_IMPORTED = "from sglang.srt.managers.schedule_batch import FINISH_ABORT\n"
_SPEC_TOO = f"{_IMPORTED}    from sglang.srt.runtime_context import get_spec\n"
_GONE_ON_BY_DRAFTS = f"{_GONE_ON[:-1]} or (req.kv.holds_mamba and get_spec().speculative_algorithm):"
_ENDS_WITHOUT_RECORD = """session = req.session
        if req.finished() and not isinstance(req.finished_reason, FINISH_ABORT):
            req.output_ids = req.output_ids[: req.finished_len]
            session.finish_req(req)
        else:
            session._inflight = not req.finished()
"""

_FINISHED = "all(node.req.finished() for node in session.req_nodes.values())"
_AT_REST = f"not session._inflight if session.streaming else {_FINISHED}"

_RESET = "self.tree_cache.reset()\n"
_RESET_ALL = """for req in self.waiting_queue:
            if req.kv.holds_mamba and not req.kv.holds_kv:
                self.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
            req.kv = type(req.kv)()
        self.tree_cache.reset()
"""

_COUNTED = "slot.kv.kv_committed_len = min(target, slot.kv.kv_allocated_len)\n"
_COMPUTED = "slot.kv.kv_committed_len = min(target, slot.kv.kv_committed_len)\n"

_TAIL = "self._free_tail(req.kv, prefix_len)\n"
_NOTHING = """if prefix_len == 0:
        req.kv = type(req.kv)()
        self.release_session(req.session.session_id)
        return None
    self._free_tail(req.kv, prefix_len)
"""

_REJECTED = "new_req.set_finish_with_abort(abort_message)\n"
_LEFT = """new_req.set_finish_with_abort(abort_message)
        new_req.session = None
"""

_NODES = "[req.last_node for req in waiting_queue]"
_TREE_NODES = "[n if isinstance(n := req.last_node, int) else tree_cache.root_node_handle() for req in waiting_queue]"

_NO_CACHE = 'getattr(self.tree_cache, "disable", True)'
_NO_PREFIX = 'getattr(self.tree_cache, "disable", True) and not req.prefix_len'

_ROOM = "self.get_num_allocatable_reqs(running_bs, running_batch=running_batch) <= 0\n"
_OWN_ROOM = """self.get_num_allocatable_reqs(
        running_bs,
        running_batch=running_batch,
        num_held_rows=sum(
            getattr(r.session, "session_id", None) in self.tree_cache.session.slots for r in self.waiting_queue
        ),
    ) <= 0
"""
_FIRST = "for req in self.waiting_queue:\n"
_OWN_FIRST = """
    slots = self.tree_cache.session.slots
    self.waiting_queue.sort(key=lambda r: getattr(r.session, "session_id", None) not in slots)
    for req in self.waiting_queue:
"""
_HELD = "num_held_rows = sum(r.kv.holds_kv for r in adder.can_run_list)"
_OWN_HELD = f"{_HELD} + (getattr(req.session, 'session_id', None) in self.tree_cache.session.slots)"

_PREEMPTED = """adder.preempt_to_schedule(
                req
            ):
"""
_ROW_FREED = """(
                adder.preempt_to_schedule(req)
                and len(adder.can_run_list) < self.get_num_allocatable_reqs(
                    len(running_batch.reqs), running_batch=running_batch, num_held_rows=num_held_rows
                )
            ):
"""


def fix_retracted(release: Release, patches: Patches) -> None:
    """A retracted turn is not finished: the session's text is without it, and its record is for this turn alone.

    It leaves no record if it is to be aborted. Until 0.5.21 a slot itself frees the memory of an aborted turn.
    """
    slots = release.session_slots
    borrowed = hasattr(slots, "borrowed_slot")
    mend(
        patches,
        "retracted turns",
        (slots, "try_cache_finished_req", _ENDS, _ENDS_ONCE),
        (slots, "try_cache_finished_req", *((_BORROWED, _TO_ABORT) if borrowed else (_ABORTED, _SOON_ABORTED))),
        (slots, "try_match_prefix", _LENT, _LENT_TO_ITS_TURN),
    )


def fix_closing(release: Release, patches: Patches) -> None:
    """A session can be closed when none of its turns is in flight, regardless of how the last turn ended."""
    controller = release.sessions.SessionController
    mend(
        patches,
        "closed at rest",
        (controller, "_all_requests_finished", _FINISHED, _AT_REST),
        (controller, "_close", "if not req.finished():", "if session._inflight:"),
    )


def fix_flush(release: Release, patches: Patches) -> None:
    """A flush also clears the KV records of waiting turns."""
    mend(patches, "flushed turns", (release.scheduler.Scheduler, "flush_cache", _RESET, _RESET_ALL))


def fix_states(release: Release, patches: Patches) -> None:
    """A retracted turn begins anew if its state may be ahead of its tokens."""
    name = "try_cache_finished_req"
    slots = release.session_slots
    mend(patches, "retracted states", (slots, name, _ABORTED, _GONE_ON), (slots, name, _FREE, _FREE_IF_OVER))


def fix_drafted_states(release: Release, patches: Patches) -> None:
    """The turn after one with drafts begins anew: its state may have seen drafts that its text does not have.

    The same holds after a turn that ends with its first token: with overlap its next step is already in flight.
    """
    name, slots = "try_cache_finished_req", release.session_slots
    mend(
        patches,
        "states with drafts",
        (slots, name, _IMPORTED, _SPEC_TOO),
        (slots, name, _GONE_ON, _GONE_ON_BY_DRAFTS),
        (slots, name, _FREE_IF_OVER, _ENDS_WITHOUT_RECORD),
    )


def fix_last_token(release: Release, patches: Patches) -> None:
    """A slot counts the tokens that its turn has computed, and not its room for drafts."""
    mend(patches, "last tokens", (release.session_slots, "try_cache_finished_req", _COUNTED, _COMPUTED))


def fix_empty(release: Release, patches: Patches) -> None:
    """A session without kept tokens gives its row back."""
    mend(patches, "empty slots", (release.session_slots, "try_match_prefix", _TAIL, _NOTHING))


def fix_rejected(release: Release, patches: Patches) -> None:
    """A turn that is rejected because another one is in flight does not belong to the session."""
    mend(patches, "rejected turns", (release.sessions.Session, "create_req", _REJECTED, _LEFT))


def fix_order(release: Release, patches: Patches) -> None:
    """A waiting turn with its session's record has no node in the tree: it is ordered like a request without a hit."""
    policy = release.scheduler.SchedulePolicy
    mend(patches, "turns in order", (policy, "_sort_by_dfs_weight", _NODES, _TREE_NODES))


def fix_plain_turns(release: Release, patches: Patches) -> None:
    """A later turn is admitted as a prompt with a prefix, even without a prefix cache."""
    adder = release.scheduler.PrefillAdder
    mend(patches, "turns without a cache", (adder, "add_one_req", _NO_CACHE, _NO_PREFIX))


def fix_rows(release: Release, patches: Patches) -> None:
    """A turn does not wait for a row if its session has one."""
    name, scheduler = "_get_new_batch_prefill_raw", release.scheduler.Scheduler
    mend(
        patches,
        "rows of turns",
        (scheduler, name, _ROOM, _OWN_ROOM),
        (scheduler, name, _FIRST, _OWN_FIRST),
        (scheduler, name, _HELD, _OWN_HELD),
    )


def fix_preempted(release: Release, patches: Patches) -> None:
    """A request that has preempted a turn is not admitted without a row: the turn's session keeps its row."""
    scheduler = release.scheduler.Scheduler
    mend(patches, "rows of thrown out turns", (scheduler, "_get_new_batch_prefill_raw", _PREEMPTED, _ROW_FREED))


FIXES = (
    fix_retracted,
    fix_rejected,
    fix_order,
    fix_plain_turns,
    fix_rows,
    fix_preempted,
    fix_states,
    fix_drafted_states,
    fix_closing,
    fix_flush,
    fix_last_token,
    fix_empty,
)
"""The fixes in the order of their application."""

FIXES_BEFORE = (fix_retracted, fix_last_token)
"""Those for releases before 0.5.23."""
