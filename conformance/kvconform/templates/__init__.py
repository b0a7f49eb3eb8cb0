"""The files of `kvspec init`: a first check of an engine, one folder for each way to reach it.

adapter  an engine of a hundred lines with a bug, the class by which kvspec drives it, a test, a job
trace    an engine that writes its memory events, and the check of its trace
attach   a test of vLLM's own scheduler with kvspec's hooks in it

The folders hold the files as they are written, and are tests of this project too.
"""

import shutil
from pathlib import Path
from typing import Literal

from kvconform.errors import InputError

Way = Literal["adapter", "trace", "attach"]


def start(way: Way, folder: Path) -> list[Path]:
    """Write the files of one way into a folder that is new or empty; which, relative to it and in order.

    Raises:
        InputError: the folder is no folder, or something is in it: nothing is ever overwritten.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(folder, 0, "exists and is not an empty folder; nothing was written")
    shutil.copytree(
        Path(__file__).parent / way,
        folder,
        dirs_exist_ok=True,
        copy_function=shutil.copyfile,  # where it is installed files may be read-only
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
