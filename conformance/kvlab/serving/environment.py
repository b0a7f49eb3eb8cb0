"""A separate environment for an engine's server, with the versions that are pinned beside this module."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from kvconform.subprocesses import run
from kvlab.releases import cache_folder, version_key

PINS = Path(__file__).parent
PACKAGES = ("kvspec", "kvcheck", "kvtrace", "kvattach", "kvlab", "kvconform", "kvcuda")
"""Our packages that the server's processes import."""


PYTHONS = {"sglang-jax": "python3.12"}
"""Engine -> its Python, if that of kvspec does not suit it."""


OLDER = {"sglang": "0.5.21"}
"""Engine -> its newest release that needs the packages of `ENGINE-older.txt` in place of others."""


class NoEnvironment(Exception):
    """An environment could not be made. The message says why in one line."""


def environment(engine: str, say: Callable[[str], object], version: str = "") -> Path:
    """The Python of an engine's environment. The environment is made with pip the first time.

    `version` is the release that it will run; by default the newest.

    Raises:
        NoEnvironment: there are no pins for the engine, or pip could not install them.
    """
    pins = [PINS / f"{engine}.txt"]
    if not pins[0].is_file():
        raise NoEnvironment(f"there are no pinned packages for a server of {engine}")
    if version and version_key(version) <= version_key(OLDER.get(engine, "")):
        pins.append(PINS / f"{engine}-older.txt")
    digest = hashlib.sha256(b"".join(pin.read_bytes() for pin in pins)).hexdigest()[:8]
    folder = cache_folder().with_name("servers") / f"{engine}-{digest}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.is_file():
        wanted = PYTHONS.get(engine)
        base = _that_runs(engine, wanted) if wanted else sys.executable
        say(f"making {folder} (a few minutes, once)")
        _done([base, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        for pin in pins:
            _done([*pip, "--only-binary", ":all:", "-r", str(pin)])
        complete.touch()
    return python


def check_import(python: Path, module: str) -> None:
    """Import a module there: it may need a library that the system does not have.

    Raises:
        NoEnvironment: it cannot be imported.
    """
    _done([str(python), "-c", f"import {module}"])


def _that_runs(engine: str, wanted: str) -> str:
    """The Python of a name on the path. A version manager's shim may have that name without such a Python."""
    found = shutil.which(wanted)
    if found is None:
        raise NoEnvironment(f"a server of {engine} runs in {wanted}, which is not there")
    done = run([found, "-c", ""])
    if done.returncode:
        first = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
        raise NoEnvironment(f"a server of {engine} runs in {wanted}, but {found} does not run: {first}")
    return found


def _done(command: list[str]) -> None:
    try:
        done = run(command)
    except OSError as error:
        raise NoEnvironment(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise NoEnvironment(f"{' '.join(command[:4])} failed: {last}")


def search_path(folder: Path, release: Path | None) -> str:
    """`PYTHONPATH` of a server: the stubs' startup module, our packages, and the engine's release.

    Our packages and their plugin entry points are linked into `folder`; nothing beside them becomes importable.
    """
    links = folder / "packages"
    links.mkdir()
    for name in PACKAGES:
        # It is not imported here: without the engines' packages kvcuda cannot be imported.
        found = find_spec(name)
        assert found is not None and found.submodule_search_locations
        (links / name).symlink_to(Path(found.submodule_search_locations[0]), target_is_directory=True)
    named = distribution("kvspec")
    information = links / f"kvspec-{named.version}.dist-info"
    information.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (information / name).write_text(named.read_text(name) or "", encoding="utf-8")
    parts = [PINS / "startup", links, *([release] if release is not None else [])]
    return os.pathsep.join(map(str, parts))
