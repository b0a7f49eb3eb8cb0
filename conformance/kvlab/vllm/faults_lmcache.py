"""Defects for LMCache's connector of several processes."""

import importlib
from typing import Any

from kvlab.injection import Defect
from kvlab.vllm.multi_process import ADAPTER, CONNECTOR, TRANSFER


def object_defects() -> list[Defect]:
    """Nine of them, for LMCache 0.5.6."""
    connector: Any = importlib.import_module(CONNECTOR)
    adapters: Any = importlib.import_module(ADAPTER)
    context = importlib.import_module(TRANSFER).LMCacheDrivenTransferContext
    tracker, made = connector.LMCacheMPRequestTracker, connector.LMCacheMPConnector
    worker, scheduler = adapters.LMCacheMPWorkerAdapter, adapters.LMCacheMPSchedulerAdapter
    fence = "self._event_backend.record_event(event, torch_dev.current_stream())"
    loaded, stored = "r_result = r_future.result(timeout=60)", "s_result = s_future.result(timeout=60)"
    hit = "        skip_first_n_tokens,\n"
    again = "if tracker.state != LMCacheMPRequestState.PREFETCHING:"
    return [
        Defect(
            "object: store not fenced",
            "a store does not wait for the launch that writes its blocks",
            ((context, "create_recorded_event", fence, "pass"),),
        ),
        Defect(
            "object: load taken for done",
            "a request goes on while it is loaded",
            (
                (worker, "get_finished", "if not r_future.query():", "if False:"),
                (worker, "get_finished", loaded, "r_result = True"),
            ),
        ),
        Defect(
            "object: store taken for done",
            "blocks are given back while the server stores them",
            (
                (worker, "get_finished", "if not s_future.query():", "if False:"),
                (worker, "get_finished", stored, "s_result = True"),
            ),
        ),
        Defect(
            "object: failed load taken for good",
            "a request whose load has failed goes on",
            ((worker, "get_finished", "if not r_result:", "if False:"),),
        ),
        Defect(
            "object: hit blocks loaded",
            "blocks that were hit on the device are loaded, too",
            ((context, "submit_retrieve", hit, "        0,\n"),),
        ),
        Defect(
            "object: stored too early",
            "a chunk is stored before its last tokens are computed",
            ((tracker, "increase_num_scheduled_tokens", "+= num_new_tokens", "+= 2 * num_new_tokens"),),
        ),
        Defect(
            "object: noted before preemption",
            "a preempted request keeps what is noted of its former blocks",
            ((made, "_get_or_create_request_tracker", again, "if False:"),),
        ),
        Defect(
            "object: key without salt",
            "a store's key does not depend on the request's salt",
            ((worker, "_create_key", "cache_salt=cache_salt", 'cache_salt=""'),),
        ),
        Defect(
            "object: last token not kept back",
            "a whole prompt is loaded, and its last token computed again upon its state",
            ((scheduler, "maybe_submit_lookup_request", "- int(reserve_last_token)", ""),),
        ),
    ]
