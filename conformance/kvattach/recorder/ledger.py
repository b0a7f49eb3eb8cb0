"""Writes the engine's actions as operations.

A cache does not see all that a trace needs. Two parts are filled in:

- *Requests* are noticed when they first match, *sessions* when their first turn does. A waiting request that is dropped
  is noticed when another one takes its place, or when the engine forgets it.
- *Launches* are not seen. A prepared step is written as launched and as complete just before the engine builds on it.
  Lines are held back until the sampled token is seen in the request's output: a scheduler that overlaps prepares the
  next step before it has that token. So a trace does not show which launches overlapped, and RACE-1 and LAUNCH-1 check
  little in it.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvattach.recorder.slots import Read
from kvattach.recorder.steps import Entry, Step
from kvattach.recorder.tokens import Encode
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    CompleteAnswer,
    Decode,
    DecodeAnswer,
    Done,
    Evict,
    EvictAnswer,
    Extend,
    ExtendAnswer,
    Figures,
    Finish,
    Launch,
    MatchAnswer,
    MatchPrefix,
    OpenSession,
    Operation,
    PublishAnswer,
    ReleaseAnswer,
    Report,
    Retract,
    Submit,
)
from kvspec.pages import Runs, ceil_align
from kvtrace.header import encode
from kvtrace.operations import compressed
from kvtrace.sink import Sink

TOKENS_A_LINE = 64
"""So many tokens of a prompt count as one more line in the buffer."""


HELD_BACK = 20_000
"""The most lines that are held back."""


class Prefill(NamedTuple):
    """One request of a prefill batch. Lengths in tokens."""

    req: Any
    prefix_len: int
    seq_len: int
    row: int


class Ledger:
    """Turns the observed actions into the lines of one recording."""

    def __init__(self, sink: Sink, page_size: int, encode: Encode) -> None:
        """Begin without requests."""
        self._sink = sink
        self._page_size = page_size
        self._encode = encode
        self._entries: dict[str, Entry] = {}
        self._sessions: dict[str, str | None] = {}
        """Open session -> its turn in flight."""
        self._held: deque[list[Step] | Callable[[], object]] = deque()
        """Lines that wait for earlier steps; each is made when it is written."""
        self._flights: deque[tuple[int, list[tuple[Step, int | None]]]] = deque()
        """Written launches that are not complete: their numbers, and their steps with the sampled tokens."""
        self._forgotten: deque[Entry] = deque()
        self._numbers = 0

    # The engine's actions

    def match(self, req: Any, prefix_len: int, protected_len: int | None, freed: Sequence[Read] | None) -> None:
        """A waiting request has matched."""
        entry = self._noticed(req)
        if entry.running:
            return
        entry.matched = True
        name, pages = entry.name, self._freed(freed)
        self._put(lambda: MatchPrefix(name, obs=MatchAnswer(prefix_len, protected_len, pages())))

    def extend(self, batch: Sequence[Prefill], slots: Read) -> None:
        """A prefill batch has its rows, and `slots` for its new positions, in the order of its requests."""
        entries = [self._noticed(one.req) for one in batch]
        for entry, one in zip(entries, batch, strict=True):
            if not entry.running and not entry.matched:
                self.match(one.req, one.prefix_len, None, None)
        self._settle(entries)
        names = [entry.name for entry in entries]
        spans = [(one.prefix_len, one.seq_len) for one in batch]
        rows = {name: one.row for name, one in zip(names, batch, strict=True)}
        for entry, one in zip(entries, batch, strict=True):
            if not entry.running:
                entry.running, entry.matched = True, False
                entry.run += 1
            entry.seq_len = one.seq_len
            self._prepare(entry, samples=one.seq_len >= entry.input_len + entry.outputs)
        self._put(
            lambda: Extend(
                [(name, end) for name, (_, end) in zip(names, spans, strict=True)],
                obs=ExtendAnswer(rows, self._new_pages(names, spans, slots())),
            )
        )

    def decode(self, reqs: Sequence[Any], starts: Sequence[int], slots: Read | None) -> None:
        """Each of `reqs` has a slot for the next position that it writes; `None` if no page is new."""
        entries = [self._noticed(req) for req in reqs]
        self._settle(entries)
        names = [entry.name for entry in entries]
        spans = [(start, start + 1) for start in starts]
        for entry in entries:
            self._prepare(entry, samples=True)
        self._put(
            lambda: Decode(names, obs=DecodeAnswer({} if slots is None else self._new_pages(names, spans, slots())))
        )

    def cache_unfinished(self, req: Any, chunked: bool, protected_len: int, freed: Sequence[Read]) -> None:
        """A prefill was handed to the cache."""
        entry = self._noticed(req)
        self._settle([entry])
        name, pages = entry.name, self._freed(freed)
        self._put(lambda: CacheUnfinished(name, chunked, obs=PublishAnswer(protected_len, pages())))

    def finish(self, req: Any, freed: Sequence[Read]) -> None:
        """A running request was released because it is complete."""
        self._end_run(req, Finish, freed, leaves=True)

    def abort(self, req: Any, freed: Sequence[Read]) -> None:
        """A running request was released because it is aborted."""
        self._end_run(req, Abort, freed, leaves=True)

    def retract(self, req: Any, freed: Sequence[Read]) -> None:
        """A running request was released, and waits again."""
        self._end_run(req, Retract, freed, leaves=False)

    def _end_run(
        self, req: Any, operation: type[Finish | Abort | Retract], freed: Sequence[Read], *, leaves: bool
    ) -> None:
        entry, pages = self._noticed(req), self._freed(freed)
        name, run = entry.name, entry.run
        self._settle([entry])
        entry.running = entry.matched = False
        entry.outputs = entry.ends[run] = len(req.output_ids)
        if leaves:
            self._leave(entry)

        def write() -> None:
            self._write(lambda: operation(name, obs=ReleaseAnswer(pages())))
            entry.ended = run

        self._hold(write)

    def close_session(self, session: str, freed: Sequence[Read]) -> None:
        """A session was released."""
        pages = self._freed(freed)
        if session not in self._sessions and not freed:
            return
        turn = self._sessions.pop(session, None)
        entry = None if turn is None else self._entries.get(turn)
        if entry is not None and not entry.running:
            self._drop(entry)
        self._put(lambda: CloseSession(session, obs=ReleaseAnswer(pages())))

    def evict(self, wanted: int, evicted: Sequence[Read], *, admitting: bool) -> None:
        """The store had to evict so many pages, and freed these slots.

        While a batch is admitted, its matched pages are already locked; the specification locks them with the next
        prefill. So the number of evictable pages cannot be checked then.
        """
        if admitting and not evicted:
            return
        found = self._freed(evicted)

        def line() -> Evict:
            pages = found() or ()
            return Evict(min(wanted, len(pages)) if admitting else wanted, obs=EvictAnswer(pages))

        self._put(line)

    def report(self, available: int, rows_available: int) -> None:
        """The engine's own figures, while no operation is in progress. `available` in tokens."""
        self._put(lambda: Report("busy", obs=Figures(available=available, rows_available=rows_available)))

    def end(self) -> None:
        """End the recording: write the lines that are held back, without the unknown outcomes."""
        self._release(at_the_end=True)

    def is_running(self, req: Any) -> bool:
        """Whether a request has been extended and not been released since."""
        entry = self._entries.get(str(req.rid))
        return entry is not None and entry.req() is req and entry.running

    # Requests and sessions

    def _noticed(self, req: Any) -> Entry:
        """The entry of a request, which may be new."""
        while self._forgotten:
            self._drop(self._forgotten.popleft())
        name = str(req.rid)
        entry = self._entries.get(name)
        if entry is not None and entry.req() is req:
            return entry
        if entry is not None:
            self._drop(entry)
        return self._submit(name, req)

    def _submit(self, name: str, req: Any) -> Entry:
        session = getattr(req, "session", None)
        chat = str(session.session_id) if session is not None and session.streaming else None
        if chat is not None and chat not in self._sessions:
            self._sessions[chat] = None
            self._put(lambda: OpenSession(chat, obs=Done()))
        before = self._entries.get(self._sessions[chat] or "") if chat is not None else None
        if before is not None and not before.running:
            self._drop(before)
        tokens = req.origin_input_ids + req.output_ids
        apart = getattr(req, "extra_key", None)
        entry = Entry(name, weakref.ref(req), chat, apart, len(req.origin_input_ids), len(req.output_ids))
        # Called when the engine drops the request, in any thread: it is only noted there.
        entry.req = weakref.ref(req, lambda _: self._forgotten.append(entry))
        self._entries[name] = entry
        if chat is not None:
            self._sessions[chat] = name
        encode = self._encode
        self._put(lambda: Submit(name, [*encode(tokens, 0, apart)], chat, obs=Done()), len(tokens) // TOKENS_A_LINE)
        return entry

    def _drop(self, entry: Entry) -> None:
        """A waiting request has left unnoticed."""
        if self._entries.get(entry.name) is not entry or entry.running:
            return
        self._leave(entry)
        self._put(lambda: Abort(entry.name, obs=ReleaseAnswer(())))

    def _leave(self, entry: Entry) -> None:
        del self._entries[entry.name]
        if entry.session is not None and self._sessions.get(entry.session) == entry.name:
            self._sessions[entry.session] = None

    # Steps

    def _prepare(self, entry: Entry, *, samples: bool) -> None:
        entry.prepared = Step(entry, entry.run, entry.outputs if samples else None)
        entry.outputs += samples

    def _settle(self, entries: Sequence[Entry]) -> None:
        """The engine builds on the steps of these requests, so they were launched."""
        steps = [entry.prepared for entry in entries if entry.prepared is not None]
        if steps:
            self._held.append(steps)
            for step in steps:
                step.entry.prepared = None

    def _write(self, operation: Callable[[], Operation[Any]], weight: int = 1) -> None:
        """Write one operation, which the writer's thread encodes."""
        self._sink.put(lambda: encode(compressed(operation())), weight)

    def _put(self, line: Callable[[], Operation[Any]], weight: int = 0) -> None:
        """Write one line, once the steps before it can be written."""
        self._hold(lambda: self._write(line, 1 + weight))

    def _hold(self, write: Callable[[], object]) -> None:
        self._held.append(write)
        self._release()
        if len(self._held) > HELD_BACK:
            raise RuntimeError(f"the outcome of a step is not known after {HELD_BACK:,} lines")

    def _release(self, *, at_the_end: bool = False) -> None:
        """Write the lines that are held back, up to a step that may still get its outcome."""
        held = self._held
        while held:
            first = held[0]
            if isinstance(first, list):
                if not at_the_end and not all(step.settled for step in first):
                    return
                outcomes = [(step, step.token) for step in first]
                self._launch([(step, token) for step, token in outcomes if not step.is_lost(token)])
                self._launch([(step, token) for step, token in outcomes if step.is_lost(token)])
            else:
                first()
            held.popleft()
            self._complete()

    def _launch(self, outcomes: list[tuple[Step, int | None]]) -> None:
        if outcomes:
            self._numbers += 1
            number, names = self._numbers, [step.entry.name for step, _ in outcomes]
            self._write(lambda: Launch(number, names, obs=Done()))
            self._flights.append((number, outcomes))

    def _complete(self) -> None:
        """Write the known outcomes, oldest first. The steps of a request that has left complete without a token."""
        while self._flights:
            number, outcomes = self._flights[0]
            if any(step.is_lost(token) and step.entry.ended < step.run for step, token in outcomes):
                return
            self._flights.popleft()
            self._write_outcomes(number, [(step, token) for step, token in outcomes if token is not None])

    def _write_outcomes(self, number: int, sampled: list[tuple[Step, int | None]]) -> None:
        encode = self._encode
        tokens = [
            (step.entry.name, token, step.entry.input_len + (step.output or 0), step.entry.apart)
            for step, token in sampled
        ]
        self._write(
            lambda: Complete(
                number,
                {name: encode([token or 0], position, apart)[0] for name, token, position, apart in tokens},
                obs=CompleteAnswer(),
            )
        )

    # Pages

    def _new_pages(
        self, names: Sequence[str], spans: Sequence[tuple[int, int]], slots: Sequence[int]
    ) -> dict[str, Runs]:
        """The pages that begin in each request's span of positions."""
        page_size, pages, taken = self._page_size, dict[str, Runs](), 0
        for name, (start, end) in zip(names, spans, strict=True):
            first = ceil_align(start, page_size)
            new = [slots[taken + at - start] // page_size for at in range(first, end, page_size)]
            if new:
                pages[name] = new
            taken += end - start
        return pages

    def _freed(self, frees: Sequence[Read] | None) -> Callable[[], Runs | None]:
        """The pages that some calls freed. A page that two of them freed appears twice."""
        if frees is None:
            return lambda: None
        page_size = self._page_size
        return lambda: [page for read in frees for page in sorted({slot // page_size for slot in read()})]
