"""Checks releases one after the other, each in a process of its own."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kvconform.engines.matrix.findings import ReleaseReport
from kvconform.engines.matrix.task import Task
from kvconform.engines.releases import NotFetched, fetch, folder_of

INSTALLED = "installed"
"""Stands for the release that is installed beside kvspec."""


class NotChecked(Exception):
    """A release that could not be checked; the message is one line that says why."""


def check_releases(
    releases: Sequence[str], seconds: float, seed: int, out: Path, cache: Path | None
) -> list[ReleaseReport]:
    """Check releases of SGLang one after the other; what is found is written to `out`.

    Raises:
        NotChecked: one could not be fetched, or its process failed.
    """
    reports = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for release in releases:
            shown = progress.add_task(f"sglang {release}", total=None)
            reports.append(_check(release, seconds, seed, out, cache))
            progress.remove_task(shown)
    return reports


def _check(release: str, seconds: float, seed: int, out: Path, cache: Path | None) -> ReleaseReport:
    folder = None
    if release != INSTALLED:
        try:
            folder = folder_of(release, cache)
            folder = folder if (folder / "sglang").is_dir() else fetch(release, cache)
        except NotFetched as error:
            raise NotChecked(str(error)) from error
    task = Task(release, None if folder is None else str(folder), str(out), seconds, seed)
    command = [sys.executable, "-m", "kvconform.engines.matrix.worker", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotChecked(f"sglang {release} could not be checked: {last}")
    return msgspec.json.decode(done.stdout, type=ReleaseReport)
