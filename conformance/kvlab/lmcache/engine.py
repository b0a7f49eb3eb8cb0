"""Makes an unpacked wheel of LMCache importable on a CPU, without the packages that its cache does not need."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from kvattach.lmcache.modules import Engine
from kvlab.stubs import EngineError, Finder, require

ABSENT = (
    "aiofile",
    "aiofiles",
    "aiohttp",
    "awscrt",
    "blake3",
    "cachetools",
    "cpuinfo",
    "cryptography",
    "cuda",
    "cufile",
    "cupy",
    "fastapi",
    "google",
    "grpc",
    "httpx",
    "huggingface_hub",
    "numba",
    "nvtx",
    "opentelemetry",
    "prometheus_client",
    "redis",
    "requests",
    "safetensors",
    "transformers",
    "uvicorn",
    "yaml",
)
"""Packages that LMCache imports but its cache does not need: metrics, remote stores, kernels."""


def importable(folder: Path) -> None:
    """Make an unpacked wheel importable. A process can hold one release.

    Raises:
        EngineError: the folder holds no such wheel, or torch is not installed.
    """
    if not (folder / "lmcache" / "v1" / "cache_engine.py").is_file():
        raise EngineError(f"{folder} holds no LMCache")
    require("LMCache", "torch", "sortedcontainers", "psutil", "zmq")
    loaded = sys.modules.get("lmcache")
    if loaded is None:
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
        os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
        missing = [one for one in ABSENT if importlib.util.find_spec(one) is None]
        sys.meta_path.insert(0, Finder(missing, (), folder))
        sys.path.insert(0, str(folder))
        importlib.import_module("lmcache")
    elif [str(folder / "lmcache")] != [str(Path(one)) for one in loaded.__path__]:
        raise EngineError(f"this process holds another LMCache already: {next(iter(loaded.__path__))}")


def load(folder: Path) -> Engine:
    """The engine's modules from an unpacked wheel.

    Raises:
        EngineError: as `importable`.
    """
    importable(folder)
    of = importlib.import_module
    return Engine(
        cache_engine=of("lmcache.v1.cache_engine"),
        memory=of("lmcache.v1.memory_management"),
        allocator=of("lmcache.v1.memory_allocators.tensor_memory_allocator"),
        storage_manager=of("lmcache.v1.storage_backend.storage_manager"),
        cpu=of("lmcache.v1.storage_backend.local_cpu_backend"),
        disk=of("lmcache.v1.storage_backend.local_disk_backend"),
    )
