"""Checks releases one after the other, each in a process of its own."""

from pathlib import Path

import msgspec

from kvconform.subprocesses import python, run
from kvlab.matrix.requests.findings import CHECKOUTS, ReleaseReport
from kvlab.matrix.requests.kept import digest_of, keep, own_digest, recall
from kvlab.matrix.requests.task import Task
from kvlab.releases import NotFetched, fetch, folder_of

INSTALLED = "installed"
"""Stands for the release that is installed beside kvspec."""


class NotChecked(Exception):
    """A release that could not be checked; the message is one line that says why."""


def checked(
    engine: str, release: str, seconds: float, seed: int, out: Path, cache: Path | None, *, again: bool
) -> ReleaseReport:
    """What is found in one release of SGLang, or in a checkout of sglang-jax; it is written to `out`.

    Without `again`, what was found with the same settings before is taken for it.

    Raises:
        NotChecked: it could not be fetched, or cannot be checked.
    """
    name, folder = release, None
    key: dict[str, object] = {"release": release, "seconds": seconds, "seed": seed, "suite": own_digest()}
    if engine in CHECKOUTS and not Path(release).is_dir():
        raise NotChecked(f"{engine} is not on the package index: give the path of a checkout")
    if engine in CHECKOUTS or "/" in release:
        folder = Path(release).resolve()
        if engine == "sglang":
            folder = folder / "python" if (folder / "python" / "sglang").is_dir() else folder
            if not (folder / "sglang").is_dir():
                raise NotChecked(f"{release} holds no SGLang")
        name = Path(release).resolve().name
        key["folder"] = digest_of(folder)
    elif release != INSTALLED:
        try:
            folder = folder_of(release, cache)
            folder = folder if (folder / "sglang").is_dir() else fetch(release, cache)
        except NotFetched as error:
            raise NotChecked(str(error)) from error
    path = out / "kept" / f"{engine}-{name}-requests.json"
    # What is installed may be another release the next time.
    kept = None if again or release == INSTALLED else recall(path, key, ReleaseReport)
    if kept is not None:
        return kept
    report = _check(Task(engine, name, None if folder is None else str(folder), str(out), seconds, seed))
    keep(path, key, report)
    return report


def _check(task: Task) -> ReleaseReport:
    command = python("kvlab.matrix.requests.worker", msgspec.json.encode(task).decode())
    done = run(command)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise NotChecked(last)
    return msgspec.json.decode(done.stdout, type=ReleaseReport)
