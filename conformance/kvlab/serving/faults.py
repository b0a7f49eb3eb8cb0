"""Defects in a real server: those that are put into an engine's own code when it is driven, by their names."""

import importlib
import logging
import sys
from pathlib import Path

from kvattach.live import After
from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import plant
from kvlab.sglang.faults import defects

_log = logging.getLogger("kvspec")


def wait_for_engine(name: str) -> None:
    """Put a defect into SGLang's scheduler when this process has imported it."""
    sys.meta_path.insert(0, After({"sglang.srt.managers.scheduler"}, lambda _: _plant(name)))


def _plant(name: str) -> None:
    root = importlib.import_module("sglang").__path__[0]
    try:
        (defect,) = [one for one in defects(Release(Path(root))) if one.name == name]
        plant(defect, Patches())
        _log.warning("kvspec: the fault %r is in this process", name)
    except Exception:
        # Without its fault a server would look as if the fault were not found.
        _log.exception("kvspec: the fault %r could not be put in", name)
        raise SystemExit(2) from None
