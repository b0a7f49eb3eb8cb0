"""The tests of a release, from its source distribution on the package index, kept beside the releases."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvlab.releases import cache_folder
from kvlab.serving.environment import NoEnvironment

KEPT = ("tests", "pyproject.toml")


def sources(engine: str, version: str, say: Callable[[str], object]) -> Path:
    """The folder with a release's `tests`, fetched the first time.

    pip unpacks a source distribution and asks it for its metadata, for which an engine may need a build. That part may
    fail, and is not needed.

    Raises:
        NoEnvironment: there is no such source distribution, or it has no tests.
    """
    folder = cache_folder().with_name("sources") / f"{engine}-{version}"
    if (folder / KEPT[0]).is_dir():
        return folder
    say(f"fetching the sources of {engine} {version}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", ":all:", "--no-build-isolation", "--no-clean", "--dest", scratch]
        environment = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(
            [*command, f"{engine}=={version}"], env=environment, capture_output=True, text=True, check=False
        )
        unpacked = next(iter(Path(scratch).glob(f"*/{engine}*/{KEPT[0]}")), None)
        if unpacked is None:
            last = (done.stderr.strip().splitlines() or ["its source distribution has none"])[-1]
            raise NoEnvironment(f"there are no tests of {engine} {version}: {last}")
        target = Path(scratch) / "kept"
        target.mkdir()
        for name in KEPT:
            shutil.move(unpacked.parent / name, target / name)
        shutil.move(target, folder)
    return folder
