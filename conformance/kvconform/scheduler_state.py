"""The scheduler's state: requests, sessions and launches, and the operations that are valid now.

An engine's memory classes do not validate operations: its scheduler never issues an invalid one. An adapter uses this
module as the scheduler, so that the engine is never driven outside its contract. Every check runs before the engine is
called, and needs only the engine's free room.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvspec.batch import Chunking, broken_rule
from kvspec.events import Config, Refusal
from kvspec.tokens import Element, Tokens


class Room(NamedTuple):
    """Pages, rows, window pages and state slots that are needed, or free."""

    pages: int
    rows: int
    window: int = 0
    states: int = 0


@dataclass(eq=False)
class Entry:
    """One request. Lengths in tokens."""

    name: str
    tokens: Tokens
    session: str | None
    req: Any
    """SGLang's own request."""
    prefix_len: int | None = None
    """Tokens that the last match found; `None` before it, and once the request is extended."""
    resumed: bool = False
    """Whether it continues from a session's memory."""
    ran: bool = False
    run: "Run | None" = None

    def prefill(self, row: int, seq_len: int) -> "Run":
        """Prepare a chunk of the request, up to `seq_len`, in a row. The first chunk starts its run."""
        run = self.run
        if run is None:
            run = self.run = Run(row)
            self.prefix_len = None
            self.ran = True
        run.row = row
        run.seq_len = run.committed = run.prepared_end = seq_len
        run.promised = len(self.tokens)
        run.drafts = 0
        run.mid_prefill = seq_len < len(self.tokens)
        run.stashed = not run.mid_prefill
        return run


@dataclass(eq=False)
class Run:
    """A request from its first extend until it finishes, is retracted or aborted. Lengths in tokens."""

    row: int
    seq_len: int = 0
    """Where the last extend ended."""
    committed: int = 0
    promised: int = 0
    """Tokens that are known, or that a launch in flight will sample."""
    prepared_end: int = 0
    """The end of the positions that are prepared but not launched; 0 if there are none."""
    drafts: int = 0
    """Positions of its unverified speculative step; 0 if there is none."""
    verifiable: bool = False
    """Whether the launch of that step has completed."""
    mid_prefill: bool = False
    stopped: bool = False
    """Whether it stopped within its last speculative step: it keeps fewer tokens than that step accepted."""
    stashed: bool = True
    """Whether the last chunk was handed to the cache, as SGLang's scheduler does before the next chunk."""
    published: bool = False
    """Whether the prompt was handed to the cache, as SGLang's scheduler does before the first decode step."""


@dataclass(eq=False)
class Flight:
    """A launch in flight."""

    number: int
    sampled: dict[str, Run] = field(default_factory=dict)
    drafted: dict[str, Run] = field(default_factory=dict)
    chunks: dict[str, Run] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)
    """The rows that it reads, each with the number of positions."""


@dataclass(eq=False)
class Chat:
    """One open session."""

    history: Tokens
    turn: str | None = None
    closing: bool = False


class SchedulerState:
    """All requests, sessions and launches. Methods named `check_...` refuse and change nothing."""

    def __init__(self, config: Config) -> None:
        """Start without requests."""
        self.config = config
        self.entries: dict[str, Entry] = {}
        self.chats: dict[str, Chat] = {}
        self.flights: deque[Flight] = deque()
        self._page_keys: dict[str, int] = {}

    def ids(self, tokens: Tokens, made_up: int) -> list[int]:
        """Token ids for a sequence. The ids for a page key are made up, from `made_up` on; equal keys get equal ids."""
        size = self.config.page_size
        ids: list[int] = []
        for page in tokens.pages:
            if isinstance(page, str):
                number = self._page_keys.setdefault(page, len(self._page_keys))
                ids.extend(range(made_up + number * size, made_up + (number + 1) * size))
            else:
                ids.extend(page)
        return [*ids, *tokens.rest]

    def entry(self, req: str) -> Entry:
        """The request, or a refusal."""
        found = self.entries.get(req)
        if found is None:
            raise Refusal("OP-1", f"there is no request {req}")
        return found

    def running(self, req: str) -> tuple[Entry, Run]:
        """A running request, or a refusal."""
        entry = self.entry(req)
        if entry.run is None:
            raise Refusal("OP-1", f"request {req} is not running")
        return entry, entry.run

    def chat(self, session: str) -> Chat:
        """The session, or a refusal."""
        found = self.chats.get(session)
        if found is None:
            raise Refusal("OP-1", f"there is no session {session}")
        return found

    def check_submit(self, req: str, elements: list[Element], session: str | None) -> Tokens:
        """The tokens of a request that may be submitted. The engine decides whether a session takes a turn."""
        if req in self.entries:
            raise Refusal("OP-1", f"there is a request {req} already")
        try:
            tokens = Tokens(self.config.page_size, elements)
        except ValueError as error:
            raise Refusal("OP-1", str(error)) from None
        if not len(tokens):
            raise Refusal("OP-1", f"request {req} has no tokens")
        if len(tokens) > self.config.max_context_len:
            raise Refusal("LEN-1", f"{len(tokens)} tokens exceed the context of {self.config.max_context_len}")
        if session is not None:
            chat = self.chat(session)
            if chat.closing:
                raise Refusal("OP-1", f"session {session} is closing")
            if chat.turn is None and not tokens.extends(chat.history):
                raise Refusal("SESS-6", f"the tokens do not begin with the history of session {session}")
        return tokens

    def check_prefill(self, req: str, seq_len: int) -> tuple[Entry, int]:
        """One request of a prefill batch and where it begins to write."""
        entry = self.entry(req)
        run = entry.run
        if run is not None:
            if not run.mid_prefill:
                raise Refusal("OP-1", f"the prefill of {req} is complete")
            if run.prepared_end:
                raise Refusal("LAUNCH-1", f"the last chunk of {req} is not launched yet")
            start = run.seq_len
        elif entry.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        else:
            start = entry.prefix_len
        if not start < seq_len <= len(entry.tokens):
            raise Refusal("OP-1", f"seq_len {seq_len} of {req} is not in {start + 1}..{len(entry.tokens)}")
        if seq_len > self.config.max_context_len:
            raise Refusal("LEN-1", f"{req} would grow to {seq_len}, past {self.config.max_context_len}")
        return entry, start

    def check_chunking(self, batch: list[tuple[str, int]]) -> None:
        """Refuse an empty batch, a request named twice, and too many chunked requests."""
        names = {req for req, _ in batch}
        if not names or len(names) < len(batch):
            raise Refusal("OP-1", "the batch is empty, or has a request twice")
        left = {entry.name for entry in self.entries.values() if entry.run is not None and entry.run.mid_prefill}
        unfinished = [self.entries[req] for req, seq_len in batch if seq_len < len(self.entries[req].tokens)]
        chunking = Chunking(
            continuing=len(names & left),
            newly_chunked=sum(entry.run is None for entry in unfinished),
            left=len(left - names) + len(unfinished),
        )
        rule = broken_rule(chunking)
        if rule is not None:
            raise Refusal(rule, f"in the middle of their prefill: {chunking}")

    def check_row_is_quiet(self, row: int, position: int) -> None:
        """Refuse to overwrite positions of a row that a launch in flight still reads."""
        withholds = self.config.withholds_rows
        if withholds and any(read == row and end > position for flight in self.flights for read, end in flight.reads):
            raise Refusal("RACE-1", f"a launch in flight reads row {row} past {position}")

    def check_decode(self, req: str, n: int, allocated: int) -> Run:
        """A request that may decode `n` positions; `allocated` counts its slots."""
        _, run = self.running(req)
        if run.prepared_end or run.mid_prefill:
            raise Refusal("OP-1", f"{req} has a prefill or a decode step that is not done")
        if run.drafts:
            raise Refusal("SPEC-1", f"the last speculative step of {req} is not verified yet")
        if run.committed >= run.promised:
            raise Refusal("OP-1", f"position {run.committed} of {req} has no token to decode")
        if max(allocated, run.committed + n) > self.config.max_context_len:
            raise Refusal("LEN-1", f"{req} would grow past {self.config.max_context_len}")
        return run

    def check_batch(self, reqs: list[str]) -> None:
        """Refuse an empty batch, and a request that is named twice."""
        if not reqs or len(set(reqs)) < len(reqs):
            raise Refusal("OP-1", "the batch is empty, or has a request twice")

    def check_room(self, needed: Room, free: Room) -> None:
        """Refuse an operation that needs more of any pool than is free."""
        short = Room(*(max(0, need - have) for need, have in zip(needed, free, strict=True)))
        if any(short):
            raise Refusal(
                "CAP-1",
                f"needed: {needed}, free: {free}",
                pages_short=short.pages,
                rows_short=short.rows,
                window_short=short.window,
                states_short=short.states,
            )

    def check_verify(self, req: str, accepted: int, kept: int) -> tuple[Entry, Run]:
        """A request whose speculative step may be verified with these counts."""
        entry, run = self.running(req)
        if not run.verifiable:
            raise Refusal("SPEC-1", f"{req} has no completed speculative launch to verify")
        if not 1 <= accepted <= run.drafts:
            raise Refusal("SPEC-1", f"{accepted} accepted positions are not in 1..{run.drafts}")
        if not 1 <= kept <= accepted:
            raise Refusal("SPEC-1", f"{kept} tokens for {accepted} accepted positions")
        return entry, run

    def check_unfinished(self, req: str, chunked: bool) -> tuple[Entry, Run]:
        """A request whose last prefill may be handed to the cache."""
        entry, run = self.running(req)
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        if chunked != run.mid_prefill:
            raise Refusal("CHUNK-1", f"chunked is {chunked}, but {req} has {run.seq_len} of {len(entry.tokens)}")
        if not chunked and len(entry.tokens) == run.seq_len:
            raise Refusal("CHUNK-1", f"the token that follows the prompt of {req} is not sampled yet")
        return entry, run

    def check_finish(self, req: str) -> tuple[Entry, Run]:
        """A request that may finish."""
        entry, run = self.running(req)
        if run.mid_prefill:
            raise Refusal("OP-1", f"{req} is in the middle of its prefill")
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        return entry, run

    def launch(self, number: int, reqs: list[str]) -> None:
        """Note a launch, or refuse it."""
        if any(number == flight.number for flight in self.flights):
            raise Refusal("OP-1", f"launch {number} is in flight")
        self.check_batch(reqs)
        batch = [self.running(req) for req in reqs]
        for entry, run in batch:
            if not run.prepared_end:
                raise Refusal("OP-1", f"{entry.name} has nothing to launch")
        flight = Flight(number)
        for entry, run in batch:
            flight.reads.append((run.row, run.prepared_end))
            run.prepared_end = 0
            if run.mid_prefill:
                flight.chunks[entry.name] = run
                continue
            run.promised += 1
            if run.drafts:
                flight.drafted[entry.name] = run
            else:
                flight.sampled[entry.name] = run
        self.flights.append(flight)

    def complete(self, number: int, tokens: dict[str, int]) -> Flight:
        """Note that a launch has completed, or refuse it."""
        if not self.flights or self.flights[0].number != number:
            in_flight = any(number == flight.number for flight in self.flights)
            raise Refusal("LAUNCH-1" if in_flight else "OP-1", f"launch {number} is not the oldest in flight")
        flight = self.flights[0]
        if tokens.keys() != flight.sampled.keys():
            wrong = ", ".join(sorted(tokens.keys() ^ flight.sampled.keys()))
            raise Refusal("CHUNK-1", f"a token too few or too many for: {wrong}")
        self.flights.popleft()
        for run in flight.drafted.values():
            run.verifiable = True
        return flight

    def end_run(self, entry: Entry) -> None:
        """A request runs no longer; tokens that launches in flight sample for it are dropped."""
        entry.run = None
        for flight in self.flights:
            for due in (flight.sampled, flight.drafted, flight.chunks):
                due.pop(entry.name, None)

    def leave(self, entry: Entry, *, finished: bool) -> None:
        """A request is gone. With `finished` its tokens become its session's history."""
        del self.entries[entry.name]
        if entry.session is not None:
            chat = self.chats[entry.session]
            chat.turn = None
            if finished:
                chat.history = entry.tokens
