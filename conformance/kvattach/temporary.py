"""The temporary folders of checks while an engine runs: their users, and their removal.

A recording has a lock file beside it. The engine's process locks its first byte while it records, the checking process
its second byte while it checks; both locks end with their process in any case, and no forked child inherits them.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

PREFIX = "kvspec-check-"

KEPT = 4
"""The number of unused folders that are kept: the newest ones."""

_WRITER, _CHECKER = 0, 1
"""The bytes that the two processes lock."""


def new_folder() -> Path:
    """A folder for recordings and reports.

    Raises:
        OSError: the folder or file cannot be made.
    """
    return Path(tempfile.mkdtemp(prefix=PREFIX))


class Lock:
    """The lock file of a recording."""

    def __init__(self, path: Path) -> None:
        """Open the lock file, or make it.

        Raises:
            OSError: the folder or file cannot be made.
        """
        self._file: BinaryIO = path.open("ab")

    def hold_as_writer(self) -> None:
        """Lock as the writer until `release`, or until the process ends."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _WRITER)

    def hold_as_checker(self) -> None:
        """Lock as the checker until the process ends."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _CHECKER)

    def release(self) -> None:
        """End this process's use."""
        self._file.close()

    def has_no_writer(self) -> bool:
        """Whether no other process writes the recording."""
        return self._can_lock(1)

    def is_unused(self) -> bool:
        """Whether no other process writes or checks the recording."""
        return self._can_lock(2)

    def _can_lock(self, count: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, _WRITER)
        except OSError:
            return False
        return True


def sweep(own: Path) -> None:
    """Remove old folders of this user that no process uses; never `own`.

    Call it in a process that holds no lock in another folder: a process that closes a file loses its locks on it.
    """
    folders = [folder for folder in own.parent.glob(f"{PREFIX}*") if folder != own and _is_left(folder)]
    folders.sort(key=lambda folder: folder.stat().st_mtime_ns)
    for folder in folders[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return False
        locks = [Lock(path) for path in folder.glob("*.lock")]
    except OSError:
        return False
    unused = all(lock.is_unused() for lock in locks)
    for lock in locks:
        lock.release()
    return unused
