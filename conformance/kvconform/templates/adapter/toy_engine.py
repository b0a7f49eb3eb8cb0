"""A toy engine's KV-cache manager with one injected bug, and the adapter by which kvspec checks it.

    kvspec run --impl toy_engine:Adapter
    kvspec fuzz --impl toy_engine:Adapter --seconds 10

`FixedAdapter` is the engine without the bug. `README.md` beside this file says how to replace it by your engine.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from kvconform.scheduler_state import Entry, Room, Run, SchedulerState
from kvspec.events import (
    CompleteAnswer,
    Config,
    DecodeAnswer,
    Done,
    EvictAnswer,
    ExtendAnswer,
    Figures,
    HolderView,
    MatchAnswer,
    PublishAnswer,
    Refusal,
    ReleaseAnswer,
    SnapshotAnswer,
)
from kvspec.pages import Runs, ceil_pages, slots_of
from kvspec.store import ROOT
from kvspec.tokens import Element, PrefixKey, Tokens

# The engine. It knows nothing of kvspec but its token sequences, which name prefixes of whole pages.


@dataclass
class Sequence:
    """The memory that one running request holds."""

    row: int
    tokens: Tokens
    table: list[int] = field(default_factory=list)
    """Its pages, in order of position."""
    shared: int = 0
    """How many of them are the prefix cache's."""
    length: int = 0
    """Positions that have a slot."""


class Engine:
    """Pages, block tables, and a prefix cache that counts the users of each page."""

    def __init__(self, page_size: int, num_pages: int, num_rows: int) -> None:
        """Everything is free."""
        self.page_size = page_size
        self.free_pages = list(range(1, num_pages + 1))
        self.free_rows = list(range(num_rows))
        self.cached: dict[PrefixKey, int] = {}
        """The name of a prefix -> the page that holds its last tokens."""
        self.parents: dict[PrefixKey, PrefixKey] = {}
        self.users: Counter[PrefixKey] = Counter()

    def match(self, tokens: Tokens) -> int:
        """How many pages of a prompt are cached. The last token is always computed."""
        whole = (len(tokens) - 1) // self.page_size
        return next((index for index in range(whole) if tokens.key(index) not in self.cached), whole)

    def begin(self, tokens: Tokens, pages: int) -> Sequence:
        """Start a request on a row, with the first cached pages of its prompt."""
        sequence = Sequence(self.free_rows.pop(0), tokens)
        self._share(sequence, pages)
        sequence.table = [self.cached[tokens.key(index)] for index in range(pages)]
        sequence.length = pages * self.page_size
        return sequence

    def grow(self, sequence: Sequence, length: int) -> list[int]:
        """Give a sequence room for `length` positions; the new pages."""
        count = ceil_pages(length, self.page_size) - len(sequence.table)
        new, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        sequence.table += new
        sequence.length = length
        return new

    def publish(self, sequence: Sequence, pages: int) -> list[int]:
        """Put the first pages of a sequence into the cache; the duplicates that are freed."""
        freed = []
        for index in range(sequence.shared, pages):
            key, page = sequence.tokens.key(index), sequence.table[index]
            if key in self.cached:
                freed.append(page)  # BUG: the block table still names it
            else:
                self.cached[key] = page
                self.parents[key] = sequence.tokens.key(index - 1) if index else ROOT
        self._share(sequence, pages)
        self.free_pages += freed
        return freed

    def _share(self, sequence: Sequence, pages: int) -> None:
        self.users.update(sequence.tokens.key(index) for index in range(sequence.shared, pages))
        sequence.shared = max(sequence.shared, pages)

    def release(self, sequence: Sequence) -> list[int]:
        """Take everything back from a sequence; the pages that are freed."""
        for index in range(sequence.shared):
            self.users[sequence.tokens.key(index)] -= 1
        freed = sequence.table[sequence.shared :]
        self.free_pages += freed
        self.free_rows.append(sequence.row)
        return freed

    def evict(self, count: int) -> list[int]:
        """Free pages of the cache that no request uses and that no longer prefix contains."""
        evicted: list[int] = []
        while len(evicted) < count:
            inner = set(self.parents.values())
            leaf = next((key for key in self.cached if not self.users[key] and key not in inner), None)
            if leaf is None:
                break
            evicted.append(self.cached.pop(leaf))
            del self.parents[leaf]
        self.free_pages += evicted
        return evicted


class FixedEngine(Engine):
    """The same without the bug."""

    def publish(self, sequence: Sequence, pages: int) -> list[int]:
        """Put the first pages of a sequence into the cache; the duplicates that are freed."""
        freed = super().publish(sequence, pages)
        for index in range(sequence.shared):
            sequence.table[index] = self.cached[sequence.tokens.key(index)]
        return freed


# The adapter. `SchedulerState` plays the scheduler: it tracks the requests and refuses operations that no scheduler
# asks for.


class Adapter:
    """The toy engine behind kvspec's protocol."""

    engine_class: ClassVar[type[Engine]] = Engine
    lacks = frozenset(
        {"sessions", "preempt", "speculative", "release_in_flight", "deep_overlap"}
        | {"release_before_launch", "retract_after_stop", "early_finish"}
    )

    def __init__(self, config: Config) -> None:
        """Make the engine of these sizes."""
        self.config = config
        self.scheduling = SchedulerState(config)
        self.engine = self.engine_class(config.page_size, config.num_pages, config.num_rows)
        self.sequences: dict[str, Sequence] = {}

    def submit(self, req: str, tokens: list[Element], session: str | None) -> Done:
        """Take a request in."""
        self.scheduling.entries[req] = Entry(req, self.scheduling.check_submit(req, tokens, session), None, None)
        return Done()

    def match_prefix(self, req: str) -> MatchAnswer:
        """Look a waiting request's prompt up."""
        entry = self.scheduling.entry(req)
        if entry.run is not None:
            raise Refusal("OP-1", f"request {req} is running")
        entry.prefix_len = self.engine.match(entry.tokens) * self.config.page_size
        return MatchAnswer(entry.prefix_len, entry.prefix_len, [])

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Prefill a batch, or refuse it whole."""
        page_size = self.config.page_size
        batch = [(*self.scheduling.check_prefill(req, seq_len), seq_len) for req, seq_len in reqs]
        self.scheduling.check_chunking(reqs)
        for entry, start, _ in batch:
            if entry.run is None and self.engine.match(entry.tokens) * page_size < start:
                raise Refusal("STORE-5", f"what {entry.name} matched has been evicted")
        needed = sum(ceil_pages(end, page_size) - ceil_pages(start, page_size) for _, start, end in batch)
        self._check_room(needed, sum(entry.run is None for entry, _, _ in batch))
        pages: dict[str, Runs] = {}
        for entry, start, end in batch:
            if entry.run is None:
                sequence = self.sequences[entry.name] = self.engine.begin(entry.tokens, start // page_size)
                entry.run, entry.prefix_len = Run(sequence.row), None
            run = entry.run
            run.seq_len = run.committed = run.prepared_end = end
            run.promised, run.mid_prefill = len(entry.tokens), end < len(entry.tokens)
            pages[entry.name] = self.engine.grow(self.sequences[entry.name], end)
        return ExtendAnswer({req: self.sequences[req].row for req, _ in reqs}, pages)

    def decode(self, reqs: list[str], n: int) -> DecodeAnswer:
        """Room for one more position of each request."""
        if n != 1:
            raise Refusal("OP-1", f"n is {n}")
        self.scheduling.check_batch(reqs)
        runs = {req: self.scheduling.check_decode(req, n, self.scheduling.running(req)[1].committed) for req in reqs}
        new = sum(run.committed % self.config.page_size == 0 for run in runs.values())
        self._check_room(new, 0)
        pages: dict[str, Runs] = {}
        for req, run in runs.items():
            run.committed += 1
            run.prepared_end = run.committed
            new_pages = self.engine.grow(self.sequences[req], run.committed)
            if new_pages:
                pages[req] = new_pages
        return DecodeAnswer(pages)

    def _check_room(self, pages: int, rows: int) -> None:
        free = Room(len(self.engine.free_pages), len(self.engine.free_rows))
        self.scheduling.check_room(Room(pages, rows), free)

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """No device: only noted."""
        self.scheduling.launch(launch, reqs)
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        """Hand sampled tokens out."""
        for req in self.scheduling.complete(launch, tokens).sampled:
            self.scheduling.entries[req].tokens.append(tokens[req])
        return CompleteAnswer()

    def cache_unfinished(self, req: str, chunked: bool) -> PublishAnswer:
        """Publish the pages that a prefill wrote."""
        _, run = self.scheduling.check_unfinished(req, chunked)
        sequence = self.sequences[req]
        freed = self._publish(sequence, run.seq_len)
        return PublishAnswer(sequence.shared * self.config.page_size, freed)

    def _publish(self, sequence: Sequence, length: int) -> list[int]:
        return self.engine.publish(sequence, length // self.config.page_size) if self.config.prefix_cache else []

    def finish(self, req: str) -> ReleaseAnswer:
        """Publish, release, forget."""
        entry, run = self.scheduling.check_finish(req)
        freed = self._publish(self.sequences[req], min(run.committed, len(entry.tokens)))
        freed += self._release(entry)
        self.scheduling.leave(entry, finished=True)
        return ReleaseAnswer(freed)

    def retract(self, req: str) -> ReleaseAnswer:
        """Release; the request waits again."""
        return ReleaseAnswer(self._release(self.scheduling.running(req)[0]))

    def abort(self, req: str) -> ReleaseAnswer:
        """Release all memory of a request, and forget the request."""
        entry = self.scheduling.entry(req)
        freed = [] if entry.run is None else self._release(entry)
        self.scheduling.leave(entry, finished=False)
        return ReleaseAnswer(freed)

    def _release(self, entry: Entry) -> list[int]:
        self.scheduling.end_run(entry)
        return self.engine.release(self.sequences.pop(entry.name))

    def evict(self, n: int) -> EvictAnswer:
        """Evict from the prefix cache."""
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        return EvictAnswer(self.engine.evict(n))

    def report(self, mode: Literal["idle", "busy"]) -> Figures:
        """The engine's own figures."""
        if mode == "idle" and self.sequences:
            raise Refusal("OP-1", "requests hold memory")
        page_size, used = self.config.page_size, sum(self.engine.users[key] > 0 for key in self.engine.cached)
        return Figures(
            available=len(self.engine.free_pages) * page_size,
            evictable=(len(self.engine.cached) - used) * page_size,
            protected=used * page_size,
            uncached=sum(len(held.table) - held.shared for held in self.sequences.values()) * page_size,
            rows_available=len(self.engine.free_rows),
            rows_requests=len(self.sequences),
        )

    def snapshot(self) -> SnapshotAnswer:
        """Show block tables, free pages, and cached pages."""
        page_size = self.config.page_size
        return SnapshotAnswer(
            rows={held.row: slots_of(held.table, held.length, page_size) for held in self.sequences.values()},
            free_pages=sorted(self.engine.free_pages),
            store_pages=sorted(self.engine.cached.values()),
            requests={
                req: HolderView(
                    held.row, held.shared * page_size, self.scheduling.running(req)[1].committed, held.length
                )
                for req, held in self.sequences.items()
            },
        )

    # Operations that the toy lacks. `lacks` declares it, and they are never called.

    def open_session(self, session: str) -> Done:
        """No sessions."""
        raise Refusal(None, "no sessions")

    def close_session(self, session: str) -> ReleaseAnswer:
        """No sessions."""
        raise Refusal(None, "no sessions")

    def preempt(self, session: str) -> ReleaseAnswer:
        """No sessions."""
        raise Refusal(None, "no sessions")

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """No speculative decoding."""
        raise Refusal(None, "no speculative decoding")


class FixedAdapter(Adapter):
    """The toy engine without its bug."""

    engine_class = FixedEngine
