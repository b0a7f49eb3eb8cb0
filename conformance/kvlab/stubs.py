"""Stubs for the other imports of an engine's bookkeeping, so that its own classes run from a bare wheel."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class EngineError(Exception):
    """An engine's release cannot be loaded. The message says why in one line."""


class _StandInType(type):
    """Any attribute of a stub class is another stub."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


class StandIn(metaclass=_StandInType):
    """Works as anything: a base class, a decorator, a type's parameter, a false value."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take anything."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Take anything."""

    def __class_getitem__(cls, item: object) -> Any:
        return cls

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """As a decorator it returns the decorated object."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else StandIn()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, key: object) -> Any:
        return StandIn()

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class Arguments(types.SimpleNamespace):
    """The options of a server; all other options that a release reads are `None`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # A mixin of a real class must not answer that class's lookups.
        bases = () if name.endswith("Mixin") else (StandIn,)
        made = type(name, bases, {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for replaced modules, and leaves the rest to Python.

    A package above a real module is a stub, too, but its real modules are found in it.
    """

    def __init__(self, stood_in: Sequence[str], real: Sequence[str], root: Path) -> None:
        """Replace the modules `stood_in` and below, except `real` and below. The closer name wins.

        `root` is the folder that contains the engine's package.
        """
        self._stood_in = frozenset(stood_in)
        self._real = frozenset(real)
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a stub; `None` for other modules."""
        if _closest(fullname, self._stood_in) <= _closest(fullname, self._real):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module that has every name."""
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Set where its real modules are found."""
        on_the_way = any(below(name, (module.__name__,)) for name in self._real)
        module.__path__ = [str(self._root.joinpath(*module.__name__.split(".")))] if on_the_way else []


def below(name: str, roots: Sequence[str]) -> bool:
    """Whether a module is one of `roots` or below one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _closest(name: str, roots: frozenset[str]) -> int:
    """The length of the longest of `roots` that a module is or is below; 0 for none."""
    while name and name not in roots:
        name = name.rpartition(".")[0]
    return len(name)


def importable(
    package: str,
    name: str,
    folder: Path,
    *,
    holds: str,
    within: str = "",
    needs: Sequence[str] = (),
    stubs: Sequence[str] = (),
    real: Sequence[str] = (),
    absent: Sequence[str] = (),
) -> bool:
    """Make a package of an engine importable from a folder, without its `__init__`, which may import a model.

    `folder` has the package below `within`, and the package has `holds`. Modules below `stubs` are stubs, except those
    below `real`; so are packages of `absent` that are not installed. A process can hold one release of an engine:
    returns whether this call made it importable.

    Raises:
        EngineError: there is no such release, a package of `needs` is missing, or the process holds another release.
    """
    root = folder / within
    if not (root / package / holds).exists():
        raise EngineError(f"{folder} holds no {name}")
    require(name, *needs)
    loaded = sys.modules.get(package)
    if loaded is not None:
        if [str(root / package)] != list(loaded.__path__):
            raise EngineError(f"this process holds another {name} already: {next(iter(loaded.__path__), 'a stub')}")
        return False
    made = types.ModuleType(package)
    made.__path__ = [str(root / package)]
    sys.modules[package] = made
    missing = [one for one in absent if importlib.util.find_spec(one) is None]
    sys.meta_path.insert(0, Finder((*stubs, *missing), real, root))
    return True


def require(name: str, *packages: str) -> None:
    """Check that the packages that an engine's classes need are installed.

    Raises:
        EngineError: a package is not installed.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise EngineError(f"{package} is not installed; {name}'s classes need it")


def require_installed(package: str) -> None:
    """Check that a release of an engine is installed, or loaded.

    Raises:
        EngineError: the release is not installed.
    """
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise EngineError(f"{package} is not installed")
