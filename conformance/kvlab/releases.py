"""Releases of real engines, kept in a separate folder and never in this repository."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from kvconform.subprocesses import run

PINS = Path(__file__).with_name("wheels.txt")
"""The hashes of the wheels of releases that this repository names, as requirements for pip."""

ENGINES = ("lmcache", "max", "sglang", "transformers", "vllm")
"""Engines whose releases are on the package index, by the names of their packages."""


def cache_folder() -> Path:
    """The folder of releases: below the user's cache folder, by the XDG rules."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvspec" / "engines"


def folder_of(version: str, cache: Path | None = None, engine: str = "sglang") -> Path:
    """The folder of one release, whether it exists or not."""
    return (cache or cache_folder()) / f"{engine}-{version}"


def installed(cache: Path | None = None, engine: str = "sglang") -> list[str]:
    """The existing versions, the oldest first."""
    folder = cache or cache_folder()
    found = [path for path in folder.glob(f"{engine}-*") if (path / engine).is_dir()]
    return sorted((path.name.removeprefix(f"{engine}-") for path in found), key=version_key)


def version_key(version: str) -> list[int]:
    """A key that puts versions in order: 0.5.10.post1 after 0.5.10, 0.5.9 before it."""
    return [int(number) for number in re.findall(r"\d+", version)]


def pinned(engine: str, version: str) -> str | None:
    """The requirement of a release with the hashes of its wheels; `None` if it is not pinned."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.startswith(f"{engine}=={version} ")), None)


class NotFetched(Exception):
    """A release could not be fetched. The message says why in one line."""


def fetch(version: str, cache: Path | None = None, engine: str = "sglang") -> Path:
    """Fetch the wheel of one release, unless it exists already. Returns its folder.

    pip fetches it, from its configured index; a pinned release must have the pinned hash. A release is unpacked beside
    its place and moved there when it is complete, so that an interrupted run leaves no partial release.

    Raises:
        NotFetched: pip could not fetch it, or its wheel is not the pinned one.
    """
    folder = folder_of(version, cache, engine)
    if (folder / engine).is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "release"
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(pinned(engine, version) or f"{engine}=={version}", encoding="utf-8")
        command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += [
            "--retries",
            "1",
            "--no-compile",
            "--only-binary",
            ":all:",
            "--target",
            str(target),
            "-r",
            str(wanted),
        ]
        try:
            done = run(command)
        except OSError as error:
            raise NotFetched(f"pip cannot be run: {error}") from error
        if done.returncode or not (target / engine).is_dir():
            if b"DO NOT MATCH THE HASHES" in done.stderr:
                raise NotFetched(f"the wheel of {engine}=={version} is not the one that is pinned in {PINS.name}")
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise NotFetched(f"pip could not fetch {engine}=={version}: {last}")
        if engine == "vllm":
            # Its kernels take a gigabyte, and its bookkeeping is Python.
            for library in target.rglob("*.so"):
                library.unlink()
        # Another process may have installed the same release meanwhile; one is enough.
        if not folder.exists():
            shutil.move(target, folder)
    return folder
