"""Makes the scheduler and host cache of one SGLang release importable, from a folder with its unpacked wheel."""

import os
from pathlib import Path
from typing import Any

from kvattach.sglang.release import Release
from kvlab.releases import cache_folder
from kvlab.stubs import EngineError, importable

REAL = (
    *(
        f"sglang.srt.managers.{name}"
        for name in (
            "io_struct",
            "min_free_slots_delayer",
            "overlap_utils",
            "prefill_delayer",
            "schedule_batch",
            "schedule_policy",
            "scheduler",
            "scheduler_components",
            "scheduler_input_blocker",
            "scheduler_metrics_mixin",
            "scheduler_output_processor_mixin",
            "scheduler_runtime_checker_mixin",
            "scheduler_update_weights_mixin",
            "session_controller",
            "utils",
        )
    ),
    "sglang.srt.managers.cache_controller",
    "sglang.srt.beam_search",
    "sglang.srt.constants",
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.disaggregation.utils",
    "sglang.srt.dllm",
    "sglang.srt.environ",
    "sglang.srt.lora.lora_registry",
    "sglang.srt.mem_cache",
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.multimodal.modality",
    "sglang.srt.observability.req_time_stats",
    "sglang.srt.platforms",
    "sglang.srt.runtime_context",
    "sglang.srt.rust_extensions",
    "sglang.srt.sampling",
    "sglang.srt.session",
    "sglang.srt.speculative.eagle_info",
    "sglang.srt.speculative.eagle_utils",
    "sglang.srt.speculative.spec_info",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.utils",
)
"""The modules that schedule requests and keep their memory. Stubs replace models, kernels and servers."""

PAIRS = tuple(
    f"sglang.srt.disaggregation.{name}"
    for name in (
        "base",
        "checksum",
        "common",
        "decode",
        "decode_hicache_mixin",
        "decode_schedule_batch_mixin",
        "minimax",
        "mooncake",
        "pp_consensus_store",
        "prefill",
    )
)
"""The modules of prefill and decode servers, in the releases that are driven with two servers."""

STOOD_IN = (
    "sgl_kernel",
    "sglang.jit_kernel",
    "sglang.kernels.jit",
    "sglang.srt",
    "sglang.srt.utils.custom_op",
    "sglang.srt.utils.hf_transformers",
    "sglang.srt.utils.hf_transformers_utils",
    "torchaudio",
    "torchvision",
    "transformers",
)

ABSENT = (
    "IPython",
    "PIL",
    "aiohttp",
    "compressed_tensors",
    "dill",
    "einops",
    "fastapi",
    "gguf",
    "huggingface_hub",
    "interegular",
    "openai",
    "orjson",
    "packaging",
    "partial_json_parser",
    "prometheus_client",
    "psutil",
    "pybase64",
    "pydantic",
    "requests",
    "scipy",
    "sentencepiece",
    "setproctitle",
    "soundfile",
    "starlette",
    "tiktoken",
    "tqdm",
    "uvicorn",
    "uvloop",
    "xgrammar",
    "zmq",
)
"""Packages that a release imports but its bookkeeping does not use. Stubs replace missing ones."""


def load(folder: Path) -> Release:
    """The release in `folder`. A process can hold one.

    Raises:
        EngineError: there is no release, its host cache cannot be driven, or it cannot be imported.
    """
    # Lets the allocators' kernels run on a CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # A release compiles its hash of pages once, and not whenever another release was driven before it.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(cache_folder().with_name("extensions") / folder.name))
    pairs = (folder / "sglang" / "srt" / "disaggregation" / "minimax.py").is_file()
    real = (*REAL, *PAIRS) if pairs else REAL
    importable("sglang", "SGLang release", folder, holds="srt/mem_cache", stubs=STOOD_IN, real=real, absent=ABSENT)
    try:
        import torch

        from kvcuda.interpreter import quicken

        quicken()
        vars(torch).update(compile=_as_it_is)
        return Release(folder / "sglang")
    except (ImportError, AttributeError) as error:
        raise EngineError(f"its scheduler cannot be imported: {type(error).__name__}: {error}") from error


def _as_it_is(function: Any = None, **_: object) -> Any:
    """Replaces `torch.compile`: importing the compiler takes longer than importing the release."""
    return _as_it_is if function is None else function
