"""Checks releases one after the other, each in a process of its own."""

from pathlib import Path

import msgspec

from kvconform.children import python, run
from kvconform.engines.matrix.findings import ReleaseReport
from kvconform.engines.matrix.kept import keep, own_digest, recall
from kvconform.engines.matrix.task import Task
from kvconform.engines.releases import NotFetched, fetch, folder_of

INSTALLED = "installed"
"""Stands for the release that is installed beside kvspec."""


class NotChecked(Exception):
    """A release that could not be checked; the message is one line that says why."""


def checked(release: str, seconds: float, seed: int, out: Path, cache: Path | None, *, again: bool) -> ReleaseReport:
    """What is found in one release of SGLang; it is written to `out`.

    Without `again`, what was found with the same settings before is taken for it.

    Raises:
        NotChecked: it could not be fetched, or cannot be checked.
    """
    folder = None
    if release != INSTALLED:
        try:
            folder = folder_of(release, cache)
            folder = folder if (folder / "sglang").is_dir() else fetch(release, cache)
        except NotFetched as error:
            raise NotChecked(str(error)) from error
    key = {"release": release, "seconds": seconds, "seed": seed, "suite": own_digest()}
    path = out / "kept" / f"sglang-{release}-requests.json"
    # What is installed may be another release the next time.
    kept = None if again or release == INSTALLED else recall(path, key, ReleaseReport)
    if kept is not None:
        return kept
    report = _check(Task(release, None if folder is None else str(folder), str(out), seconds, seed))
    keep(path, key, report)
    return report


def _check(task: Task) -> ReleaseReport:
    command = python("kvconform.engines.matrix.worker", msgspec.json.encode(task).decode())
    done = run(command)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise NotChecked(last)
    return msgspec.json.decode(done.stdout, type=ReleaseReport)
