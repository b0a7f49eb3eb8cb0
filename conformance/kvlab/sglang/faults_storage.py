"""Defects for SGLang's storage behind the host tier, before 0.5.19: in its tree, its controller and its hashes."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_storage(release: Release) -> list[Defect]:
    """Six, of backups and prefetches."""
    cache, controller = release.cache_class, release.controller_class
    read = "host_indices[i * self.page_size],\n            page_data[i],"
    matched = "self.cache_controller.mem_pool_host.free(host_indices[:matched_length])"
    ended = "completed_tokens, hash_value = self.cache_controller.terminate_prefetch(\n        operation\n    )"
    revoked = "self.append_host_mem_release(operation.host_indices)"
    return [
        Defect(
            "storage: unpinned",
            "a backup does not keep its host pages from being evicted",
            (
                (cache, "write_backup_storage", "node.protect_host()", "pass"),
                (cache, "_drain_storage_control_queues_impl", "entry.release_host()", "pass"),
            ),
        ),
        Defect(
            "storage: pages mixed up",
            "pages that are read from files go to each other's places",
            ((controller, "_generic_page_get", read, read.replace("[i *", "[(len(hash_values) - 1 - i) *")),),
        ),
        Defect(
            "storage: unchained",
            "a file is named by the tokens of its page alone, and not by those before",
            ((release.storage, "get_hash_str", "if prior_hash:", "if False:"),),
        ),
        Defect(
            "storage: taken too early",
            "what a prefetch is to read counts as read when it is stopped",
            (
                (
                    cache,
                    "check_prefetch_progress",
                    ended,
                    f"{ended}\n    completed_tokens = len(hash_value) * self.page_size",
                ),
            ),
        ),
        Defect(
            "storage: duplicates kept",
            "a prefetch keeps the host pages whose content the tree has meanwhile",
            ((cache, "check_prefetch_progress", matched, "pass"),),
        ),
        Defect(
            "storage: misses kept",
            "a prefetch that finds nothing keeps its host pages",
            ((controller, "prefetch_thread_func", revoked, "pass"),),
        ),
    ]
