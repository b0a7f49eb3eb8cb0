"""Trace and vector files: JSON Lines, a header and then one operation a line (`kvspec schema` prints the format).

A *trace* records the work of a memory manager: each operation carries its answer (`obs`) or its refusal (`refused`). A
*vector* prescribes operations: operations without answers, a description, the rules that it exercises, and `expect`
lines.
"""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
import zstandard

from kvconform.errors import InputError, like
from kvconform.traces.bounds import Allowance, OutOfRange, check_config, check_operation, check_rule
from kvconform.traces.expect import Expect, misfit
from kvconform.traces.lines import MAX_LINE, Lines
from kvspec.events import EVENTS, Config, Decode, Event, Operation, Snapshot
from kvtrace.header import VERSION, encode
from kvtrace.operations import Header, compressed


class VectorStep(NamedTuple):
    """One operation of a vector, its line, and its expectation."""

    line: int
    op: Operation[Any]
    expect: Expect | None
    """`None` in a recorded trace: any permitted answer is accepted."""


class Vector(NamedTuple):
    """A vector file."""

    path: Path
    header: Header
    steps: list[VectorStep]

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        return self.path.name.split(".")[0]


class AnyVersion(msgspec.Struct):
    """The fields that the first line of every file has."""

    kvspec: int
    level: Literal["request", "memory"] = "request"
    host: str | None = None


T = TypeVar("T")

any_version = msgspec.json.Decoder(AnyVersion)
_header = msgspec.json.Decoder(Header)
_line: msgspec.json.Decoder[Event | Expect] = msgspec.json.Decoder(EVENTS | Expect)


class TraceReader:
    """Reads one recorded trace in bounded memory; a context manager and an iterator over `(line number, operation)`.

    Raises:
        InputError: the file, or a line of it, cannot be used. Everything before that line has been yielded by then.
    """

    level: Literal["request"] = "request"

    def __init__(self, path: Path | Lines, max_line: int = MAX_LINE) -> None:
        """Open `path` and read its header; a line may have `max_line` bytes. `path` may also be open lines."""
        self.lines = path if isinstance(path, Lines) else Lines(path, max_line)
        try:
            self.header = _read_header(self.lines)
        except BaseException:
            self.lines.__exit__(None, None, None)
            raise

    def __enter__(self) -> "TraceReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lines.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[tuple[int, Operation[Any]]]:
        """Each operation with its answer."""
        path, number, allowance, config = self.lines.path, 1, Allowance(), self.header.config
        for number, line in self.lines:
            op = decode_line(_line, path, number, line)
            allowance.read(len(line))
            if type(op) is Expect:
                raise InputError(path, number, "an expect line belongs in a vector, not in a trace")
            if (op.obs is None) == (op.refused is None):
                absent = "no answer (obs) and no refusal (refused), as in a vector: see 'kvspec run'"
                raise InputError(
                    path, number, f"the operation has {absent if op.obs is None else 'both obs and refused'}"
                )
            _check_bounds(path, number, op, config, allowance)
            yield number, op
        if number == 1 and not self.lines.follows:
            raise InputError(path, 1, "no operation follows the header")


def read_vector(path: Path, max_line: int = MAX_LINE) -> Vector:
    """Read a vector whole. A recorded trace will do too: its answers are left out, and snapshots are taken anyway.

    Raises:
        InputError: the file, or a line of it, cannot be used.
    """
    with Lines(path, max_line) as lines:
        header = _read_header(lines)
        recorded = header.description is None and not header.rules
        if not recorded and (header.description is None or not header.rules):
            raise InputError(path, 1, "the header of a vector has a description and names rules")
        steps: list[VectorStep] = []
        allowance = Allowance()
        for number, line in lines:
            read = decode_line(_line, path, number, line)
            allowance.read(len(line))
            if isinstance(read, Expect):
                if recorded:
                    raise InputError(path, number, "an expect line needs a description and rules in the header")
                _attach(steps, read, path, number)
                continue
            if not recorded and (read.obs is not None or read.refused is not None):
                raise InputError(path, number, "an operation of a vector has no answer: the implementation gives it")
            _check_bounds(path, number, read, header.config, allowance)
            if not recorded or not isinstance(read, Snapshot):  # a snapshot is taken after every operation anyway
                steps.append(VectorStep(number, read, None if recorded else Expect()))
    if not steps:
        raise InputError(path, 1, "no operation follows the header")
    return Vector(path, header, steps)


def _attach(steps: list[VectorStep], expect: Expect, path: Path, number: int) -> None:
    """Give `expect` to the operation before it."""
    if not steps:
        raise InputError(path, number, "an expect line follows an operation, not the header")
    if steps[-1].line != number - 1:
        raise InputError(path, number, "a second expect line for the same operation")
    reason = misfit(expect, steps[-1].op)
    if reason is not None:
        raise InputError(path, number, reason)
    steps[-1] = steps[-1]._replace(expect=expect)


def _read_header(lines: Lines) -> Header:
    path = lines.path
    for number, line in lines:
        seen = decode_line(any_version, path, number, line)
        check_version(path, number, seen)
        if seen.level == "memory":
            raise InputError(path, number, "a file of the memory level, where one of the request level belongs")
        header = decode_line(_header, path, number, line)
        try:
            check_config(header.config)
            for rule in header.rules:
                check_rule(rule)
        except OutOfRange as error:
            raise InputError(path, number, str(error)) from error
        return header
    raise InputError(path, 1, "the file is empty")


def check_version(path: Path, number: int, seen: AnyVersion) -> None:
    """Refuse an unknown version of the format.

    Raises:
        InputError: it is not.
    """
    if not 1 <= seen.kvspec <= VERSION:
        raise InputError(path, number, f"format version {seen.kvspec}, but only versions 1 to {VERSION} are known")


def _check_bounds(path: Path, number: int, op: Operation[Any], config: Config, allowance: Allowance) -> None:
    try:
        check_operation(op, config)
        if type(op) is Decode:
            allowance.spend(op.n * len(op.reqs), "positions are decoded")
    except OutOfRange as error:
        raise InputError(path, number, str(error)) from error


def decode_line(decoder: msgspec.json.Decoder[T], path: Path, number: int, line: bytes) -> T:
    """One line of a file.

    Raises:
        InputError: `decoder` cannot read it.
    """
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        raise InputError(path, number, _reason(str(error), decoder.type, line)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not line.strip():
            raise InputError(path, number, "an empty line") from error
        # A JSON object ends in a brace, so a truncated one is never valid.
        if not line.endswith(b"\n"):
            raise InputError(path, number, "truncated last line: the file ends in the middle of it") from error
        raise InputError(path, number, f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from error


def _reason(error: str, type_: Any, line: bytes) -> str:
    """A validation error, with the field of a similar name if there is one."""
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(type_) or (type_,)}
    if unknown := re.fullmatch(r"Invalid value '(.*)' - at `\$\.op`", error):
        return f"unknown operation {unknown[1]!r}{like(unknown[1], map(str, kinds))}"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", error):
        name = re.search(rb'"op"\s*:\s*"(\w+)"', line)  # the line may be no JSON further on
        kind = kinds.get(name[1].decode() if name else "") or next(iter(kinds.values()))
        return f"{error}{like(unknown[1], kind.__struct_encode_fields__)}"
    return error


class TraceWriter:
    """Writes a file line by line, compressed if its name ends in `.gz` or `.zst`; a context manager.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Create or overwrite `path` and write its header."""
        self._stream = created(path)
        self._stream.write(encode(header) + b"\n")

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def write(self, op: Operation[Any]) -> None:
        """Write one operation with its answer, lists of pages as runs."""
        self._stream.write(encode(compressed(op)) + b"\n")


def created(path: Path) -> gzip.GzipFile | IO[bytes]:
    """A new file; the end of its name selects the compression."""
    if path.suffix == ".gz":
        return gzip.GzipFile(path, "wb")
    return zstandard.open(path, "wb") if path.suffix == ".zst" else path.open("wb")
