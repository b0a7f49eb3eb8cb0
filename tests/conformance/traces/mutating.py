"""Changes files at random, and sees that checking each of them ends as it should: no traceback, never status 70.

    python -m tests.conformance.traces.mutating [--files 10000] [--seed 0]

Files are traces and vectors of both levels. The changes: bytes, lines, values in lines, compression.
"""

import argparse
import contextlib
import gzip
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import typer
import zstandard

from kvcli import main as cli
from kvconform.vectors.files import memory_vector_files, vector_files
from tests.conformance.traces import hostile

VALUES: list[Any] = [
    *hostile.INTEGERS,
    *hostile.STRINGS,
    *hostile.RUNS,
    None,
    True,
    1.5,
    [],
    {},
    "a",
    [[]],
    {"a": {"a": []}},
    [[1, 2, 3]],
    [["a", 1]],
]
"""The replacements of a value."""


@cache
def bases() -> list[bytes]:
    """Files that are as they should be: traces of both levels, and vectors of the memory level."""
    lives = [hostile.written([life.header, *life.lines]) for life in hostile.LIVES.values()]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        cli.run_command(["run", *map(str, vector_files()[::9]), "--record", folder])
        recorded = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    return lives + recorded + [path.read_bytes() for path in memory_vector_files()[::3]]


def mutants(seed: int) -> Iterator[tuple[str, bytes]]:
    """Endless changed files: the suffix of each, and what stands in it."""
    draw = random.Random(seed)
    whole = bases()
    while True:
        content = draw.choice(whole)
        for _ in range(draw.choice((1, 1, 1, 1, 2, 4))):
            content = draw.choice(CHANGES)(draw, content)
        suffix = draw.choice((".jsonl",) * 6 + (".jsonl.gz", ".jsonl.zst"))
        if suffix != ".jsonl":
            content = gzip.compress(content, 1) if suffix.endswith("gz") else zstandard.compress(content)
            content = content if draw.random() < 0.3 else _bytes(draw, content)
        yield suffix, content


def _bytes(draw: random.Random, content: bytes) -> bytes:
    """A few bytes are others, fewer or more."""
    place = draw.randrange(len(content) + 1)
    odd = draw.choice((b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"[", b"}", b"\n", b"1e999", b"-0", draw.randbytes(3)))
    return content[:place] + odd * draw.choice((0, 1, 1, 50)) + content[place + draw.choice((0, 1, 4, 1000)) :]


def _lines(draw: random.Random, content: bytes) -> bytes:
    """Lines are gone, twice, in another order, or from another file."""
    lines = content.splitlines(keepends=True) or [b"\n"]
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[other])
        case 2:
            lines[place], lines[other] = lines[other], lines[place]
        case 3:
            lines[place:place] = lines[place : place + 5] * 20
        case _:
            lines[place] = draw.choice(draw.choice(bases()).splitlines(keepends=True))
    return b"".join(lines)


def _value(draw: random.Random, content: bytes) -> bytes:
    """A value somewhere in a line is another one, gone, or new."""
    lines = content.splitlines(keepends=True) or [b"\n"]
    place = draw.randrange(len(lines))
    try:
        reported = json.loads(lines[place])
    except (ValueError, RecursionError):
        return content
    within = reported
    while isinstance(within, (dict, list)) and within:
        keys = list(within) if isinstance(within, dict) else range(len(within))
        key = draw.choice(keys)
        if draw.random() < 0.5 or not isinstance(within[key], (dict, list)):
            if draw.random() < 0.15:
                del within[key]
            else:
                within[key] = draw.choice(VALUES)
            break
        within = within[key]
    lines[place] = json.dumps(reported).encode() + b"\n"
    return b"".join(lines)


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (_bytes, _lines, _lines, _lines, _value, _value)


def faults(files: int, seed: int, folder: Path) -> tuple[Counter[int], list[str]]:
    """Check so many files: how often each status came, and what went wrong; such files stay in `folder`."""
    with mock.patch.object(cli, "app", typer.main.get_command(cli.app)):  # made once, not for each file
        return _faults(files, seed, folder)


def _faults(files: int, seed: int, folder: Path) -> tuple[Counter[int], list[str]]:
    statuses: Counter[int] = Counter()
    wrong = []
    for number, (suffix, content) in zip(range(files), mutants(seed), strict=False):
        path = folder / f"mutant{number}{suffix}"
        path.write_bytes(content)
        out, err = io.StringIO(), io.StringIO()
        start = time.process_time()
        # An implementation is run, and may be as large as it is configured to be; the memory checker alone is not.
        command = "run" if b'"description"' in content and b'"memory"' in content else "check"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.run_command([command, str(path)])
        seconds = time.process_time() - start
        statuses[status] += 1
        shown = out.getvalue() + err.getvalue()
        odd = next((char for char in shown if not char.isprintable() and char != "\n"), None)
        if status not in (0, 1, 2) or "Traceback" in shown or odd is not None or seconds > 10:
            wrong.append(f"{path.name}: status {status}, {seconds:.1f} s, {odd!r}: {shown[-300:]}")
        else:
            path.unlink()
    return statuses, wrong


def main() -> int:
    """Check mutants, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kvspec-mutants-"))
    start = time.process_time()
    statuses, wrong = faults(asked.files, asked.seed, folder)
    counts = ", ".join(f"{count:,} with status {status}" for status, count in sorted(statuses.items()))
    print(f"{asked.files:,} files in {time.process_time() - start:.0f} s of processor time: {counts}.")
    print("\n".join(wrong) or "None went wrong.")
    if not wrong:
        folder.rmdir()
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
