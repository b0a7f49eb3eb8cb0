"""Defects in a real server: those that are put into an engine's own code when it is driven, by their names."""

import importlib
import logging
import sys
from pathlib import Path

from kvattach.live import After
from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import Defect, inject_fault
from kvlab.sglang.faults import defects

_log = logging.getLogger("kvspec")


def wait_for_engine(name: str) -> None:
    """Put a defect into SGLang's scheduler when this process has imported it."""
    sys.meta_path.insert(0, After({"sglang.srt.managers.scheduler"}, lambda _: _plant(name)))


def _plant(name: str) -> None:
    root = importlib.import_module("sglang").__path__[0]
    try:
        (defect,) = [one for one in defects(Release(Path(root))) if one.name == name]
        _plant_everywhere(defect)
        _log.warning("kvspec: the fault %r is in this process", name)
    except Exception:
        # Without its fault a server would look as if the fault were not found.
        _log.exception("kvspec: the fault %r could not be put in", name)
        raise SystemExit(2) from None


def _plant_everywhere(defect: Defect) -> None:
    """Put a defect in; modules that have imported the function by its name get the new one."""
    functions = [(owner, name, vars(owner)[name]) for owner, name, *_ in defect.places]
    inject_fault(defect, Patches())
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("sglang.")]
    for owner, name, original in functions:
        for module in modules:
            if vars(module).get(name) is original:
                setattr(module, name, vars(owner)[name])
