"""Makes one vLLM release importable: the installed one, or one from a folder with only its wheel.

The scheduler and its managers are plain Python on top of torch. Importing them pulls in models, kernels and servers.
For a bare wheel stubs replace these, so that only the release's own scheduling code runs.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from kvlab.stubs import StandIn, importable, require, require_installed

REAL = (
    "vllm.distributed.kv_events",
    "vllm.envs",
    "vllm.multimodal.inputs",
    "vllm.multimodal.utils",
    "vllm.utils",
    "vllm.v1.core",
    "vllm.v1.engine",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.metrics.stats",
    "vllm.v1.outputs",
    "vllm.v1.request",
    "vllm.v1.structured_output.request",
    "vllm.v1.utils",
)
"""Modules to take from the wheel; stubs replace all others."""

STUBS = ("transformers", "vllm")

ABSENT = (
    "PIL",
    "cachetools",
    "cbor2",
    "blake3",
    "fastapi",
    "orjson",
    "prometheus_client",
    "regex",
    "requests",
    "tqdm",
    "urllib3",
    "uvloop",
    "xxhash",
    "zmq",
)
"""Packages that the wheel's modules import but the bookkeeping of memory does not use. Stubs replace missing ones."""


RUNNER = (
    "vllm.v1.attention.backends.utils",
    "vllm.v1.worker.gpu.block_table",
    "vllm.v1.worker.gpu.buffer_utils",
    "vllm.v1.worker.gpu.input_batch",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.states",
)
"""Further modules, which prepare the inputs of a step, without a model."""

V1_RUNNER = "vllm.v1.worker.gpu_model_runner"
"""The older model runner."""

RUNNER_V1 = (
    "vllm.model_executor.warmup.jit_warmup",
    "vllm.model_executor.warmup.jit_warmup_triton_helper",
    "vllm.v1.attention.backends.utils",
    "vllm.v1.sample.logits_processor.interface",
    "vllm.v1.sample.logits_processor.state",
    "vllm.v1.worker.block_table",
    "vllm.v1.worker.gpu_input_batch",
    V1_RUNNER,
    "vllm.v1.worker.mamba_utils",
)
"""The same for that."""


def prepare(folder: Path | None, *more: str) -> None:
    """Make `vllm.v1.core` importable from `folder`, which holds an unpacked wheel; `None`: the installed release.

    `more` are modules besides `REAL` to take from the wheel.

    A process can hold one release: a second call with another folder is refused.

    Raises:
        EngineError: there is no such release, torch is missing, or the process holds another release.
    """
    require("vLLM", "torch")
    if folder is None:
        require_installed("vllm")
        return
    holds = "v1/core/sched/scheduler.py"
    importable("vllm", "vLLM release", folder, holds=holds, stubs=STUBS, real=(*REAL, *more), absent=ABSENT)


def prepare_runners(folder: Path) -> None:
    """Make both model runners of a release in `folder` importable, too, for a CPU.

    Triton interprets the kernels if `TRITON_INTERPRET` was set before.

    Raises:
        EngineError: as `prepare`, or Triton is missing.
    """
    require("vLLM's model runners", "triton")
    prepare(folder, *RUNNER, *RUNNER_V1)
    import triton
    import vllm.platforms

    # Without a GPU the release takes no Triton; its interpreter needs none.
    sys.modules["vllm.triton_utils"] = ModuleType("vllm.triton_utils")
    vars(sys.modules["vllm.triton_utils"]).update(triton=triton, tl=triton.language, HAS_TRITON=True)
    vllm.platforms.current_platform = StandIn()
    vllm.platforms.current_platform.device_type = "cpu"
    vllm.platforms.current_platform.is_pin_memory_available = lambda: False


def without_counts() -> str:
    """Why the older model runner of this process's release cannot be driven; empty if it can."""
    if hasattr(sys.modules["vllm"], "__file__"):
        return "stubs replace kernels of a bare wheel only"
    try:
        runner = importlib.import_module(V1_RUNNER).GPUModelRunner
    except (ImportError, AttributeError, TypeError) as error:
        return f"its older model runner cannot be imported: {error}"
    return "" if hasattr(runner, "_get_mamba_bufs") else "its older model runner waits for the counts"
