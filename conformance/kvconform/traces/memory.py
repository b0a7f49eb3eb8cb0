"""Files of the memory level: JSON Lines, a header that names the pools, and then one event a line.

A *trace* holds an engine's events. A *vector* is a trace written by hand, with a description and the rules that it is
about; `expect` lines name the findings of the event before them, and an event without one has none.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from kvcheck import Checker, Malformed
from kvconform.errors import InputError
from kvconform.traces.bounds import Allowance, OutOfRange
from kvconform.traces.codec import AnyVersion, TraceReader, any_version, check_version, decode_line
from kvconform.traces.lines import MAX_LINE, Ended, Lines
from kvconform.traces.version1 import upgraded
from kvspec.memory.events import (
    Announce,
    Begin,
    Drop,
    End,
    Map,
    MemoryEvent,
    Page,
    Pages,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
    Unify,
    Unmap,
    Use,
)
from kvspec.rules import CODES, MEMORY_RULES, rule_of
from kvtrace.header import MemoryHeader


class ExpectFinding(msgspec.Struct, tag_field="op", tag="expect", forbid_unknown_fields=True, omit_defaults=True):
    """A rule that the event before this line breaks; there is a line for each rule that it breaks."""

    rule: str
    page: Page | None = None
    """The page of the first finding of that rule; `None`: any, or none."""
    code: str | None = None
    """The case of the rule that it is, like `MEM-NAME/unwritten`; `None`: any."""
    holder: str | None = None
    """The holder that the finding names; `None`: any, or none."""


class MemoryStep(NamedTuple):
    """One event of a vector, its line, and the findings that are expected of it."""

    line: int
    event: MemoryEvent
    expects: list[ExpectFinding]


class MemoryVector(NamedTuple):
    """A vector file of the memory level."""

    path: Path
    header: MemoryHeader
    steps: list[MemoryStep]

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        return self.path.name.split(".")[0]


_header = msgspec.json.Decoder(MemoryHeader)
_line: msgspec.json.Decoder[MemoryEvent | ExpectFinding] = msgspec.json.Decoder(MemoryEvent | ExpectFinding)


class MemoryReader:
    """Reads one trace in bounded memory; a context manager and an iterator over `(line number, event)`.

    Raises:
        InputError: the file, or a line of it, cannot be used. Everything before that line has been yielded by then.
    """

    level: Literal["memory"] = "memory"

    def __init__(self, lines: Lines) -> None:
        """Read the header."""
        self.lines = lines
        try:
            self.header = _read_header(lines)
        except BaseException:
            lines.__exit__(None, None, None)
            raise

    def __enter__(self) -> "MemoryReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lines.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[tuple[int, MemoryEvent]]:
        """Each event."""
        path, number, allowance, old = self.lines.path, 1, Allowance(), self.header.kvspec == 1
        for number, line in self.lines:
            event = _old_line(path, number, line) if old else decode_line(_line, path, number, line)
            if isinstance(event, ExpectFinding):
                raise InputError(path, number, "an expect line belongs in a vector, not in a trace")
            check_numbers(path, number, event)
            check_allowance(path, number, event, line, self.header.pools, allowance)
            yield number, event
        if number == 1 and not self.lines.follows:
            raise InputError(path, 1, "no event follows the header")

    def place(self, line: int) -> tuple[Path, int]:
        """The file and the line of the event that was read last."""
        return self.lines.path, line


class HostReader(MemoryReader):
    """Reads the trace of one host of several by itself, as if there were no other.

    Uses of other hosts' memory are left out. Other hosts' writes to this host's memory are in other files: a slot
    without a write in this file may have been written all the same.
    """

    def __init__(self, lines: Lines) -> None:
        """Read the header."""
        super().__init__(lines)
        pools = {name: replace(pool, writes_reported=False) for name, pool in self.header.pools.items()}
        self.header = replace(self.header, pools=pools)
        self.left_out = 0
        """The operations so far that use memory of other hosts."""

    def __iter__(self) -> Iterator[tuple[int, MemoryEvent]]:
        """Each event, without its host."""
        for number, event in super().__iter__():
            check_host(self.lines.path, number, event, self.header.host)
            event.host = None
            if isinstance(event, Begin):
                copied = (use for pair in event.copies for use in pair)
                if not all(map(self._has, (*event.reads, *event.writes, *copied))):
                    self.left_out += 1
                    self._leave_out(event)
            elif isinstance(event, End):
                event.unwritten = [*filter(self._has, event.unwritten)]
            yield number, event

    def _leave_out(self, event: Begin) -> None:
        """Make a copy to another host a read of its source, and a copy from there a write of its target."""
        copies, event.copies = event.copies, []
        event.reads, event.writes = [*filter(self._has, event.reads)], [*filter(self._has, event.writes)]
        for source, target in copies:
            if self._has(source) and self._has(target):
                event.copies.append((source, target))
            else:
                event.reads += filter(self._has, [source])
                event.writes += filter(self._has, [target])

    def _has(self, use: Use) -> bool:
        """Whether a use is of this host's memory, and not of `HOST/POOL`."""
        return use.pool is None or use.pool in self.header.pools or "/" not in use.pool


def open_trace(path: Path, max_line: int = MAX_LINE, *, follow: Ended | None = None) -> TraceReader | MemoryReader:
    """Open a trace of either level. With `follow`, wait at its end for more lines until `follow` is true.

    Raises:
        InputError: the file, or its header, cannot be used.
    """
    lines = Lines(path, max_line, follow=follow)
    try:
        seen = header_of(lines)
    except BaseException:
        lines.__exit__(None, None, None)
        raise
    if seen.level == "request":
        return TraceReader(lines)
    return MemoryReader(lines) if seen.host is None else HostReader(lines)


def header_of(lines: Lines) -> AnyVersion:
    """The header fields that all files have, from the first line, which can still be read afterwards.

    Raises:
        InputError: the file is empty, or its first line is not a header of a known version and level.
    """
    first = lines.peek()
    if not first:
        raise InputError(lines.path, 1, "the file is empty")
    seen = decode_line(any_version, lines.path, 1, first)
    check_version(lines.path, 1, seen)
    return seen


def level_of_file(path: Path) -> str:
    """The level of a file.

    Raises:
        InputError: it cannot be read, or its first line is not a header of a known version and level.
    """
    with Lines(path) as lines:
        return header_of(lines).level


def read_memory_vector(path: Path, max_line: int = MAX_LINE) -> MemoryVector:
    """Read a vector whole.

    Raises:
        InputError: the file, or a line of it, cannot be used.
    """
    with Lines(path, max_line) as lines:
        header = _read_header(lines)
        if header.description is None or not header.rules:
            raise InputError(path, 1, "the header of a vector has a description and names rules")
        steps: list[MemoryStep] = []
        allowance = Allowance()
        for number, line in lines:
            read = _old_line(path, number, line) if header.kvspec == 1 else decode_line(_line, path, number, line)
            if not isinstance(read, ExpectFinding):
                check_numbers(path, number, read)
                check_allowance(path, number, read, line, header.pools, allowance)
                steps.append(MemoryStep(number, read, []))
            elif not steps:
                raise InputError(path, number, "an expect line follows an event, not the header")
            elif read.rule not in MEMORY_RULES:
                raise InputError(path, number, f"unknown rule {read.rule!r}")
            elif read.code is not None and (read.code not in CODES or rule_of(read.code) != read.rule):
                raise InputError(path, number, f"{read.rule} has no case {read.code!r}")
            else:
                steps[-1].expects.append(read)
    if not steps:
        raise InputError(path, 1, "no event follows the header")
    return MemoryVector(path, header, steps)


def _old_line(path: Path, number: int, line: bytes) -> MemoryEvent | ExpectFinding:
    """Read a line of a file of version 1. Most lines have no name that has changed.

    Raises:
        InputError: it is not such a line.
    """
    try:
        return _line.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_line(_line, path, number, upgraded(line))


def _read_header(lines: Lines) -> MemoryHeader:
    path = lines.path
    for number, line in lines:
        seen = decode_line(any_version, path, number, line)
        check_version(path, number, seen)
        if seen.level == "request":
            raise InputError(path, number, "a file of the request level; one of the memory level is expected")
        header = decode_line(_header, path, number, upgraded(line) if seen.kvspec == 1 else line)
        for rule in header.rules:
            if rule not in MEMORY_RULES:
                raise InputError(path, number, f"unknown rule {rule!r}")
        try:
            Checker(header.pools)
        except Malformed as error:
            raise InputError(path, number, str(error)) from error
        return header
    raise InputError(path, 1, "the file is empty")


def check_host(path: Path, number: int, event: MemoryEvent, host: str | None) -> None:
    """Refuse an event of another host than that of its file.

    Raises:
        InputError: it is of another host.
    """
    if event.host not in (None, host):
        raise InputError(path, number, f"an event of host {event.host!r} in the file of host {host!r}")


def check_numbers(path: Path, number: int, event: MemoryEvent) -> None:
    """Refuse counts and places that are less than 0: no engine has them.

    The memory checker checks the numbers of pages.

    Raises:
        InputError: one is less than 0.
    """
    for name in _NUMBERS.get(type(event), ()):
        value = getattr(event, name)
        if value is not None and value < 0:
            raise InputError(path, number, f"{name} is {value}, less than 0")


_NUMBERS: dict[type[MemoryEvent], tuple[str, ...]] = {
    Map: ("index",),
    Unmap: ("index", "stop"),
    Publish: ("slots",),
    Unify: ("slots",),
    Announce: ("batch",),
}


LONG = 4096
"""Only in lines of more bytes than this can names be so long that their repetitions count."""
NAME = 512
"""Characters of such a name that cost as much as a page."""


def check_allowance(
    path: Path, number: int, event: MemoryEvent, line: bytes, pools: Mapping[str, Pool], allowance: Allowance
) -> None:
    """Refuse an event whose runs, or labels that the file does not spell out, name more than the file may.

    Raises:
        InputError: they name more.
    """
    allowance.read(len(line))
    if type(event) not in _NAMING:
        return
    spent = 0
    for pages in _listed(event):
        spent += sum([run[1] for run in pages if isinstance(run, tuple) and run[1] > 0])
    if isinstance(event, Map) and event.pool in pools:
        pool = pools[event.pool]
        labels = pool.page_size // (pool.label_size or pool.page_size)
        spent = (spent + len(event.pages)) * labels if labels > 1 else spent
    repeated = _long_names(event, line) if len(line) > LONG else 0
    if spent or repeated:
        try:
            allowance.spend(spent, "pages or labels are named")
            allowance.spend(repeated, "parts of long names are repeated")
        except OutOfRange as error:
            raise InputError(path, number, str(error)) from error


def _long_names(event: MemoryEvent, line: bytes) -> int:
    """How often parts of names are repeated: the finding of each page repeats the names of its event."""
    if max(map(len, line.split(b'"'))) < NAME:
        return 0
    pages = sum(run[1] if isinstance(run, tuple) else 1 for pages in _listed(event) for run in pages)
    return max(pages, 0) * (max(_lengths(event), default=0) // NAME)


def _lengths(part: object) -> Iterator[int]:
    """The lengths of all names in an event."""
    if isinstance(part, str):
        yield len(part)
    elif isinstance(part, (list, tuple)):
        yield from (length for one in part for length in _lengths(one))
    elif isinstance(part, msgspec.Struct):
        yield from (length for name in part.__struct_fields__ for length in _lengths(getattr(part, name)))


def _listed(event: MemoryEvent) -> list[Pages]:
    """The lists of pages of an event that are checked page by page."""
    if isinstance(event, Begin):
        copied = [use for pair in event.copies for use in pair]
        return [use.pages for use in (*event.reads, *event.writes, *copied) if use.pages]
    if isinstance(event, End):
        return [use.pages for use in event.unwritten]
    return [event.pages or []] if isinstance(event, _LISTING) else []


_LISTING = (Take, Share, Release, Publish, Drop, Map, Transfer)
_NAMING = frozenset[type[MemoryEvent]]((Begin, End, *_LISTING))
