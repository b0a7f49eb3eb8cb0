"""Writes memory-level traces from within a Python engine.

    trace = TraceWriter("trace.jsonl.zst")
    trace.header("my engine 1.2", {"kv": Pool(page_size=16, num_pages=4096)})
    trace.take("request 7", "kv", pages)
    trace.begin(step, "compute", reads=[Use(table="request 7", stop=100)], writes=[...])

Each event is encoded at once, so that the engine may go on changing its lists, and a separate thread writes it.
References that are taken and given back again, while nothing else happens, are written once (`kvtrace.repeats`).
No error here reaches the engine: the recording ends, and `problem` says why.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvspec.memory import events
from kvspec.memory.events import Label, MemoryEvent, OpId, Page, Pool, Use
from kvtrace.header import VERSION, MemoryHeader
from kvtrace.sink import Sink

_log = logging.getLogger(__name__)

BYTES_A_LINE = 4096
"""A longer event counts as several lines that wait to be written."""

PagesLike = Iterable[Page | tuple[int, int]]
"""Pages in order, in any container; a pair `(first, count)` stands for `first, first + 1, ...`."""


class TraceWriter:
    """Records an engine's events: one method for each kind, named as in `kvspec.memory.events`.

    Each recording is a file beside `path`: `trace.001.jsonl`, `trace.002.jsonl`, ... for `trace.jsonl`; `.gz` and
    `.zst` are compressed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        part_bytes: int = 256 << 20,
        max_bytes: int = 8 << 30,
        keep: int = 2,
        max_waiting: int = 200_000,
    ) -> None:
        """A recording continues in another file after `part_bytes`, and ends at `max_bytes`, both as stored.

        It also ends when more than `max_waiting` lines wait to be written. The last `keep` recordings are kept.
        """
        self._sink = Sink(Path(path), part_bytes=part_bytes, max_bytes=max_bytes, keep=keep, max_waiting=max_waiting)
        self._encode = msgspec.json.Encoder(enc_hook=_plain).encode_lines
        self._recording = False
        self._problem: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files so far, in order."""
        return self._sink.files

    @property
    def problem(self) -> str | None:
        """Why the last recording ended early; `None` while one goes on, and before the first."""
        return self._problem or self._sink.problem

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """Begin a new recording: from now on there is a memory with these pools, all of it free, on one host."""
        try:
            header = msgspec.convert(
                msgspec.to_builtins(MemoryHeader(VERSION, "memory", producer, dict(pools), host), enc_hook=_plain),
                MemoryHeader,
            )
        except Exception as error:
            self._recording = True
            self._end(f"a header could not be made: {type(error).__name__}: {error}")
            return
        self._problem = None
        self._recording = True
        self._sink.begin(header)

    def emit(self, *events: MemoryEvent) -> None:
        """Record events. Before the first header, and after a problem, nothing is recorded."""
        if not self._recording or not events:
            return
        if self._sink.problem is not None:
            self._end(self._sink.problem)
            return
        try:
            lines = self._encode(events)[:-1]
            self._sink.put(lines, len(events) + len(lines) // BYTES_A_LINE)
        except Exception as error:
            self._end(f"an event could not be recorded: {type(error).__name__}: {error}")

    def stop(self, reason: str | None = None) -> None:
        """Write the waiting lines and end the recording; `reason` says why it ends early."""
        if self._recording:
            self._end(reason)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all events recorded so far are in the file, but for those that may be left out."""
        return self._sink.drain(timeout)

    def close(self) -> None:
        """Write the waiting lines, end the recording, and stop the thread."""
        self.stop()
        self._sink.close()

    # The events

    def take(self, holder: str, pool: str, pages: PagesLike, *, at: str | None = None) -> None:
        """The allocator hands free pages out."""
        self._emit(events.Take, holder, pool, pages, at=at)

    def share(
        self,
        holder: str,
        pool: str,
        pages: PagesLike,
        keys: Iterable[str] | None = None,
        *,
        pin: bool = False,
        at: str | None = None,
    ) -> None:
        """One more reference to pages that are in use or published."""
        self._emit(events.Share, holder, pool, pages, keys, pin, at=at)

    def release(self, holder: str, pool: str, pages: PagesLike, *, at: str | None = None) -> None:
        """One reference less to each page."""
        self._emit(events.Release, holder, pool, pages, at=at)

    def transfer(
        self, old: str, new: str, pool: str | None = None, pages: PagesLike | None = None, *, at: str | None = None
    ) -> None:
        """References pass from `old` to `new`: those to `pages`, or all that `old` has, with its tables."""
        self._emit(events.Transfer, old, new, pool, pages, at=at)

    def publish(
        self,
        pool: str,
        pages: PagesLike,
        keys: Iterable[str],
        labels: Iterable[Label] | None = None,
        slots: int = 0,
        *,
        planned: bool = False,
        writer: str | None = None,
        at: str | None = None,
    ) -> None:
        """Pages can be found by a name from now on."""
        self._emit(events.Publish, pool, pages, keys, labels, slots, planned, writer, at=at)

    def drop(self, pool: str, pages: PagesLike, keys: Iterable[str] | None = None, *, at: str | None = None) -> None:
        """Names are withdrawn; without `keys` all names of these pages."""
        self._emit(events.Drop, pool, pages, keys, at=at)

    def map(
        self,
        table: str,
        holder: str,
        pool: str,
        index: int,
        pages: PagesLike,
        labels: Iterable[Label] | None = None,
        *,
        at: str | None = None,
    ) -> None:
        """A holder's block table names these pages from page index `index` on."""
        self._emit(events.Map, table, holder, pool, index, pages, labels, at=at)

    def unmap(self, table: str, index: int = 0, stop: int = 0, *, at: str | None = None) -> None:
        """A table ends before page index `index`. With `stop` only the pages from `index` to before `stop` are gone."""
        self._emit(events.Unmap, table, index, stop, at=at)

    def reserve(self, holder: str, pool: str, pages: int, *, at: str | None = None) -> None:
        """A holder is promised so many further pages; 0 ends the promise."""
        self._emit(events.Reserve, holder, pool, pages, at=at)

    def begin(
        self,
        id: OpId,
        stream: str | None = None,
        reads: Iterable[Use] = (),
        writes: Iterable[Use] = (),
        copies: Iterable[tuple[Use, Use]] = (),
        after: Iterable[OpId] = (),
        *,
        reads_own_writes: bool = True,
        at: str | None = None,
    ) -> None:
        """An operation is queued."""
        self._emit(events.Begin, id, stream, reads, writes, copies, after, reads_own_writes, at=at)

    def wait(
        self,
        stream: str,
        id: OpId | None = None,
        on: str | None = None,
        part: Literal["all", "reads"] = "all",
        *,
        at: str | None = None,
    ) -> None:
        """Later operations of `stream` come after operation `id`, or after all that stream `on` has queued so far."""
        self._emit(events.Wait, stream, id, on, part, at=at)

    def send(self, id: str, after: Iterable[OpId] = (), *, at: str | None = None) -> None:
        """The host sends a message, at once or when these operations are complete."""
        self._emit(events.Send, id, after, at=at)

    def receive(self, id: str, *, at: str | None = None) -> None:
        """The host receives a message."""
        self._emit(events.Receive, id, at=at)

    def end(
        self,
        id: OpId,
        part: Literal["all", "reads"] = "all",
        unwritten: Iterable[Use] = (),
        *,
        at: str | None = None,
    ) -> None:
        """The host has seen an operation complete."""
        self._emit(events.End, id, part, unwritten, at=at)

    def decide(self, group: str, what: str, *, at: str | None = None) -> None:
        """The host decides something that all hosts of a group decide, and in the same order."""
        self._emit(events.Decide, group, what, at=at)

    def announce(
        self,
        tier: str | None = None,
        stored: Iterable[str] = (),
        parent: str | None = None,
        labels: Iterable[Label] | None = None,
        removed: Iterable[str] = (),
        cleared: bool = False,
        pool: str | None = None,
        batch: int | None = None,
        *,
        at: str | None = None,
    ) -> None:
        """The host announces to routers which blocks a tier holds; with `pool` they then know all names of it."""
        self._emit(events.Announce, tier, stored, parent, labels, removed, cleared, pool, batch, at=at)

    def deliver(self, id: OpId, holder: str, *, at: str | None = None) -> None:
        """The result of an operation for a holder leaves the engine."""
        self._emit(events.Deliver, id, holder, at=at)

    def unify(self, label: Label, same: Label, slots: int = 0, *, at: str | None = None) -> None:
        """Two labels are the same, in their first `slots` slots, or wholly (0)."""
        self._emit(events.Unify, label, same, slots, at=at)

    def end_holder(self, holder: str, *, at: str | None = None) -> None:
        """A holder is gone."""
        self._emit(events.EndHolder, holder, at=at)

    def idle(self, keepers: Iterable[str] = (), pools: Iterable[str] | None = None, *, at: str | None = None) -> None:
        """The engine is idle: only `keepers` may hold pages, of any pool or of those in `pools`."""
        self._emit(events.Idle, keepers, pools, at=at)

    def count(
        self,
        pool: str,
        free: int | PagesLike | None = None,
        cached: int | PagesLike | None = None,
        held: int | PagesLike | None = None,
        references: Mapping[int, int] | None = None,
        *,
        at: str | None = None,
    ) -> None:
        """The engine's own counts of pages, or its lists of them."""
        self._emit(events.Count, pool, free, cached, held, references, at=at)

    def failed(self, kind: Literal["assertion", "exhausted", "stuck"], what: str, *, at: str | None = None) -> None:
        """The engine gave up."""
        self._emit(events.Failed, kind, what, at=at)

    def _emit(self, kind: Any, *fields: Any, at: str | None) -> None:
        """Make the event and record it, without its empty fields."""
        if self._recording:
            self.emit(kind(*[[] if type(field) is tuple and not field else field for field in fields], at=at))

    def _end(self, reason: str | None) -> None:
        self._recording = False
        self._problem = reason
        self._sink.end()
        if reason is not None:
            _log.warning("the recording ends: %s", reason)


def _plain(value: Any) -> Any:
    """Values that JSON cannot hold: numbers and arrays of numpy and torch, and any container."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, range) and value.step == 1:
        return [(value.start, len(value))]
    return list(value)
