"""Defects for vLLM's own offloading to the CPU."""

from kvlab.injection import Defect


def offloading_defects() -> list[Defect]:
    """Ten of them, for 0.33.0."""
    from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
    from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

    loaded = "for j in [j for j in self._pending_load_event_indices if j <= load_wm]:"
    stored = "for j in [j for j in self._pending_store_event_indices if j <= store_wm]:"
    held = "gpu_block_pool.touch(\n                [gpu_block_pool.blocks[bid] for bid in gpu_block_ids]\n            )"
    sources = "load_state.transfer_meta.cpu_block_ids"
    completed = (SimpleCPUOffloadScheduler, "_process_store_completion")
    return [
        Defect(
            "load not waited for",
            "a request goes on while its blocks are still being copied from the host",
            ((SimpleCPUOffloadWorker, "get_finished", loaded, "for j in [*self._pending_load_event_indices]:"),),
        ),
        Defect(
            "store taken for done",
            "a block is found on the host while it is still being copied there",
            ((SimpleCPUOffloadWorker, "get_finished", stored, "for j in [*self._pending_store_event_indices]:"),),
        ),
        Defect(
            "store not fenced",
            "a store does not wait for the launch that writes its source; issue 45704 of vLLM",
            ((SimpleCPUOffloadWorker, "wait_for_save", "wait_event=self._store_compute_done", "wait_event=None"),),
        ),
        Defect(
            "host block not held",
            "a block may be evicted from the host while it is being loaded",
            (
                (
                    SimpleCPUOffloadScheduler,
                    "update_state_after_alloc",
                    "self.cpu_block_pool.touch(cpu_blocks_to_touch)",
                    "pass",
                ),
            ),
        ),
        Defect(
            "host hit not held",
            "a block that was found on the host may be evicted before there is room for it",
            (
                (
                    SimpleCPUOffloadScheduler,
                    "get_num_new_matched_tokens",
                    "self.cpu_block_pool.touch(pin_blocks)",
                    "pass",
                ),
            ),
        ),
        Defect(
            "stored block not held",
            "a block may be handed out on the device while it is being stored",
            ((SimpleCPUOffloadScheduler, "_prepare_eager_store_specs", held, "pass"),),
        ),
        Defect(
            "host block not freed",
            "a block of the host keeps its reference when it has been stored",
            ((*completed, "self.cpu_block_pool.free_blocks(cpu_blocks)", "pass"),),
        ),
        Defect(
            "loaded into other blocks",
            "the host's blocks are copied into a request's first blocks, whatever it has there",
            (
                (
                    SimpleCPUOffloadScheduler,
                    "update_state_after_alloc",
                    "group_gpu_ids[gpu_ext_start + i]",
                    "group_gpu_ids[i]",
                ),
            ),
        ),
        Defect(
            "loaded from other blocks",
            "blocks that are loaded together come from each other's places on the host",
            ((SimpleCPUOffloadScheduler, "build_connector_meta", sources, f"{sources}[::-1]"),),
        ),
        Defect(
            "names of other blocks",
            "blocks that were stored together get each other's names",
            ((*completed, "zip(gpu_block_ids, cpu_blocks)", "zip(gpu_block_ids[::-1], cpu_blocks)"),),
        ),
    ]
