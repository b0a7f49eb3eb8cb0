"""Makes an unpacked wheel of MAX importable on a CPU, without its compiler and its kernels."""

import importlib
import logging
from pathlib import Path
from typing import Any

from kvattach.max.modules import Engine
from kvlab.max import adapters, drafts
from kvlab.max.device import Stager
from kvlab.stubs import importable

STUBS = (
    "max._core",
    "max._kv_cache_ops",
    "max.config",
    "max.diagnostics",
    "max.driver",
    "max.dtype",
    "max.engine",
    "max.experimental",
    "max.graph",
    "max.nn",
    "max.pipelines",
    "max.pipelines.context.video",
    "max.pipelines.kv_cache.connectors.dkv",
    "max.pipelines.kv_cache.paged_kv_cache.transfer_engine",
    "max.profiler",
    "max.serve",
)
"""Modules of device, graphs, models and servers. They need packages outside the wheel."""

REAL = (
    "max.nn.kv_cache",
    "max.pipelines.context",
    "max.pipelines.kv_cache",
    "max.pipelines.lib.pipeline_variants.overlap_text_generation",
    "max.pipelines.lib.pipeline_variants.utils",
    "max.pipelines.lib.utils",
    "max.pipelines.lora",
    "max.pipelines.modeling.types",
    "max.pipelines.request",
    "max.pipelines.speculative.adaptive_width",
    "max.pipelines.speculative.config",
    "max.pipelines.speculative.depth_schedule",
    "max.pipelines.speculative.spec_width_policy",
    "max.serve.queue",
    "max.serve.scheduler",
    "max.serve.scheduler_result",
)
"""The driven modules: the scheduler, its batches, the contexts of requests, the cache, the pipeline with drafts."""

ABSENT = ("opentelemetry", "llguidance", "transformers", "PIL", "zmq", "pydantic_settings")
"""Packages that the driven modules import but do not need."""


def load(folder: Path) -> Engine:
    """The engine's modules from an unpacked wheel. A process can hold one release.

    Raises:
        EngineError: the folder holds no such wheel, or numpy, pydantic or psutil is not installed.
    """
    needs = ("numpy", "pydantic", "psutil", "msgspec")
    first = importable("max", "MAX", folder, holds="_kv_core.so", needs=needs, stubs=STUBS, real=REAL, absent=ABSENT)
    of = importlib.import_module
    if first:
        _stand_ins(of)
        logging.getLogger("max").setLevel(logging.CRITICAL)
    scheduler, kv = "max.serve.scheduler", "max.pipelines.kv_cache"
    paged = f"{kv}.paged_kv_cache"
    engine = Engine(
        core=of("max._kv_core"),
        manager=of(f"{paged}.jenga_block_manager"),
        cache=of(f"{paged}.jenga_cache_manager"),
        groups=of(f"{paged}.kv_group_coordinator"),
        recurrent=of(f"{paged}.recurrent_coordinator"),
        scratch=of(f"{paged}.scratch_coordinator"),
        params=of("max.nn.kv_cache.cache_params"),
        connector=of(f"{kv}.kv_connector"),
        context=of("max.pipelines.context"),
        request=of("max.pipelines.request"),
        scheduler=of(f"{scheduler}.text_generation_scheduler"),
        constructor=of(f"{scheduler}.batch_constructor.text_batch_constructor"),
        config=of(f"{scheduler}.config"),
        lora=of("max.pipelines.lora.modulev3"),
        overlap=of("max.pipelines.lib.pipeline_variants.overlap_text_generation"),
    )
    engine.constructor.get_lora_manager = lambda pipeline: pipeline.lora
    adapters.stand_in(engine.lora)
    drafts.stand_in(engine)
    return engine


def _stand_ins(of: Any) -> None:
    """Make the stubs that need behaviour: decorators, and modules for the device."""
    of("max.profiler").traced = lambda function: function
    of("max.pipelines.graph_input_stager").GraphInputStager = Stager
