"""Attaches to a running engine: hooks are installed when the engine's own module has been imported."""

import importlib
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kvattach.canary.switch import VARIABLE, CanarySwitchError, Setting, setting
from kvattach.hooked import complain_at_end, note
from kvattach.hooks import Trace
from kvattach.switch import SwitchError, switched_on

_log = logging.getLogger("kvspec")

ENGINES = {
    "minisgl.scheduler.scheduler": "kvattach.mini_sglang.live",
    "nanovllm.engine.scheduler": "kvattach.nano_vllm.live",
    "sglang.srt.managers.scheduler": "kvattach.sglang.live",
    "sgl_jax.srt.managers.scheduler": "kvattach.sglang_jax.live",
    "transformers.generation.continuous_batching.continuous_api": "kvattach.transformers.live",
    "vllm.v1.core.sched.scheduler": "kvattach.vllm.plugin",
}
"""The module of an engine -> the module that then installs hooks by `attach(trace)`."""

CANARIES = {
    "vllm.v1.worker.gpu.model_runner": "kvattach.canary.vllm",
    "vllm.v1.worker.gpu_model_runner": "kvattach.canary.vllm_v1",
    "sglang.srt.model_executor.model_runner": "kvattach.canary.sglang",
}
"""The module of an engine's model runner -> the module that hooks a canary into it by `attach(runner, setting)`."""


class After(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and attaches once they are imported."""

    def __init__(self, names: Collection[str], attach: Callable[[str], None]) -> None:
        """Call `attach` with the name of each module of `names` that has been imported."""
        self.names = names
        self._attach = attach
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with `attach` after its execution."""
        if fullname not in self.names or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._attach(fullname)

        loader.exec_module = exec_module
        return spec


def wait_for_engines() -> None:
    """Attach to the engine that this process imports or has imported, if the environment says so."""
    wait_for_model_runners()
    if any(isinstance(finder, After) and finder.names is ENGINES for finder in sys.meta_path):
        return
    try:
        trace = switched_on()
    except SwitchError as error:
        _log.error("kvspec: %s", error)
        return
    if trace is None:
        return
    complain_at_end(ENGINES)
    switched: Trace = trace
    for name in ENGINES:
        if name in sys.modules:
            _attach(name, switched)
    sys.meta_path.insert(0, After(ENGINES, lambda name: _attach(name, switched)))


def wait_for_model_runners() -> None:
    """Put the canary before the model runner that this process imports, if the environment says so."""
    try:
        said = setting()
    except CanarySwitchError as error:
        _log.error("kvspec: %s", error)
        return
    if said is None or any(isinstance(finder, After) and finder.names is CANARIES for finder in sys.meta_path):
        return
    switched: Setting = said
    for name in CANARIES:
        if name in sys.modules:
            _watch(name, switched)
    sys.meta_path.insert(0, After(CANARIES, lambda name: _watch(name, switched)))


def _watch(name: str, said: Setting) -> None:
    try:
        if not importlib.import_module("torch").cuda.is_available():
            _log.warning("kvspec: %s is set, but there is no GPU: the canary is off", VARIABLE)
            return
        importlib.import_module(CANARIES[name]).attach(sys.modules[name], said)
    except Exception:
        _log.exception("kvspec: the canary could not be put before %s", name)


def _attach(name: str, trace: Trace) -> None:
    try:
        importlib.import_module(ENGINES[name]).attach(trace)
        note(name)
    except ModuleNotFoundError as error:
        engine, _, _ = name.partition(".")
        _log.warning("kvspec: this release of %s is not hooked: there is no module %s", engine, error.name)
    except Exception:
        _log.exception("kvspec: %s could not be attached to", name)
