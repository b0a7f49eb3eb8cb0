"""mini-sglang's own modules that the hooks work on."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    torch: Any
    core: Any
    engine: Any
    package: Any
    """`minisgl.engine`, in which a new scheduler looks up its `Engine`."""
    graph: Any
    sample: Any
    message: Any
    scheduler: Any
    cache: Any
    prefill: Any
    decode: Any
    table: Any
    radix: Any
    config: Any


def imported() -> Engine:
    """The modules of the importable mini-sglang."""
    return Engine(
        torch=importlib.import_module("torch"),
        core=importlib.import_module("minisgl.core"),
        engine=importlib.import_module("minisgl.engine.engine"),
        package=importlib.import_module("minisgl.engine"),
        graph=importlib.import_module("minisgl.engine.graph"),
        sample=importlib.import_module("minisgl.engine.sample"),
        message=importlib.import_module("minisgl.message"),
        scheduler=importlib.import_module("minisgl.scheduler.scheduler"),
        cache=importlib.import_module("minisgl.scheduler.cache"),
        prefill=importlib.import_module("minisgl.scheduler.prefill"),
        decode=importlib.import_module("minisgl.scheduler.decode"),
        table=importlib.import_module("minisgl.scheduler.table"),
        radix=importlib.import_module("minisgl.kvcache.radix_cache"),
        config=importlib.import_module("minisgl.scheduler.config"),
    )
