"""The lines of an untrusted file: compressed or not, and never more than a bounded part in memory."""

import gzip
import io
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from kvconform.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE = 64 * 1024 * 1024
"""The longest line that is read, in bytes: room for a request of several million tokens."""

LOOK = 0.2
"""Seconds between two reads at the end of a followed file."""

Ended = Callable[[], bool]
"""Whether the writer of a file has ended, so that nothing is added any more."""

_ZSTD_PIECE = 1024
"""Compressed bytes decompressed at a time. A hostile file holds 128 KiB in four bytes, so this is 32 MiB at most."""


class Lines:
    """The lines of one file, `.gz` and `.zst` decompressed; a context manager and an iterator over `(number, line)`.

    Lines are numbered from 1 and keep their line end, so that a truncated last line is recognised.
    """

    def __init__(self, path: Path, max_line: int = MAX_LINE, *, follow: Ended | None = None) -> None:
        """Open `path`. With `follow` wait at its end for more, until `follow` returns true or an interrupt.

        Raises:
            InputError: it cannot be opened.
        """
        self.path = path
        self.follows = follow is not None
        """Whether the file may grow."""
        self.number = 0
        """The number of the last line read."""
        self.max_line = max_line
        self._peeked: bytes | None = None
        try:
            self._raw: BinaryIO = _Growing(path, follow) if follow else path.open("rb")  # type: ignore[assignment]
        except OSError as error:
            raise InputError(path, 0, error.strerror or str(error)) from error
        self.stream = _decompressed(self._raw, path.suffix)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()
        self._raw.close()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Each line and its number.

        Raises:
            InputError: a line is longer than the limit, or the file cannot be read or decompressed.
        """
        while line := self._next():
            yield self.number, line

    def peek(self) -> bytes:
        """The next line, without reading past it; empty at the end.

        Raises:
            InputError: as for reading.
        """
        if self._peeked is None:
            self._peeked = self._next()
            self.number -= 1
        return self._peeked

    def _next(self) -> bytes:
        self.number += 1
        if self._peeked is not None:
            line, self._peeked = self._peeked, None
            return line
        try:
            line = self.read()
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise InputError(self.path, self.number, f"damaged {self.path.suffix} data: {error}") from error
        except OSError as error:
            raise InputError(self.path, self.number, error.strerror or str(error)) from error
        if len(line) > self.max_line:
            raise InputError(self.path, self.number, f"the line is longer than {self.max_line} bytes")
        return line

    def read(self) -> bytes:
        """The next line of the file, or the part of it that is longer than the limit by one byte."""
        return self.stream.readline(self.max_line + 1)

    def bytes_read(self) -> int:
        """The number of bytes read so far, as stored in the file; 0 if that is unknown."""
        return self._raw.tell() if self._raw.seekable() else 0

    def size(self) -> int:
        """The size of the stored file in bytes; 0 if that is unknown."""
        return os.fstat(self._raw.fileno()).st_size


def _decompressed(raw: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if suffix == ".zst":
        return io.BufferedReader(_ZstdFrames(raw))
    return io.BufferedReader(raw) if isinstance(raw, _Growing) else raw


class _Growing(io.RawIOBase):
    """A file that is still being written: more may follow at its end until its writer has ended.

    A pipe ends when its writer closes it.
    """

    def __init__(self, path: Path, ended: Ended) -> None:
        self._file = path.open("rb", buffering=0)
        self._ended = ended if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode) else lambda: True

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while not (count := self._file.readinto(buffer)):
            if self._ended():
                return self._file.readinto(buffer)
            time.sleep(LOOK)
        return count


class _ZstdFrames(io.RawIOBase):
    """Zstandard frames, one after the other.

    zstandard's own reader takes a truncated file for a complete one, and a crashed recorder leaves exactly such a file.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while not self._ready:
            piece = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._begun = False
            piece = piece or self._raw.read(_ZSTD_PIECE)
            if not piece:
                if self._begun:
                    raise EOFError("the file ends in the middle of a frame")
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(piece))
        room = memoryview(buffer)
        count = min(len(room), len(self._ready))
        room[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
