"""Makes one SGLang release importable: as it is installed, or from a folder that holds nothing but its wheel.

SGLang's memory-cache modules are plain Python on top of torch and Triton, but importing them pulls in models,
kernels and servers that need a GPU machine's whole environment. From a bare wheel those are answered by stand-ins, so
that what is under test is the release's own code and everything else is absent.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvconform.engines.standins import EngineError

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
"""What is taken from the wheel although it lies below a module that is stood in for."""


class _StandInType(type):
    """Any attribute of a stand-in class is another stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class StandIn(metaclass=_StandInType):
    """Whatever is asked of it: a base class, a decorator, a value that is false."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take anything."""

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """As a decorator it gives back what it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else StandIn()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __bool__(self) -> bool:
        return False


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (StandIn,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers the imports of `STOOD_IN`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not _below(fullname, STOOD_IN) or any(_below(name, (fullname,)) for name in REAL):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _below(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def prepare(folder: Path | None) -> None:
    """Make `sglang` importable from `folder`, which holds an unpacked wheel; `None` takes what is installed.

    A process can hold one release: a second call with another folder is refused.

    Raises:
        EngineError: there is no such release, torch or Triton is missing, or the process holds another release.
    """
    # The allocators' own kernels run on a CPU then; where there is a GPU, it is not needed for bookkeeping.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    for needed in ("torch", "triton", "numpy"):
        if importlib.util.find_spec(needed) is None:
            raise EngineError(f"{needed} is not installed; SGLang's classes need it")
    loaded = sys.modules.get("sglang")
    if folder is None:
        if loaded is None and importlib.util.find_spec("sglang") is None:
            raise EngineError("sglang is not installed; 'kvspec engines install sglang==VERSION' fetches a release")
        return
    root = folder / "sglang"
    if loaded is not None:
        if [str(root)] != list(loaded.__path__):
            raise EngineError(f"this process holds another SGLang already: {loaded.__path__[0]}")
        return
    if not (root / "srt" / "mem_cache").is_dir():
        raise EngineError(f"{folder} holds no SGLang release")
    # Its own __init__ imports half the world.
    package = types.ModuleType("sglang")
    package.__path__ = [str(root)]
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, _Finder())


def version_in(folder: Path) -> str:
    """The version that a folder's wheel says it is.

    Raises:
        EngineError: it has no metadata.
    """
    for info in folder.glob("sglang-*.dist-info"):
        return info.name.removeprefix("sglang-").removesuffix(".dist-info")
    raise EngineError(f"{folder} holds no SGLang release")
