"""Where engines are that tests drive: as a checkout, or as an installed release."""

import os
from pathlib import Path

import pytest

from kvlab.releases import folder_of
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


def sglang_jax() -> Path:
    """The checkout of sglang-jax whose server is run. The test is skipped if it is not there."""
    try:
        return checkout_of("sglang-jax-cddbf6f1")
    except EngineError as error:
        pytest.skip(str(error))


def release_of(version: str, engine: str = "sglang") -> Path:
    """Where a release is installed. The test is skipped if it is not there, or if such tests are not asked for."""
    if "KVSPEC_RELEASES" not in os.environ:
        pytest.skip("make engine-tests")
    folder = folder_of(version, engine=engine)
    if not folder.is_dir():
        pytest.skip(f"'kvspec engines install {engine}=={version}' has not been run")
    return folder
