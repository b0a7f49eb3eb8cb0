"""Checks one release at one level in a separate process, and keeps the result."""

import importlib.util
import re
import subprocess
from pathlib import Path

import msgspec

from kvconform.subprocesses import python, run
from kvlab.matrix.kept import digest_of, keep, own_digest, recall
from kvlab.matrix.report import REPORTS, AnyReport, Level, Task
from kvlab.releases import ENGINES, NotFetched, fetch, folder_of

INSTALLED = "installed"
"""The name of the release that is installed beside kvspec."""

LEFT = 600.0
"""Seconds that a release may take besides its walks: for imports, vectors, and searches for known issues."""

_VERSION = re.compile(r"\d+(\.\d+)*[0-9A-Za-z.+!-]*")


class NotThere(Exception):
    """A release cannot be loaded. The message says why in one line."""


def checked(
    level: Level, engine: str, release: str, seconds: float, seed: int, out: Path, cache: Path | None, *, again: bool
) -> AnyReport:
    """The report of one release at one level.

    Without `again` a result in `out` is reused if the release, the suite and the settings are the same. The result of
    the installed release is not kept, because its key would have no version.
    """
    name = shown(release)
    try:
        folder = place_of(level, engine, release, cache)
    except NotThere as error:
        return REPORTS[level](engine, name, str(error))
    task = Task(level, engine, name, None if folder is None else str(folder), str(out), seconds, seed)
    if release == INSTALLED:
        return _run(task)
    key = msgspec.structs.asdict(task) | {"suite": own_digest()}
    if folder is not None and not is_version(release):
        key["digest"] = digest_of(folder)
    path = out / "kept" / f"{engine}-{name}-{level}.json"
    if not again and (kept := recall(path, key, REPORTS[level])) is not None:
        return kept
    report = _run(task)
    keep(path, key, report)
    return report


def place_of(level: Level, engine: str, release: str, cache: Path | None) -> Path | None:
    """The folder with the packages of a release; `None`: the installed packages.

    Raises:
        NotThere: the release cannot be loaded.
    """
    if release == INSTALLED:
        found = importlib.util.find_spec(engine) if engine in ENGINES else None
        if found is None or not found.submodule_search_locations:
            raise NotThere(f"{engine} is not installed")
        as_it_is = engine == "vllm" or level == "request"
        return None if as_it_is else Path(next(iter(found.submodule_search_locations))).parent
    if is_version(release):
        if engine not in ENGINES:
            raise NotThere(f"{engine} is not on the package index: give the path of a checkout")
        folder = folder_of(release, cache, engine)
        try:
            return folder if (folder / engine).is_dir() else fetch(release, cache, engine)
        except NotFetched as error:
            raise NotThere(str(error)) from error
    if not Path(release).is_dir():
        raise NotThere(f"there is no folder {release}")
    checkout = Path(release).resolve() / "python"
    return checkout if engine in ENGINES and (checkout / engine).is_dir() else Path(release).resolve()


def is_version(release: str) -> bool:
    """Whether a release is given by its number, and not by a path."""
    return "/" not in release and _VERSION.fullmatch(release) is not None


def shown(release: str) -> str:
    """The name of a release in tables and files: its number, or the last folder of its path."""
    return release if is_version(release) or release == INSTALLED else Path(release).resolve().name


def _run(task: Task) -> AnyReport:
    type_ = REPORTS[task.level]
    command = python("kvlab.matrix.worker", msgspec.json.encode(task).decode())
    try:
        done = run(command, timeout=LEFT + 20 * task.seconds)
    except subprocess.TimeoutExpired as error:
        return type_(task.engine, task.release, f"it did not come to an end in {error.timeout:.0f} s")
    # An engine may print; the worker's report is the last line.
    last = (done.stdout.splitlines() or [b""])[-1]
    try:
        return msgspec.json.decode(last, type=type_)
    except msgspec.MsgspecError:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        return type_(task.engine, task.release, f"its process ended with status {done.returncode}: {said[-1]}")
