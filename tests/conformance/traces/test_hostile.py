"""Cost follows what a file contains, never the numbers in it: a corpus of small files, each with an extreme number."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.traces import hostile

pytestmark = pytest.mark.slow

SMALL = 64_000
"""Bytes that a file of the corpus has at most."""
SECONDS = 2.0
BYTES = 300_000_000
WHOLE = bool(os.environ.get("KVSPEC_HOSTILE"))
"""Whether all files are tried (`make hostile`), or one for each field."""
SEED = 5


def chosen() -> dict[str, bytes]:
    """The files that are tried: names, and what stands in them."""
    files = {name: content for name, content in hostile.files() if len(content) <= SMALL}
    fields: dict[str, list[str]] = {}
    for name in files:
        fields.setdefault(field_of(name), []).append(name)
    if WHOLE:
        return files
    return {name: files[name] for names in fields.values() for name in random.Random(SEED).sample(names, 1)}


def field_of(name: str) -> str:
    """The field that is extreme in a file."""
    return name.split("-", 2)[2]


def checked(folder: Path, files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """How checking each file ended."""
    for name, content in files.items():
        (folder / f"{name}.jsonl").write_bytes(content)
    mild = [folder / f"{name}.jsonl" for name in hostile.LIVES]
    for path, life in zip(mild, hostile.LIVES.values(), strict=True):
        path.write_bytes(hostile.written([life.header, *life.lines]))
    paths = "\n".join(str(folder / f"{name}.jsonl") for name in files)
    command = [sys.executable, "-m", "tests.conformance.traces.forking", *map(str, mild)]
    done = subprocess.run(command, input=paths, capture_output=True, text=True, check=True)
    return dict(zip(files, map(json.loads, done.stdout.splitlines()), strict=True))


def unbounded(ended: dict[str, Any]) -> str | None:
    """The complaint about the way in which checking a file ended, if there is one."""
    shown = ended["out"] + ended["err"]
    odd = next((char for char in shown if not char.isprintable() and char != "\n"), None)
    if ended["status"] not in (0, 1, 2) or "Traceback" in shown:
        return f"status {ended['status']}: {ended['err'][-500:]}"
    if ended["seconds"] > SECONDS or ended["bytes"] > BYTES:
        return f"{ended['seconds']:.1f} s and {ended['bytes'] / 1e6:.0f} MB"
    if ended["err"].count("\n") != (ended["status"] == 2) and ended["status"] != 1:
        return f"not one line: {ended['err']}"
    if any(len(line) > 1000 for line in ended["err"].splitlines()):
        return f"an error of {len(ended['err'])} characters"
    return f"{odd!r} is shown" if odd is not None else None


def test_the_corpus_is_of_many_kinds() -> None:
    kinds = {field_of(name) for name in chosen()}
    assert len(kinds) > 200
    assert len({kind.partition(".")[0] for kind in kinds}) > 35


def test_a_small_file_costs_little_whatever_numbers_are_in_it(tmp_path: Path) -> None:
    ended = checked(tmp_path, chosen())
    wrong = {name: what for name, one in ended.items() if (what := unbounded(one)) is not None}
    assert not wrong
    statuses = [one["status"] for one in ended.values()]
    assert min(statuses.count(status) for status in (1, 2)) > 40


@pytest.mark.parametrize(
    "ended",
    [
        {"status": 70, "out": "", "err": "x\n", "seconds": 0.1, "bytes": 1},
        {"status": -9, "out": "", "err": "", "seconds": 10, "bytes": 1},
        {"status": 1, "out": "x", "err": "", "seconds": 2.1, "bytes": 1},
        {"status": 1, "out": "x", "err": "", "seconds": 0.1, "bytes": BYTES + 1},
        {"status": 1, "out": "\u202e", "err": "", "seconds": 0.1, "bytes": 1},
        {"status": 2, "out": "", "err": "x" * 2000 + "\n", "seconds": 0.1, "bytes": 1},
        {"status": 2, "out": "", "err": "x\ny\n", "seconds": 0.1, "bytes": 1},
    ],
)
def test_what_is_unbounded_is_noticed(ended: dict[str, Any]) -> None:
    assert unbounded(ended) is not None
