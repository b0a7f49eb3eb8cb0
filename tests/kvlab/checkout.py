"""Engines that come as a checkout: where it is."""

import os
from pathlib import Path

from kvlab.stubs import EngineError

VARIABLE = "KVSPEC_CHECKOUTS"
"""The environment variable that names a folder with checkouts, each in a folder of its project's name."""


def checkout_of(engine: str, within: Path | None = None) -> Path:
    """The folder `engine` in `within`, or in the folder that the environment names.

    Raises:
        EngineError: neither is given, or there is no such folder.
    """
    folder = within or (Path(named) if (named := os.environ.get(VARIABLE)) else None)
    if folder is None:
        raise EngineError(f"{VARIABLE} names no folder with a checkout of {engine}")
    if not (folder / engine).is_dir():
        raise EngineError(f"{folder} holds no checkout of {engine}")
    return folder / engine
