"""Attaches to an engine as it runs: hooks go in when the engine's own module has been imported."""

import importlib
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kvconform.attach.hooks import Trace
from kvconform.attach.switch import SwitchError, opened

_log = logging.getLogger("kvspec")

ENGINES = {"nanovllm.engine.scheduler": "kvconform.attach.nano_vllm.live"}
"""The module of an engine after which hooks go in, and who puts them in: a module with `attach(trace)`.

vLLM is not among them: it loads plugins itself."""


class _After(importlib.abc.MetaPathFinder):
    """Finds the modules in `ENGINES` as Python does, and attaches once they are there."""

    def __init__(self, attach: Callable[[str], None]) -> None:
        self._attach = attach
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in ENGINES or self._looking:
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
    """Attach to whichever engine this process imports, if the environment says so."""
    try:
        trace = opened()
    except SwitchError as error:
        _log.error("kvspec: %s", error)
        return
    if trace is not None:
        told: Trace = trace
        sys.meta_path.insert(0, _After(lambda name: _attach(name, told)))


def _attach(name: str, trace: Trace) -> None:
    try:
        importlib.import_module(ENGINES[name]).attach(trace)
    except Exception:
        _log.exception("kvspec: %s could not be attached to", name)
