"""The state of the specification: plain dictionaries of small immutable `records`.

Rows and pages that are free appear nowhere, so every dictionary is as large as what is in use, never as the pool.
"""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import repeat

from kvspec import ownership
from kvspec.events import Config, Refusal
from kvspec.lengths import Lengths, private_pages
from kvspec.model.meaning import Memory
from kvspec.model.records import Passage, Prepared, Record, Request, Session, Speculation
from kvspec.pages import ceil_pages
from kvspec.store import ROOT, PrefixStore
from kvspec.tokens import PrefixKey, Tokens

CHOICES = (
    "more evicted than asked",
    "some of several evicted",
    "window kept longer",
    "window left when publishing",
    "chunk not published",
    "row not withheld",
    "row withheld longer",
    "first turn published early",
    "tokens sampled by the engine",
    "turn counted as its session's",
    "overshoot published",
    "refused by an estimate",
)
"""Choices that an implementation may make otherwise than the specification itself (`State.chosen`). After one, numbers
that were worked out beforehand need not be those of the implementation."""

WITHHELD = ownership.WITHHELD
"""Stands in `State.rows` for the record of a row that was let go while a launch still reads it."""


class State:
    """The whole state of the specified system."""

    def __init__(self, config: Config, memory: Memory | None = None) -> None:
        """An empty system; `memory` takes the memory events of its operations."""
        self.config = config
        self.memory = memory
        self.requests: dict[str, Request] = {}
        self.sessions: dict[str, Session] = {}

        self.records: dict[int, Record] = {}
        self.lengths: dict[int, Lengths] = {}
        self.tables: dict[int, list[int]] = {}
        self.next_record = 1
        self.runs = 0
        """Stays in memory so far, of all requests."""

        self.rows: dict[int, int] = {}
        """Row -> record that has it, or WITHHELD."""
        self.may_keep: set[int] = set()
        """Free rows that an engine may withhold on, because they were let go under launches some of which are in flight
        (RACE-1)."""
        self.owner: dict[int, int | PrefixKey] = {}
        """Page -> record whose private page it is, or the prefix whose last page it is in the store."""
        self.store = PrefixStore(ceil_pages(config.sliding_window, config.page_size))

        self.window_of: dict[int, int] = {}
        """Page -> the window page behind it. A page of the store that has none is a tombstone."""
        self.window_owner: dict[int, int] = {}
        """Window page -> the page that it is behind."""
        self.cursor: dict[int, int] = {}
        """Record -> `swa_evicted_seqlen`: its private pages before it have given their window side back."""
        self.state_owner: dict[int, int | str | PrefixKey] = {}
        """State slot -> the record or the waiting request that has it, or the prefix whose state the store keeps."""
        self.borders: dict[int, tuple[int, ...]] = {}
        """Record -> the page borders, in tokens, whose states its tracking slots keep: at most two, the last ones."""
        self.state_content: dict[int, tuple[int, int]] = {}
        """The ghost of states. Slot of a record -> the record, and after how many of its tokens the state there stands.

        A slot that no answer reported is not in it."""

        self.closed_late: set[str] = set()
        """Names of sessions that are gone, and whose close has waited for a turn: who has lost it refuses them."""

        self.prepared: dict[str, Prepared] = {}
        self.flights: dict[int, list[Passage]] = {}
        """Launches in flight, oldest first."""
        self.readers: dict[int, tuple[int, ...]] = {}
        """Row -> how many positions of it each launch in flight reads, oldest first."""
        self.speculating: dict[str, tuple[Speculation, ...]] = {}
        """Request -> its speculative steps that are launched and not verified, oldest first: one, or two (SPEC-2)."""
        self.verified: set[str] = set()
        """Running requests whose committed length a verify has moved."""
        self.mid_prefill: set[str] = set()

        self.written: dict[int, int] = {}
        """Record -> positions that launches have written."""
        self.horizon: dict[int, int] = {}
        """Record -> tokens that are known or will come out of a launch in flight."""

        self.virtual_page = 0
        """The last invented page: pages that no answer named are negative."""
        self.virtual_row = 0
        """The last invented row, negative too."""
        self.let_go: dict[str, int] = {}
        """Request that waits since a retract -> the row that it had: it must not bring that row again (ROW-4)."""
        self.batch_refused = False
        """Whether a prefill batch was refused since the free rows were reported last: those that it kept (ROW-3)."""
        self.checked = defaultdict[str, int](int)
        self.unchecked = defaultdict[str, int](int)
        self.unreported = set[tuple[str, str]]()
        """Rules that were not checked for want of a field of an answer, and that field."""
        self.reached = defaultdict[str, int](int)
        self.chosen = defaultdict[str, int](int)
        """How often an implementation made which of the CHOICES."""

    @property
    def free_pages(self) -> int:
        """The number of free pages."""
        return self.config.num_pages - len(self.owner)

    @property
    def free_window_pages(self) -> int:
        """The number of free window pages."""
        return self.config.num_window_pages - len(self.window_owner)

    @property
    def free_states(self) -> int:
        """The number of free state slots."""
        return self.config.num_states - len(self.state_owner)

    @property
    def free_rows(self) -> int:
        """The number of free rows; where there are none, nothing ever waits for one."""
        return self.config.num_rows - len(self.rows) if self.config.num_rows else sys.maxsize

    def request(self, req: str) -> Request:
        """The request `req`, or a refusal."""
        request = self.requests.get(req)
        if request is None:
            raise Refusal("OP-1", f"there is no request {req}")
        return request

    def running(self, req: str) -> tuple[Request, int]:
        """The running request `req` and its record, or a refusal."""
        request = self.request(req)
        if not request.running or request.record is None:
            raise Refusal("OP-1", f"request {req} is not running")
        return request, request.record

    def session(self, session: str) -> Session:
        """The session, or a refusal."""
        found = self.sessions.get(session)
        if found is None:
            raise Refusal("OP-1", f"there is no session {session}")
        return found

    def private(self, record: int) -> list[int]:
        """The private pages of a record, in order of position."""
        table = self.tables[record]
        return table[len(table) - private_pages(self.lengths[record], self.config.page_size) :]

    def in_flight(self, record: int) -> bool:
        """Whether a launch in flight runs for a record."""
        return any(passage.record == record for flight in self.flights.values() for passage in flight)

    def read_beyond(self, row: int, position: int) -> bool:
        """Whether a launch in flight still reads `position` of `row`, or one after it (RACE-1)."""
        return any(read > position for read in self.readers.get(row, ()))

    def matched_key(self, tokens: Tokens, prefix_len: int) -> PrefixKey:
        """The name of the page-aligned prefix of `prefix_len` tokens."""
        pages = prefix_len // self.config.page_size
        return tokens.key(pages - 1) if pages else ROOT

    def forget_record(self, record: int) -> None:
        """Take a record away: its lock, its row, its private pages. Its holder must have let go of it."""
        row, locked, states, _ = self.records.pop(record)
        private = self.private(record)
        if self.memory is not None:
            self.memory.forget(self, record, row, locked, states, self.sides_behind(private))
        self.release_pages(private)
        for slot in states:
            del self.state_owner[slot]
        self.store.unlock(self.tables[record], self.lengths[record].protected // self.config.page_size)
        del self.lengths[record], self.tables[record], self.written[record], self.horizon[record]
        del self.cursor[record], self.borders[record]
        if ownership.withhold(record, len(self.readers.get(row, ()))) == WITHHELD:
            self.rows[row] = WITHHELD
            self.reached["row withheld"] += 1
        else:
            if not self.config.withholds_rows and self.in_flight(record):
                self.chosen["row not withheld"] += 1
            self.free_row(row)

    def free_row(self, row: int) -> None:
        """A row that no launch reads becomes free; while any launch is in flight an engine may withhold it on."""
        del self.rows[row]
        if self.flights and self.config.withholds_rows:
            self.may_keep.add(row)

    def take_pages(self, record: int, pages: list[int], window_pages: list[int]) -> None:
        """Free pages, and the window sides behind them, become a record's own."""
        if self.memory is not None and pages:
            self.memory.take_pages(record, len(self.tables[record]), pages, window_pages)
        self.tables[record].extend(pages)
        self.owner.update(zip(pages, repeat(record)))
        for page, window_page in zip(pages, window_pages, strict=False):
            self.window_of[page] = window_page
            self.window_owner[window_page] = page

    def release_private(self, record: int, pages: list[int]) -> None:
        """Private pages of a record become free, and their window sides with them."""
        if self.memory is not None:
            self.memory.release_pages(record, pages, self.sides_behind(pages))
        self.release_pages(pages)

    def cut_table(self, record: int, index: int) -> None:
        """The pages of a record from page index `index` on become free, and hold nothing any more."""
        freed = self.tables[record][index:]
        del self.tables[record][index:]
        if self.memory is not None:
            self.memory.cut(record, index)
        self.release_private(record, freed)

    def release_pages(self, pages: Collection[int]) -> None:
        """Pages become free, and their window sides with them."""
        owner = self.owner
        for page in pages:
            del owner[page]
        for page in pages if self.window_of else ():
            self.release_window(page)

    def release_window(self, page: int) -> None:
        """The window side of a page becomes free, if it has one."""
        window_page = self.window_of.pop(page, None)
        if window_page is not None:
            del self.window_owner[window_page]

    def sides_behind(self, pages: Iterable[int]) -> dict[int, int]:
        """The window pages behind those of `pages` that have one."""
        return {page: self.window_of[page] for page in pages if page in self.window_of} if self.window_of else {}

    def transfer(self, record: int) -> None:
        """A session slot lends its record to a turn, or gets it back."""
        if self.memory is not None:
            self.memory.transfer(record)

    def window_sides(self, pages: Iterable[int]) -> list[int]:
        """The window pages behind `pages`, in their order."""
        return list(self.sides_behind(pages).values())

    def next_position(self, request: Request, record: int) -> int:
        """The first position at which a later step of a running request, or of its session's next turn, may stand.

        A turn that is retracted resumes at what is written of its tokens, less the one that is always recomputed.
        """
        return min(self.lengths[record].committed, self.written[record], len(request.tokens) - 1)

    def speculates_ahead(self, req: str) -> bool:
        """Whether a request has prepared or launched a step before the one before it is verified (SPEC-2)."""
        return len(self.speculating.get(req, ())) + (req in self.prepared) > 1

    def drop_prepared(self, req: str) -> None:
        """Forget what a request was about to do."""
        self.prepared.pop(req, None)
        self.speculating.pop(req, None)
        self.let_go.pop(req, None)
        self.verified.discard(req)
        self.mid_prefill.discard(req)

    def copy(self, *, tokens: bool = True) -> "State":
        """An independent copy, for exploring more than one continuation.

        Without `tokens` both have the same sequences: neither may then add any to them.
        """
        other = State.__new__(State)
        copied = vars(other)
        copied.update(vars(self))
        for name in _COPIED:
            copied[name] = copied[name].copy()
        other.store = self.store.copy()
        other.tables = {record: table.copy() for record, table in self.tables.items()}
        if self.memory is not None:
            other.memory = self.memory.copy()
        if tokens:
            requests = self.requests.items()
            other.requests = {req: request._replace(tokens=request.tokens.copy()) for req, request in requests}
        return other


_COPIED = tuple(
    name
    for name, value in vars(State(Config(1, 1, 1, 1))).items()
    if isinstance(value, (dict, set)) and name != "tables"
)
"""The attributes that a copy of a state has of its own; `tables` are lists besides."""
