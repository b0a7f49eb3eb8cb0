"""Makes a checkout of sglang-jax importable without an accelerator and without a model.

Its bookkeeping is numpy. Stubs replace the jax decorators, dtypes and device numbers that it uses.
"""

import importlib
from pathlib import Path
from typing import Any

from kvattach.sglang_jax.modules import Engine, imported
from kvlab.stubs import EngineError, importable

REAL = (
    "sgl_jax.global_config",
    "sgl_jax.srt.disaggregation",
    "sgl_jax.srt.managers.communication",
    "sgl_jax.srt.managers.dp_rank_assignment",
    "sgl_jax.srt.managers.io_struct",
    "sgl_jax.srt.managers.schedule_batch",
    "sgl_jax.srt.managers.schedule_policy",
    "sgl_jax.srt.managers.scheduler",
    "sgl_jax.srt.managers.scheduler_metrics_mixin",
    "sgl_jax.srt.managers.scheduler_output_processor_mixin",
    "sgl_jax.srt.managers.scheduler_profiler_mixing",
    "sgl_jax.srt.managers.utils",
    "sgl_jax.srt.mem_cache",
    "sgl_jax.srt.model_executor.forward_batch_info",
    "sgl_jax.srt.precision_tracer",
    "sgl_jax.srt.sampling.sampling_batch_info",
    "sgl_jax.srt.sampling.sampling_params",
    "sgl_jax.srt.speculative.spec_info",
    "sgl_jax.srt.utils.common_utils",
    "sgl_jax.utils",
)
"""Modules to take from the checkout; stubs replace all others."""

ABSENT = (
    "fastapi",
    "flax",
    "httpx",
    "jaxlib",
    "msgpack",
    "pathwaysutils",
    "psutil",
    "pydantic",
    "setproctitle",
    "uvicorn",
    "zmq",
)
"""Packages that the checkout imports but the bookkeeping of memory does not use."""


def load(checkout: Path) -> Engine:
    """The engine's classes from a checkout. A process can hold one.

    Raises:
        EngineError: the folder is no checkout of sglang-jax, numpy is missing, or it cannot be imported.
    """
    made = importable(
        "sgl_jax",
        "sglang-jax",
        checkout,
        within="python",
        holds="srt/managers/scheduler.py",
        needs=["numpy"],
        stubs=["sgl_jax", "jax", "transformers"],
        real=REAL,
        absent=ABSENT,
    )
    if made:
        _complete()
    try:
        return imported()
    except (AttributeError, ImportError, TypeError) as error:
        raise EngineError(f"it cannot be imported: {type(error).__name__}: {error}") from error


def _complete() -> None:
    """Give the stubs the functions that the bookkeeping calls."""
    utils = importlib.import_module("sgl_jax.srt.utils")
    common = importlib.import_module("sgl_jax.srt.utils.common_utils")
    utils.__dict__.update({name: value for name, value in vars(common).items() if not name.startswith("_")})
    jax = importlib.import_module("jax")
    jax.__dict__.update(
        device_get=_same, process_index=lambda: 0, process_count=lambda: 1, local_device_count=lambda: 1
    )
    importlib.import_module("jax.tree_util").__dict__["register_pytree_node_class"] = _same


def _same(value: Any) -> Any:
    return value
