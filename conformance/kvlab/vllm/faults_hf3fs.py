"""Defects for vLLM's `HF3FSKVConnector`."""

import importlib
from typing import Any

from kvlab.injection import Defect
from kvlab.vllm.hf3fs import HF3FS


def file_defects() -> list[Defect]:
    """Eight of them, for 0.33.0."""
    module: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector")
    made, operations = module.HF3FSKVConnector, module.AsyncOperationManager
    fence = "self._save_stream.wait_event(main_stream_event)"
    saved, loaded = "if self._all_saves_done(request_id):", "if self._load_futures[request_id].done():"
    rows = "request.block_ids[skip_blocks : skip_blocks + len(block_hashes)]"
    size = "self._block_size"
    targets = "request.block_ids[: load_op.num_blocks_to_load]"
    return [
        Defect(
            "file: save not fenced",
            "a save does not wait for the launch that writes its blocks",
            ((operations, "_handle_save_task", fence, "pass"),),
        ),
        Defect(
            "file: load not waited for",
            "a load counts as done when its copies are queued",
            ((operations, "_handle_load_task", "self._load_stream.synchronize()", "pass"),),
        ),
        Defect(
            "file: load taken for done",
            "a request goes on while it is loaded",
            ((operations, "_check_completed_loads", loaded, "if True:"),),
        ),
        Defect(
            "file: save taken for done",
            "a finished request's blocks are given back while they are saved",
            ((operations, "_check_completed_saves", saved, "if True:"),),
        ),
        Defect(
            "file: first blocks saved",
            "a request's first blocks are saved under the keys of later ones",
            ((made, "wait_for_save", rows, "request.block_ids[: len(block_hashes)]"),),
        ),
        Defect(
            "file: blocks mixed up",
            "blocks that are loaded together come to each other's places",
            ((made, "start_load_kv", targets, f"{targets}[::-1]"),),
        ),
        Defect(
            "file: key without its prefix",
            "a key does not depend on the tokens before its block",
            ((made, "_compute_prefix_hash", "{previous_hash}_", ""),),
        ),
        Defect(
            "file: found too early",
            "a key is found on one block too many",
            ((made, "get_num_new_matched_tokens", f"matched_blocks * {size}", f"len(block_hashes) * {size}"),),
        ),
    ]
