"""Makes one SGLang release importable: as it is installed, or from a folder that holds nothing but its wheel.

SGLang's memory-cache modules are plain Python on top of torch and Triton, but importing them pulls in models,
kernels and servers that need a GPU machine's whole environment. From a bare wheel those are answered by stand-ins, so
that what is under test is the release's own code and everything else is absent.
"""

import os
from pathlib import Path

from kvlab.stubs import EngineError, importable, require, require_installed

STOOD_IN = (
    "sgl_kernel",
    "torchaudio",
    "torchvision",
    "transformers",
    "sglang.jit_kernel",
    "sglang.kernels.jit",
    "sglang.srt.beam_search",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.disaggregation",
    "sglang.srt.distributed",
    "sglang.srt.hardware_backend",
    "sglang.srt.layers",
    "sglang.srt.managers",
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.metrics",
    "sglang.srt.model_executor",
    "sglang.srt.model_loader",
    "sglang.srt.multimodal",
    "sglang.srt.observability",
    "sglang.srt.sampling",
    "sglang.srt.server_args",
    "sglang.srt.speculative",
    "sglang.srt.utils.custom_op",
    "sglang.srt.utils.hf_transformers",
    "sglang.srt.utils.hf_transformers_utils",
)
"""Modules that a bare wheel cannot import, or that have nothing to do with the bookkeeping of memory."""

REAL = (
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.session_controller",
    "sglang.srt.managers.scheduler_components.new_token_ratio_tracker",
)
"""Modules that are taken from the wheel although a stub replaces their package."""


def prepare(folder: Path | None) -> None:
    """Make `sglang` importable from `folder`, which holds an unpacked wheel; `None` takes what is installed.

    A process can hold one release: a second call with another folder is refused.

    Raises:
        EngineError: there is no such release, torch or Triton is missing, or the process holds another release.
    """
    # The allocators' own kernels run on a CPU then; where there is a GPU, it is not needed for bookkeeping.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    require("SGLang", "torch", "triton", "numpy")
    if folder is None:
        require_installed("sglang")
    else:
        importable("sglang", "SGLang release", folder, holds="srt/mem_cache", stubs=STOOD_IN, real=REAL)
    from kvcuda.interpreter import quicken

    quicken()


def version_in(folder: Path) -> str:
    """The version that a folder's wheel says it is.

    Raises:
        EngineError: it has no metadata.
    """
    for info in folder.glob("sglang-*.dist-info"):
        return info.name.removeprefix("sglang-").removesuffix(".dist-info")
    raise EngineError(f"{folder} holds no SGLang release")
