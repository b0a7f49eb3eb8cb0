"""Defects for the KV events of SGLang's tree."""

import importlib

from kvlab.injection import Defect


def in_events() -> list[Defect]:
    """Seven defects, for 0.5.23."""
    recorder = importlib.import_module("sglang.srt.mem_cache.events").KVCacheEventRecorder
    store, remove = (recorder, "record_store"), (recorder, "record_remove")
    return [
        Defect(
            "event: store",
            "a node of one page is not stored",
            ((*store, "if not self.enabled:", "if len(node.key) <= self.page_size:"),),
        ),
        Defect(
            "event: removal",
            "a node of one page is not removed",
            ((*remove, "if block_hashes:", "if block_hashes[1:]:"),),
        ),
        Defect(
            "event: parent",
            "a node is stored behind the first page of its parent",
            ((recorder, "_parent_block_hash", "parent_hash_values[-1]", "parent_hash_values[0]"),),
        ),
        Defect(
            "event: tokens",
            "a page is stored with the tokens of the one before",
            (
                (
                    *store,
                    "page_tokens = list(raw[start:end])",
                    "page_tokens = list(raw[max(0, start - 1) : end - (start > 0)])",
                ),
            ),
        ),
        Defect(
            "event: tier",
            "pages of the host are stored as those of the device",
            ((*store, "medium=medium,", "medium=StorageMedium.GPU,"),),
        ),
        Defect(
            "event: joined",
            "stores are joined that do not follow one another",
            ((recorder, "enqueue", "and event.parent_block_hash == tail.block_hashes[-1]", ""),),
        ),
        Defect(
            "event: flush",
            "after a flush the pages are not cleared",
            ((recorder, "record_all_cleared", "self.enqueue(AllBlocksCleared())", "pass"),),
        ),
    ]
