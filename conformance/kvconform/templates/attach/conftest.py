"""Switches kvspec's hooks on in vLLM before a test imports its scheduler.

Every change of a reference count, every name in the prefix cache, every pass of the scheduler is checked as it happens,
and the first finding fails the test (`KVSPEC=check:halt`). A `KVSPEC` that is set already is kept.
"""

import os
from pathlib import Path

import pytest

from kvattach.vllm.plugin import register
from kvlab.stubs import EngineError
from kvlab.vllm.release import prepare

os.environ.setdefault("KVSPEC", "check:halt")
WHEEL = os.environ.get("KVSPEC_VLLM_WHEEL")
"""The folder of an unpacked wheel (`kvspec engines install vllm==0.33.0` prints it); not set: the vLLM that is
installed."""


def pytest_sessionstart() -> None:
    """Hook vLLM, or say in one line why that cannot be."""
    try:
        prepare(Path(WHEEL) if WHEEL else None)
    except EngineError as error:
        pytest.exit(f"vLLM cannot be tested: {error}", returncode=2)
    register()
