"""Defects for SGLang's storage behind the host tier: in its tree, its controller and its hashes."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect

_READ = "host_indices[i * self.page_size],\n            page_data[i],"
_MIXED = _READ.replace("[i *", "[(len(hash_values) - 1 - i) *")


def in_storage(release: Release) -> list[Defect]:
    """Of backups and prefetches: ten in the tree of all pools, six in the older one."""
    return _in_unified(release) if release.unified else _in_radix(release)


def _mixed_up(controller: type) -> Defect:
    return Defect(
        "storage: pages mixed up",
        "pages that are read from files go to each other's places",
        ((controller, "_generic_page_get", _READ, _MIXED),),
    )


def _in_unified(release: Release) -> list[Defect]:
    cache, controller, hashes = release.cache_class, release.controller.HiCacheController, release.hashes
    chained = "if prior_hash is None:"
    drain, unlock = "_drain_storage_control_queues_impl", "self.dec_host_lock_ref(node_id, lock_params)"
    stopped = "completed_tokens, _ = self.cache_controller.terminate_prefetch(info.operation)"
    given_back = (
        "completed_tokens = len(info.host_indices); info.operation.ack_releases_incomplete_host_indices = False"
    )
    tail = "if operation.ack_releases_incomplete_host_indices:"
    return [
        Defect(
            "storage: unpinned",
            "a backup does not keep its host pages from being evicted",
            (
                (cache, "write_backup_storage", "self.inc_host_lock_ref(node_id).to_dec_params()", "None"),
                (cache, drain, unlock, "pass"),
            ),
        ),
        Defect(
            "storage: backup ended twice",
            "the end of a backup unlocks its host pages twice",
            ((cache, drain, unlock, f"{unlock}; {unlock}"),),
        ),
        _mixed_up(controller),
        Defect(
            "storage: unchained",
            "the names of a node's files say nothing of the pages before the node",
            tuple((where, "get_storage_hash_str", chained, "if True:") for where in (hashes, release.hybrid)),
        ),
        Defect(
            "storage: namespace omitted",
            "a file's name says nothing of the request's extra key and salt",
            ((hashes, "storage_namespace_seed", "extra_key is None and cache_salt is None", "True"),),
        ),
        Defect(
            "storage: taken too early",
            "what a prefetch is to read counts as read when it is stopped",
            ((cache, "_handle_prefetch_result", "= operation.completed_tokens", "= len(operation.host_indices)"),),
        ),
        Defect(
            "storage: unread kept",
            "a prefetch that is stopped keeps the host pages that it has not read",
            ((cache, drain, tail, "if False:"),),
        ),
        Defect(
            "storage: aborted and kept",
            "a request that is aborted keeps the host pages that were read for it",
            (
                (
                    cache,
                    "_retire_ongoing_prefetch",
                    "append_host_mem_release(host_indices=host_indices,",
                    "append_host_mem_release(",
                ),
            ),
        ),
        Defect(
            "storage: given back while it is read",
            "the host pages of a request that is aborted go back while files are still read into them",
            ((cache, "release_aborted_request", stopped, f"{stopped}; {given_back}"),),
        ),
        Defect(
            "storage: anchor kept",
            "a prefetch that finds nothing leaves the host pages before its own locked",
            (
                (
                    cache,
                    "_retire_ongoing_prefetch",
                    "self.dec_host_lock_ref(info.anchor_node_id, info.anchor_lock_params)",
                    "pass",
                ),
            ),
        ),
    ]


def _in_radix(release: Release) -> list[Defect]:
    cache, controller = release.cache_class, release.controller_class
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
        _mixed_up(controller),
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
