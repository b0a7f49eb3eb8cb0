"""Defects for vLLM's `kv_offload`."""

from kvlab.injection import Defect


def chunk_defects() -> list[Defect]:
    """Eleven defects, for 0.33.0."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
    from vllm.v1.kv_offload.cpu.gpu_worker import SingleDirectionOffloadingHandler
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
    from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

    fence = "stream.wait_stream(current_platform.current_stream())"
    queued = "self._transfer_events[job_id] = end_event"
    finished = "self._transfers[0].end_event.query()"
    submitted = "self.worker.wait(kv_connector_metadata.jobs_to_flush)"
    loaded = (OffloadingConnectorScheduler, "update_state_after_alloc")
    return [
        Defect(
            "chunk store not fenced",
            "a store does not wait for the launch that writes its source",
            ((SingleDirectionOffloadingHandler, "transfer_async", fence, f"self.gpu_to_cpu or {fence}"),),
        ),
        Defect(
            "chunk store not flushed",
            "blocks are handed out again while a store still reads them",
            ((OffloadingConnectorWorker, "handle_preemptions", submitted, "pass"),),
        ),
        Defect(
            "chunk evicted while loaded",
            "a chunk may be evicted from the host while it is being loaded",
            (
                (CPUOffloadingManager, "_prepare_load", "self._policy.mark_non_evictable(key)", "pass"),
                (LRUCachePolicy, "evict", "assert chunk.ref_cnt == 0", "pass"),
            ),
        ),
        Defect(
            "chunk store taken for done",
            "a chunk is found while it is still being copied to",
            (
                (
                    SingleDirectionOffloadingHandler,
                    "get_finished",
                    finished,
                    f"(self.gpu_to_cpu or {finished})",
                ),
            ),
        ),
        Defect(
            "chunk load taken for done",
            "a request goes on while its blocks are still being copied to",
            (
                (
                    SingleDirectionOffloadingHandler,
                    "get_finished",
                    finished,
                    f"(not self.gpu_to_cpu or {finished})",
                ),
            ),
        ),
        Defect(
            "chunk loaded from its begin",
            "of a chunk of several blocks the first ones are loaded, whichever are asked for",
            ((*loaded, "block_indices.append(load_start_gpu_block_idx)", "block_indices.append(0)"),),
        ),
        Defect(
            "chunks of other keys",
            "chunks that are loaded together come from each other's places",
            ((CPUOffloadingManager, "_prepare_load", "chunks.append(chunk)", "chunks.insert(0, chunk)"),),
        ),
        Defect(
            "chunk handed out twice",
            "a chunk that is evicted is put twice into the list of free ones",
            ((CPUOffloadingManager, "_free_chunk", "append(chunk.chunk_id)", "extend([chunk.chunk_id] * 2)"),),
        ),
        Defect(
            "chunk kept behind its load",
            "a chunk keeps its reference when it has been loaded",
            ((CPUOffloadingManager, "complete_load", "chunk.ref_cnt -= 1", "chunk.ref_cnt -= chunk.ref_cnt > 1"),),
        ),
        Defect(
            "addresses given back",
            "the pinned addresses that a transfer copies are given to the next one before it has begun",
            (
                (
                    SingleDirectionOffloadingHandler,
                    "transfer_async",
                    queued,
                    f"{queued}; self._buffer_pool.append((batch_src, batch_dst, batch_sizes))",
                ),
            ),
        ),
        Defect(
            "addresses overwritten",
            "the pinned addresses that a transfer copies are cleared once it is queued",
            ((SingleDirectionOffloadingHandler, "transfer_async", queued, f"{queued}; all_dst.fill(0)"),),
        ),
    ]
