"""Defects for vLLM's NIXL connectors, which pull or push."""

from kvlab.injection import Defect


def pull_defects() -> list[Defect]:
    """Sixteen defects, for 0.33.0."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
    from vllm.v1.core.sched.scheduler import Scheduler

    posted = "self.nixl_wrapper.transfer(handle)"
    notified = "self.nixl_wrapper.send_notif(self._remote_agents[dst_engine_id][(0, remote_rank)], notif_msg=notif_id)"
    trimmed = "assert num_decode_blocks <= len(prefill_group)"
    first = "prefill_group = prefill_block_ids[i] = prefill_group[:num_decode_blocks]"
    offsets = "np.arange(block_size_ratio)"
    results = (NixlBaseConnectorWorker, "get_transfer_results")
    heard = "notified_req_ids.add(req_id)"
    unknown = "req_id,\n                )\n                continue"
    beats = (NixlBaseConnectorWorker, "_handle_heartbeat")
    return [
        Defect(
            "blocks not kept for decode",
            "a finished request's blocks go back at once",
            (
                (
                    NixlPullConnectorScheduler,
                    "request_finished",
                    "return delay_free_blocks, dict(",
                    "return False, dict(",
                ),
            ),
        ),
        Defect(
            "notified too early",
            "prefill is notified of a read when it is posted",
            ((NixlPullConnectorWorker, "_read_blocks", posted, f"{notified}; {posted}"),),
        ),
        Defect(
            "read taken for done",
            "a request goes on while its blocks are still being read",
            ((NixlBaseConnectorWorker, "_pop_done_transfers", "if not in_progress:", "if True:"),),
        ),
        Defect(
            "first blocks read",
            "behind a hit, the blocks that were found are read in the place of those that were not",
            ((NixlBaseConnectorWorker, "_apply_prefix_caching", trimmed, first),),
        ),
        Defect(
            "failed read taken for done",
            "blocks that could not be read count as read",
            (
                (*results, "if req_id in failed_recv_reqs:", "if False:"),
                (*results, "failed_recving=failed_recv_reqs", "failed_recving=set()"),
            ),
        ),
        Defect(
            "failed read taken for over",
            "blocks go back although a part of a read that has failed is still under way",
            ((NixlBaseConnectorWorker, "_try_release_xfer_handle", "return False", "return True"),),
        ),
        Defect(
            "lease without an end",
            "blocks of which the notification is lost are kept for ever",
            ((NixlBaseConnectorWorker, "_reap_expired_send_leases", "if now >= expires", "if False"),),
        ),
        Defect(
            "heartbeat ignored",
            "a lease ends while its request waits at decode",
            ((NixlBaseConnectorWorker, "_handle_heartbeat", "max(old, new_expiry)", "old"),),
        ),
        Defect(
            "failed handshake forgotten",
            "a request waits for a server that does not answer, and gets no error",
            ((NixlBaseConnectorWorker, "_background_nixl_handshake", "self._failed_recv_reqs.put(req_id)", "pass"),),
        ),
        Defect(
            "other lease ended",
            "a notification ends the oldest lease",
            (
                (
                    NixlPullConnectorWorker,
                    "_get_new_notifs",
                    heard,
                    heard.replace("req_id)", "next(iter(self._reqs_to_send), req_id))"),
                ),
            ),
        ),
        Defect(
            "aborted while it is read",
            "an aborted request's blocks go back while they are still being written by a read",
            (
                (
                    Scheduler,
                    "finish_requests",
                    "request.request_id not in self.finished_recving_kv_req_ids",
                    "False",
                ),
            ),
        ),
        Defect(
            "parts out of order",
            "the last part of decode's longer blocks is read first",
            ((NixlBaseConnectorWorker, "get_mapped_blocks", offsets, f"{offsets}[::-1]"),),
        ),
        Defect(
            "too much cleared",
            "the last part of a read into decode's longer blocks is cleared",
            ((*results, "covered_sub_blocks = min(", "covered_sub_blocks = -1 + min("),),
        ),
        Defect(
            "read over what was found",
            "blocks that were found in decode's own cache are read, too",
            (
                (
                    NixlPullConnectorScheduler,
                    "update_state_after_alloc",
                    "blocks.get_unhashed_block_ids_all_groups()",
                    "blocks.get_block_ids()",
                ),
            ),
        ),
        Defect(
            "notification heard twice",
            "a notification that arrives twice gives blocks back twice",
            ((NixlPullConnectorWorker, "_get_new_notifs", unknown, unknown.replace("continue", f"{heard}; continue")),),
        ),
        Defect(
            "lease begun anew",
            "a heartbeat that arrives too late begins another lease of blocks that have gone back",
            (
                (*beats, "if req_id in self._reqs_to_send:", "if True:"),
                (*beats, "old = self._reqs_to_send[req_id]", "old = self._reqs_to_send.get(req_id, 0.0)"),
            ),
        ),
    ]


def push_defects() -> list[Defect]:
    """Six defects of the connector that pushes."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker

    waits = "self._recving_metadata[req_id] = meta"
    same = "if get_base_request_id(reg_id) == base_id:"
    posted = "self.nixl_wrapper.transfer(handle)"
    notified = "self.nixl_wrapper.send_notif(self._remote_agents[dst_engine_id][(0, remote_rank)], notif_msg=notif_id)"
    return [
        Defect(
            "registered taken for filled",
            "a request goes on when its blocks are registered",
            (
                (
                    NixlPushConnectorWorker,
                    "start_load_kv",
                    waits,
                    f"{waits}; self._recving_transfers.setdefault(req_id, [])",
                ),
            ),
        ),
        Defect(
            "pushed to another request",
            "blocks are written into those of any request that is registered",
            ((NixlPushConnectorWorker, "_pop_matching_registration", same, "if True:"),),
        ),
        Defect(
            "filled too early",
            "decode is notified of a write when it is posted",
            ((NixlPushConnectorWorker, "_xfer_blocks", posted, f"{notified}; {posted}"),),
        ),
        Defect(
            "registered what was found",
            "blocks that were found in decode's own cache are registered, too",
            (
                (
                    NixlPushConnectorScheduler,
                    "update_state_after_alloc",
                    "blocks.get_unhashed_block_ids_all_groups()",
                    "blocks.get_block_ids()",
                ),
            ),
        ),
        Defect(
            "pushed twice",
            "blocks are written again for a registration that arrives twice",
            (
                (
                    NixlPushConnectorWorker,
                    "_pop_matching_finished_blocks",
                    "return fin_id, self._push_finished_blocks.pop(fin_id)",
                    "return fin_id, self._push_finished_blocks[fin_id]",
                ),
            ),
        ),
        Defect(
            "one of two forgotten",
            "of several notifications that arrive at once only the first is heard",
            ((NixlPushConnectorWorker, "_push_writer_loop", "for notif in notifs:", "for notif in notifs[:1]:"),),
        ),
    ]
