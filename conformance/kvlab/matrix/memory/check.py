"""Drives releases one after the other, each in a process of its own."""

import importlib.util
import re
import subprocess
from pathlib import Path

import msgspec

from kvconform.subprocesses import python, run
from kvlab.matrix.memory.report import DrivenReport, Task
from kvlab.matrix.requests.check import INSTALLED
from kvlab.matrix.requests.kept import digest_of, keep, own_digest, recall
from kvlab.releases import ENGINES, NotFetched, fetch, folder_of

LEFT = 300.0
"""Seconds that a release may take beside its walks: to be imported, and to be searched for what is known."""

_VERSION = re.compile(r"\d+(\.\d+)*[0-9A-Za-z.+!-]*")


class NotThere(Exception):
    """A release that cannot be had; the message is one line that says why."""


def driven(
    engine: str, release: str, seconds: float, seed: int, out: Path, cache: Path | None, *, again: bool
) -> DrivenReport:
    """What is found in one release; without `again`, what was found with the same settings before is taken for it."""
    try:
        folder = place_of(engine, release, cache)
    except NotThere as error:
        return DrivenReport(engine, shown(release), str(error))
    key = {
        "engine": engine,
        "release": release,
        "seconds": seconds,
        "seed": seed,
        "suite": own_digest(),
        "folder": digest_of(folder) if folder is not None and not is_version(release) else "",
    }
    path = out / "kept" / f"{engine}-{shown(release)}-driven.json"
    if not again and (kept := recall(path, key, DrivenReport)) is not None:
        return kept
    report = _drive(Task(engine, shown(release), None if folder is None else str(folder), str(out), seconds, seed))
    keep(path, key, report)
    return report


def place_of(engine: str, release: str, cache: Path | None) -> Path | None:
    """Where a release is: a version's unpacked wheel, a path; `None` where vLLM itself is installed.

    Raises:
        NotThere: it cannot be had.
    """
    if release == INSTALLED:
        found = importlib.util.find_spec(engine) if engine in ENGINES else None
        if found is None or not found.submodule_search_locations:
            raise NotThere(f"{engine} is not installed")
        return None if engine == "vllm" else Path(next(iter(found.submodule_search_locations))).parent
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
    """Whether a release is told by its number, and not by a path."""
    return "/" not in release and _VERSION.fullmatch(release) is not None


def shown(release: str) -> str:
    """The name of a release in tables and files: its number, or the last folder of its path."""
    return release if is_version(release) or release == INSTALLED else Path(release).resolve().name


def _drive(task: Task) -> DrivenReport:
    failed = DrivenReport(task.engine, task.release)
    command = python("kvlab.matrix.memory.worker", msgspec.json.encode(task).decode())
    try:
        done = run(command, timeout=LEFT + 20 * task.seconds)
    except subprocess.TimeoutExpired as error:
        failed.not_supported = f"it did not come to an end in {error.timeout:.0f} s"
        return failed
    # An engine may print; what the worker says comes last.
    last = (done.stdout.splitlines() or [b""])[-1]
    try:
        return msgspec.json.decode(last, type=DrivenReport)
    except msgspec.MsgspecError:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        failed.not_supported = f"its process ended with status {done.returncode}: {said[-1]}"
        return failed
