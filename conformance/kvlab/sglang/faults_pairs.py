"""Defects for SGLang's prefill and decode servers, in their queues and in the transfers of Mooncake."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_pairs(release: Release) -> list[Defect]:
    """Twenty-nine of them, for 0.5.23."""
    faults = _of_prefill(release) + _of_transfers(release) + _of_decode(release)
    return faults + _of_the_lost(release) + _of_aborts(release) + _of_loads(release)


def _of_prefill(release: Release) -> list[Defect]:
    mixin = release.pair.prefill.SchedulerDisaggregationPrefillMixin
    inflight = (mixin, "process_disagg_prefill_inflight_queue")
    cached = (mixin, "maybe_send_cached_prefix_chunk")
    released = "release_kv_cache(req, self.tree_cache, checkpoint=True)"
    return [
        Defect(
            "given back before it is sent",
            "prefill gives a request's pages back although they are still being sent",
            (
                (*inflight, "[KVPoll.WaitingForInput, KVPoll.Transferring]", "[KVPoll.WaitingForInput]"),
                (*inflight, "poll == KVPoll.Success:", "poll in (KVPoll.Success, KVPoll.Transferring):"),
                (*inflight, "req.disagg_kv_sender.clear()", "pass"),
                (
                    mixin,
                    "_send_kv_chunk",
                    "req.start_send_idx = end_idx",
                    f"req.start_send_idx = end_idx; {_ON_ITS_WAY}",
                ),
            ),
        ),
        Defect(
            "sent and kept",
            "prefill keeps the pages of a request whose transfer is done",
            ((*inflight, released, "pass"),),
        ),
        Defect(
            "failed and kept",
            "prefill keeps the pages of a request whose transfer has failed",
            ((mixin, "handle_inflight_transfer_failure", released, "pass"),),
        ),
        Defect(
            "chunk of another place",
            "of two chunks the later one begins a page too early, and lands a page behind",
            ((mixin, "_send_kv_chunk", "start_idx = req.start_send_idx", _TOO_EARLY),),
        ),
        Defect(
            "sent before it is loaded",
            "prefill sends a prefix while its pages are still loaded from the host",
            (
                (*cached, "if req.pending_bootstrap or not allow_send:", "if req.pending_bootstrap:"),
                (*cached, "else req.prefix_len - req.host_hit_length", "else req.prefix_len"),
            ),
        ),
    ]


_ON_ITS_WAY = (
    "req.disagg_kv_sender.kv_mgr.update_status(req.bootstrap_room, KVPoll.Transferring) if last_chunk else None"
)
_TOO_EARLY = "start_idx = max(req.start_send_idx - page_size, req.disagg_decode_prefix_len)"


def _of_transfers(release: Release) -> list[Defect]:
    manager, common = release.pair.mooncake.MooncakeKVManager, release.pair.common
    worker = (manager, "transfer_worker")
    asked = "reqs_to_be_processed = ("
    done = "kv_chunk.is_last_chunk and self.conclude_transfer(bootstrap_room=kv_chunk.room, status=KVPoll.Success)"
    return [
        Defect(
            "notified too early",
            "decode learns that all is there before the last chunk is written",
            ((*worker, asked, f"{done}\n            {asked}"),),
        ),
        Defect(
            "abort answered too early",
            "prefill answers an abort while it still writes decode's pages",
            (
                (
                    common.CommonKVManager,
                    "_maybe_ack_drained_abort",
                    "if self._staging_outstanding.get(room, 0) > 0:",
                    "if False:",
                ),
            ),
        ),
        Defect(
            "failed transfer taken for done",
            "decode learns that all is there although a part could not be written",
            ((*worker, "if ret != 0:\n                        with", "if False:\n                        with"),),
        ),
        Defect(
            "last state for the highest",
            "a request's state goes back if prefill hears of it from decode before the router sends it",
            ((common.CommonKVManager, "update_status", "max(current, status)", "status"),),
        ),
        Defect(
            "first pages filled",
            "each chunk is written to the first of decode's pages",
            ((*worker, "kv_chunk.index_slice\n", "slice(0, len(kv_chunk.prefill_kv_indices))\n"),),
        ),
    ]


def _of_decode(release: Release) -> list[Defect]:
    decode = release.pair.decode
    prealloc, transfer = decode.DecodePreallocQueue, decode.DecodeTransferQueue
    return [
        Defect(
            "given back while it is written",
            "decode gives the pages of an aborted request back before prefill has answered",
            ((transfer, "resolve_deferred_releases", "is_ready = is_drained or now >= deadline", "is_ready = True"),),
        ),
        Defect(
            "failed and held",
            "decode keeps the pages of a request whose transfer has failed",
            (
                (
                    transfer,
                    "_release_request",
                    "release_kv_cache(decode_req.req, self.tree_cache, checkpoint=False)",
                    "pass",
                ),
            ),
        ),
        Defect(
            "went on before it was there",
            "decode goes on with a request as soon as its pages are reserved",
            (
                (transfer, "pop_transferred", "elif poll == KVPoll.Success:", "elif poll != KVPoll.Failed:"),
                (transfer, "_commit_transfer_to_req", "elif actual_room == 0:", "elif False:"),
                (transfer, "_commit_transfer_to_req", "elif actual_room != expected_room:", "elif False:"),
            ),
        ),
        Defect(
            "lock on a prefix kept",
            "a request that does not fit keeps its lock on what was found for it",
            ((prealloc, "pop_preallocated", _UNLOCKED, "pass\n            break\n"),),
        ),
        Defect(
            "slot for metadata freed twice",
            "decode gives the slot of a transfer that is over back twice",
            (
                (
                    transfer,
                    "pop_transferred",
                    "self.req_to_metadata_buffer_idx_allocator.free(idx)",
                    "[self.req_to_metadata_buffer_idx_allocator.free(idx) for _ in range(2)]",
                ),
            ),
        ),
        Defect(
            "pages of what was found",
            "decode asks prefill for the pages of the tokens that it has found itself",
            (
                (
                    prealloc,
                    "pop_preallocated",
                    "][total_prefix_len:origin_input_len]",
                    "][: origin_input_len - total_prefix_len]",
                ),
            ),
        ),
    ]


def _of_the_lost(release: Release) -> list[Defect]:
    """Defects after a server has died or was started again."""
    modules = release.pair
    sender, receiver = modules.common.CommonKVSender, modules.common.CommonKVReceiver
    held = "or (deferrable and decode_req.kv_receiver.abort_notified)"
    return [
        Defect(
            "lost is taken for gone",
            "decode gives pages back at once when prefill misses its heartbeats, and it was silent only",
            (
                (
                    modules.decode.DecodeTransferQueue,
                    "pop_transferred",
                    held,
                    f"{held} and 'Lost connection' not in str(failure_reason)",
                ),
            ),
        ),
        Defect(
            "written to its former life",
            "prefill writes to the decode server that it met first, which was started again since",
            (
                (
                    modules.mooncake.MooncakeKVManager,
                    "transfer_worker",
                    "ret = self.send_kvcache(\n                            req.mooncake_session_id,",
                    "ret = self.send_kvcache(\n                            next(iter(self.decode_kv_args_table)),",
                ),
            ),
        ),
        Defect(
            "waits for a dead decode",
            "prefill gives no request up that decode never asks for",
            ((sender, "_check_bootstrap_timeout", "if elapsed < self.kv_mgr.bootstrap_timeout:", "if True:"),),
        ),
        Defect(
            "waits for a dead prefill",
            "decode gives no request up that prefill never sends",
            ((receiver, "_check_waiting_timeout", "if elapsed < self.kv_mgr.waiting_timeout:", "if True:"),),
        ),
        Defect(
            "waits for the answer of the dead",
            "decode keeps the pages of a failed request until prefill has answered its abort, and it never will",
            (
                (
                    modules.decode.DecodeTransferQueue,
                    "resolve_deferred_releases",
                    "is_ready = is_drained or now >= deadline",
                    "is_ready = is_drained",
                ),
            ),
        ),
    ]


def _of_aborts(release: Release) -> list[Defect]:
    """An abort that is forgotten, and answers to aborts that are handled wrongly."""
    modules = release.pair
    common, manager = modules.common.CommonKVManager, modules.mooncake.MooncakeKVManager
    active, given_back = "if room_active:\n        self.update_status", "self._release_request(decode_req)"
    answered, aborted = "state.prefill_ranks.add(prefill_rank)", "self._deferred_abort_ack_tracker"
    return [
        Defect(
            "abort answered and forgotten",
            "prefill answers an abort, and still sends what it computes of the request",
            ((manager, "_handle_deferred_abort_notification", active, active.replace("room_active", "False")),),
        ),
        Defect(
            "answer for all",
            "decode takes prefill's answer to one abort for the answers to all of its aborts",
            ((common, "note_abort_ack", answered, f"[{answered} for state in {aborted}.values()]"),),
        ),
        Defect(
            "answer handled twice",
            "decode gives the pages of an aborted request back twice, and its slot for metadata never",
            (
                (
                    modules.decode.DecodeTransferQueue,
                    "_do_release",
                    given_back,
                    f"{given_back}; {given_back}",
                ),
            ),
        ),
    ]


def _of_loads(release: Release) -> list[Defect]:
    """Defects of the prefixes that decode loads from its host tier."""
    queue = release.pair.decode.DecodeTransferQueue
    decides, loads, commits, cleans = (
        (next(owner for owner in queue.__mro__ if name in vars(owner)), name)
        for name in (
            "_process_hicache_local_restores",
            "_try_hicache_queue_load_back",
            "_commit_hicache_local_restore_to_req",
            "_clean_hicache_prefetch_resources",
        )
    )
    own, loaded = "self.tree_cache.unlock(req.lock)", "self.tree_cache.unlock(decode_req.hicache_restore_lock)"
    return [
        Defect(
            "went on before it was loaded",
            "decode goes on with a request although its prefix is still being loaded from the host",
            ((*decides, "if ready:", "if True:"),),
        ),
        Defect(
            "first pages for loaded ones",
            "the row of a request has the first pages of its prefix where those belong that were loaded for it",
            (
                (
                    *loads,
                    "[pm.l1_prefix_len : pm.decode_prefix_len]",
                    "[: pm.decode_prefix_len - pm.l1_prefix_len]",
                ),
            ),
        ),
        Defect(
            "loaded and not locked",
            "a request runs without a lock on the prefix that was loaded for it",
            ((*commits, own, f"{own}; self.tree_cache.unlock(restore_lock)"),),
        ),
        Defect(
            "loaded and locked for ever",
            "decode keeps the lock on the prefix that it has loaded for a request which is aborted before it runs",
            ((*cleans, loaded, "pass"),),
        ),
        Defect(
            "locked twice",
            "a request whose prefix was loaded keeps the lock on the part that was on the device, too",
            ((*commits, own, "pass"),),
        ),
    ]


_UNLOCKED = """self.tree_cache.unlock(decode_req.req.lock)
                decode_req.req.lock = None
            break
"""
