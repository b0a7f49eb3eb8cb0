"""Makes one SGLang release importable: the installed one, or one from a folder with only its wheel.

SGLang's memory-cache modules are plain Python on top of torch and Triton, but importing them pulls in models, kernels
and servers that need a GPU machine's whole environment. For a bare wheel stubs replace these, so that only the
release's own code is under test.
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
"""Modules that a bare wheel cannot import, or that the bookkeeping of memory does not use."""

REAL = (
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.session_controller",
    "sglang.srt.managers.scheduler_components.new_token_ratio_tracker",
)
"""Modules to take from the wheel although a stub replaces their package."""


def prepare(folder: Path | None) -> None:
    """Make `sglang` importable from `folder`, which holds an unpacked wheel; `None`: the installed release.

    A process can hold one release: a second call with another folder is refused.

    Raises:
        EngineError: there is no such release, torch or Triton is missing, or the process holds another release.
    """
    # The allocators' own kernels then run on a CPU, even if there is a GPU: bookkeeping does not need it.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    require("SGLang", "torch", "triton", "numpy")
    if folder is None:
        require_installed("sglang")
    else:
        importable("sglang", "SGLang release", folder, holds="srt/mem_cache", stubs=STOOD_IN, real=REAL)
    from kvcuda.interpreter import quicken

    quicken()


def version_in(folder: Path) -> str:
    """The version in the metadata of a folder's wheel.

    Raises:
        EngineError: it has no metadata.
    """
    for info in folder.glob("sglang-*.dist-info"):
        return info.name.removeprefix("sglang-").removesuffix(".dist-info")
    raise EngineError(f"{folder} holds no SGLang release")
