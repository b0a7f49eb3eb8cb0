"""Where torch or triton are missing, everything here is skipped; where there is no GPU, what is marked `gpu` is.

Without a GPU, the jobs of each launch run in an order that is drawn, the same one in each run of a test.
"""

import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("numpy", "torch", "triton") if find_spec(name) is None]


class _Skipped(pytest.Module):
    """A test module that is not imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip(f"not installed: {', '.join(MISSING)} (pip install 'kvspec[cuda]')", allow_module_level=True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _Skipped.from_parent(parent, path=module_path) if MISSING else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        from kvcuda.backend import INTERPRETED

        if INTERPRETED:
            pytest.skip("needs a CUDA GPU, and TRITON_INTERPRET not set")


@pytest.fixture(autouse=True)
def shuffled_jobs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcuda.backend import INTERPRETED

    if INTERPRETED:
        from tests.cuda_impl.shuffled import shuffle

        shuffle(monkeypatch, zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that need several blocks, and several passes over one, for a handful of tokens, pages or requests."""
    monkeypatch.setattr("kvcuda.memory.EXTEND_BLOCK", 4)
    monkeypatch.setattr("kvcuda.memory.JOB_BLOCK", 2)
    monkeypatch.setattr("kvcuda.moves.MOVE_BLOCK", 2)
    monkeypatch.setattr("kvcuda.digest.BLOCK", 8)
