"""Writes trace files from a separate thread, so that the recording engine never waits for a disk.

Lines are handed to the operating system in batches of whole lines, and a compressed batch is one frame. A killed
process loses the lines that are not written yet: those of a fraction of a second. If it is killed in the middle of a
write, the last line may be cut off, which readers report. If the cut is in a Zstandard frame, the blocks before it can
be read: all except the last 4 KiB of lines.
"""

import atexit
import contextlib
import gzip
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from kvtrace.header import encode
from kvtrace.repeats import Repeats

Line = bytes | Callable[[], bytes]
"""One line without its end, or a function that makes it in the writer's thread."""

INTERVAL = 0.1
"""Seconds between two polls of the writer."""

BATCH = 64 * 1024
"""The approximate number of bytes that are compressed and written together."""

BLOCK = 4 * 1024
"""The least bytes of lines in a block of a Zstandard frame; one block for each line makes files four times as long."""

LEVEL = 1
"""Of Zstandard's compression: its default makes files of about the same size in twice the time."""

_PACKED = (".gz", ".zst")

BREATH = 20
"""Lines made in the writer's thread after which it lets other threads go first."""


class Sink:
    """A bounded buffer, the thread that empties it, and the files it fills.

    Each recording begins with a header: `trace.001.jsonl`, `trace.002.jsonl`, ... for the path `trace.jsonl`. A
    recording that outgrows `part_bytes` continues in `trace.001.p0002.jsonl` and so on, without a header: these parts
    in order are one trace.
    """

    def __init__(self, path: Path, *, part_bytes: int, max_bytes: int, keep: int, max_waiting: int) -> None:
        """Write beside `path`: parts of `part_bytes`, recordings of `max_bytes`, both as stored.

        The last `keep` recordings are kept. At most `max_waiting` lines may wait to be written; a very long prompt
        counts as many lines.
        """
        self.problem: str | None = None
        """Why this recording ended early: the buffer or the disk is full."""
        self._kept: deque[list[Path]] = deque()
        self._path = path
        self._part_bytes, self._max_bytes, self._keep, self._max_waiting = part_bytes, max_bytes, keep, max_waiting
        self._waiting: deque[tuple[Line, int] | msgspec.Struct | None] = deque()
        self._weight = self._written_weight = self._lines_made = 0
        self._file: BinaryIO | None = None
        self._recording = self._part = 0
        self._part_size = self._size = 0
        self._closing = self._busy = False
        self._compressor = zstandard.ZstdCompressor(LEVEL)
        self._repeats = Repeats()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvspec-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def files(self) -> list[Path]:
        """The kept files, in order."""
        return [path for recording in list(self._kept) for path in list(recording)]

    def begin(self, header: msgspec.Struct) -> None:
        """Begin a new recording."""
        self.problem = None
        self._waiting.append(header)

    def put(self, line: Line, weight: int = 1) -> None:
        """Add one line. If too many lines wait already, the recording ends here."""
        if self._weight - self._written_weight + weight > self._max_waiting:
            self.problem = f"more than {self._max_waiting:,} lines wait to be written"
        if self.problem is None:
            self._weight += weight
            self._waiting.append((line, weight))

    def end(self) -> None:
        """End the recording."""
        self._waiting.append(None)

    def close(self, timeout: float | None = 10.0) -> None:
        """Write the waiting lines, and stop."""
        self._closing = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        atexit.unregister(self.close)

    def drain(self, timeout: float = 10.0) -> bool:
        """Wait until no line waits, unless the sink is closed; for tests and readers."""
        self._wake.set()
        deadline = time.monotonic() + timeout
        while (self._waiting or self._busy) and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(INTERVAL / 10)
        return not self._waiting and not self._busy

    def _run(self) -> None:
        last = False
        while not last:
            self._wake.wait(INTERVAL)
            self._wake.clear()
            last = self._closing
            self._empty()
        self._end_file()

    def _empty(self) -> None:
        """Write what waits now. Lines that come meanwhile would be frames of one line, and wait for the next look."""
        self._busy = True
        batch: list[bytes] = []
        size = 0
        for _ in range(len(self._waiting)):
            item = self._waiting.popleft()
            if isinstance(item, tuple):
                line, weight = item
                news = self._repeats.news(line if isinstance(line, bytes) else self._made(line))
                batch += news
                size += sum(map(len, news))
                self._written_weight += weight
                if size <= BATCH:
                    continue
            self._write(batch)
            batch, size = [], 0
            if isinstance(item, msgspec.Struct):
                self._begin_file(item)
            elif item is None:
                self._end_file()
        self._write(batch)
        self._busy = False

    def _made(self, line: Callable[[], bytes]) -> bytes:
        """One line; empty once there is a problem, so that no file continues after a gap."""
        if self._file is None:
            return b""
        self._lines_made += 1
        if self._lines_made % BREATH == 0:
            time.sleep(0)
        try:
            return line()
        except Exception as error:
            self._give_up(f"a line could not be made: {type(error).__name__}: {error}")
            return b""

    def _begin_file(self, header: msgspec.Struct) -> None:
        self._end_file()
        self._recording += 1
        self._part = self._size = 0
        self._kept.append([])
        while len(self._kept) > self._keep:
            for path in self._kept.popleft():
                path.unlink(missing_ok=True)
        self._next_part()
        self._write([encode(header)])

    def _next_part(self) -> None:
        self._close_file()
        self._part += 1
        self._part_size = 0
        name, packed = (self._path.stem, self._path.suffix) if self._path.suffix in _PACKED else (self._path.name, "")
        stem, suffix = Path(name).stem, Path(name).suffix
        part = f".p{self._part:04}" if self._part > 1 else ""
        path = self._path.with_name(f"{stem}.{self._recording:03}{part}{suffix}{packed}")
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            self._give_up(f"{path}: {error.strerror}")
        else:
            self._kept[-1].append(path)

    def _write(self, lines: list[bytes]) -> None:
        if not lines or self._file is None:
            return
        stored = self._stored(b"\n".join(lines) + b"\n")
        written = 0
        try:
            while written < len(stored):
                written += self._file.write(stored[written:])
        except OSError as error:
            # A full disk takes only a part of it. A file can always be truncated, and then ends with a whole line
            # again.
            whole = 0 if self._path.suffix in _PACKED else stored.rfind(b"\n", 0, written) + 1
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), self._part_size + whole)
            self._give_up(f"{self._path}: {error.strerror}")
            return
        self._part_size += len(stored)
        self._size += len(stored)
        if self._size >= self._max_bytes:
            self._give_up(f"the recording has reached {self._max_bytes:,} bytes")
        elif self._part_size >= self._part_bytes:
            self._next_part()

    def _stored(self, lines: bytes) -> bytes:
        if self._path.suffix == ".zst":
            return b"".join(_in_blocks(self._compressor, lines))
        return gzip.compress(lines, 5) if self._path.suffix == ".gz" else lines

    def _give_up(self, reason: str) -> None:
        self.problem = reason
        self._close_file()

    def _end_file(self) -> None:
        """End the recording, if there is one."""
        self._write(self._repeats.changed())
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _in_blocks(compressor: zstandard.ZstdCompressor, lines: bytes) -> Iterator[bytes]:
    """One frame, in blocks that end with a line."""
    frame = compressor.compressobj()
    start = 0
    while start < len(lines):
        end = lines.find(b"\n", start + BLOCK) + 1 or len(lines)
        yield frame.compress(lines[start:end]) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        start = end
    yield frame.flush()
