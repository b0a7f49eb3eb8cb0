"""Results of earlier runs, kept in a folder so that only new checks run."""

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import kvattach
import kvcheck
import kvconform
import kvlab
import kvspec
import kvtrace

T = TypeVar("T")


class _Kept(msgspec.Struct):
    key: dict[str, Any]
    report: msgspec.Raw


def recall(path: Path, key: dict[str, Any], type_: type[T]) -> T | None:
    """The report in `path` if it was kept for exactly this key, otherwise `None`."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        return msgspec.json.decode(kept.report, type=type_) if kept.key == key else None
    except (OSError, msgspec.MsgspecError):
        return None


def keep(path: Path, key: dict[str, Any], report: msgspec.Struct) -> None:
    """Keep a report. An interrupted run leaves no partial report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".new")
    made.write_bytes(msgspec.json.encode(_Kept(key, msgspec.Raw(msgspec.json.encode(report)))))
    made.replace(path)


def own_digest() -> str:
    """A digest of the specification and the suite: results of another version are not used again."""
    digest = hashlib.blake2b(digest_size=16)
    for package in (kvattach, kvcheck, kvconform, kvlab, kvspec, kvtrace):
        (root,) = package.__path__
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in (".py", ".toml", ".jsonl"):
                digest.update(path.relative_to(root).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(folder: Path) -> str:
    """A digest of the paths, sizes and times of the Python files in `folder`."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*.py")):
        status = path.stat()
        digest.update(f"{path.relative_to(folder).as_posix()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
