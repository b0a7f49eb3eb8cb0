"""Stand-ins for what an engine imports, and the real modules between them."""

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvlab.stubs import EngineError, Finder, StandIn, importable
from kvlab.vllm.release import prepare


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    """A package of which one module is real, and whose other modules are stood in for."""
    package = tmp_path / "someengine" / "core"
    package.mkdir(parents=True)
    (tmp_path / "someengine" / "__init__.py").write_text("raise ImportError('imports half the world')\n")
    (package / "pool.py").write_text(
        "from someengine.kernels.fast import Kernel, launch\n\n@launch()\ndef free() -> int:\n    return 7\n\n"
        "class Pool(Kernel):\n    size: 'Kernel | None' = None\n"
    )
    finder = Finder(["someengine"], ["someengine.core.pool"], tmp_path)
    sys.meta_path.insert(0, finder)
    yield "someengine.core.pool"
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.startswith("someengine")]:
        del sys.modules[name]


def test_a_real_module_runs_among_stand_ins(engine: str) -> None:
    module = importlib.import_module(engine)
    assert module.free() == 7, "a stand-in used as a decorator gives back what it decorates"
    assert issubclass(module.Pool, StandIn)
    assert not module.Pool().anything.at_all()


def test_a_stand_in_is_the_same_class_each_time(engine: str) -> None:
    importlib.import_module(engine)
    kernels = importlib.import_module("someengine.kernels.fast")
    assert kernels.Kernel is kernels.Kernel
    assert kernels.Kernel is not kernels.launch


def test_a_folder_without_a_release_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(EngineError, match="holds no vLLM release"):
        prepare(tmp_path)
    assert "vllm" not in sys.modules


def test_what_is_mixed_into_a_real_class_answers_for_nothing_that_it_lacks(engine: str) -> None:
    importlib.import_module(engine)
    kernels = importlib.import_module("someengine.kernels.fast")
    mixed = type("Mixed", (kernels.LaunchMixin,), {})
    assert getattr(mixed(), "launches", None) is None


def test_who_says_it_closer_wins() -> None:
    finder = Finder(["someengine", "someengine.core.slow"], ["someengine.core"], Path())
    assert finder.find_spec("someengine.kernels", None) is not None
    assert finder.find_spec("someengine.core.pool", None) is None
    assert finder.find_spec("someengine.core.slow.kernel", None) is not None
    assert finder.find_spec("anotherengine", None) is None


def test_a_stand_in_holds_nothing() -> None:
    assert len(StandIn()) == 0
    assert not StandIn().handlers[:]


def test_a_package_is_importable_once_from_the_folder_that_holds_it(tmp_path: Path) -> None:
    package = tmp_path / "python" / "someengine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('imports half the world')\n")
    (package / "real.py").write_text("import nosuchpackage\nfrom someengine.fast import Kernel\n")
    wanted = partial(
        importable, "someengine", "some engine", within="python", stubs=["someengine"], absent=["nosuchpackage"]
    )
    with pytest.raises(EngineError, match="holds no some engine"):
        wanted(tmp_path, holds="missing.py")
    with pytest.raises(EngineError, match="nosuchpackage is not installed; some engine's classes need it"):
        wanted(tmp_path, holds="real.py", needs=["nosuchpackage"])
    finders = list(sys.meta_path)
    try:
        assert wanted(tmp_path, holds="real.py", real=["someengine.real"])
        assert issubclass(importlib.import_module("someengine.real").Kernel, StandIn)
        assert not wanted(tmp_path, holds="real.py")
        other = tmp_path / "other" / "python" / "someengine"
        other.mkdir(parents=True)
        (other / "real.py").touch()
        with pytest.raises(EngineError, match="this process holds another some engine already"):
            wanted(tmp_path / "other", holds="real.py")
    finally:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name.partition(".")[0] in ("someengine", "nosuchpackage")]:
            del sys.modules[name]
