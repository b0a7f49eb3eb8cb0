"""Where vLLM's workers are."""

from typing import Any


def in_this_process(scheduler: Any) -> bool:
    """Whether a scheduler's only worker is in its process. With tensor parallelism workers are other processes."""
    parallel = scheduler.vllm_config.parallel_config
    return parallel.world_size == 1 and parallel.distributed_executor_backend in (None, "uni")
