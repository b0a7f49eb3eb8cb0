"""The state of the specification: plain dictionaries of small immutable `records`, and every way they change.

Rows and pages that are free appear nowhere, so every dictionary is as large as what is in use, never as the pool.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from kvspec import lengths, ownership
from kvspec.events import Config, Refusal
from kvspec.lengths import Lengths, private_pages
from kvspec.model.records import Passage, Prepared, Record, Request, Session, Speculation
from kvspec.pages import ceil_pages
from kvspec.store import ROOT, PrefixStore, Publication
from kvspec.tokens import PrefixKey, Tokens

WITHHELD = ownership.WITHHELD
"""Takes the place of a record in `State.rows` if the row was let go while a launch still reads it."""


@dataclass(eq=False, repr=False)
class State:
    """The whole state of the specified system; at first it is empty."""

    config: Config
    requests: dict[str, Request] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)

    records: dict[int, Record] = field(default_factory=dict)
    lengths: dict[int, Lengths] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    next_record: int = 1
    runs: int = 0
    """The number of runs so far, of all requests."""

    rows: dict[int, int] = field(default_factory=dict)
    """Row -> record that has it, or WITHHELD."""
    may_keep: set[int] = field(default_factory=set)
    """Free rows that an engine may go on withholding: they were let go during launches, and some of these launches are
    still in flight (RACE-1)."""
    owner: dict[int, int | PrefixKey] = field(default_factory=dict)
    """Page -> the record that owns it, or the prefix that ends with it in the store."""
    store: PrefixStore = field(init=False)

    window_of: dict[int, int] = field(default_factory=dict)
    """Page -> the window page behind it. A page of the store that has none is a tombstone."""
    window_owner: dict[int, int] = field(default_factory=dict)
    """Window page -> the page that it is behind."""
    cursor: dict[int, int] = field(default_factory=dict)
    """Record -> `swa_evicted_seqlen`: its private pages before it have given their window side back."""
    state_owner: dict[int, int | str | PrefixKey] = field(default_factory=dict)
    """State slot -> the record or the waiting request that has it, or the prefix whose state the store keeps."""
    borders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Record -> the page borders, in tokens, whose states its tracking slots keep: at most the last two."""
    state_content: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Ghost of the states. Slot of a record -> the record, and how many of its tokens the state in the slot has seen.

    Slots that no answer reported are not in it."""

    prepared: dict[str, Prepared] = field(default_factory=dict)
    flights: dict[int, list[Passage]] = field(default_factory=dict)
    """Launches in flight, oldest first."""
    readers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Row -> how many positions of it each launch in flight reads, oldest first."""
    speculating: dict[str, tuple[Speculation, ...]] = field(default_factory=dict)
    """Request -> its speculative steps that are launched and not verified, oldest first: one, or two (SPEC-2)."""
    mid_prefill: set[str] = field(default_factory=set)

    written: dict[int, int] = field(default_factory=dict)
    """Record -> the number of positions that launches have written."""
    horizon: dict[int, int] = field(default_factory=dict)
    """Record -> the number of tokens that are known or will come out of a launch in flight."""

    def __post_init__(self) -> None:
        """The store's locks reach as far as the window does."""
        self.store = PrefixStore(ceil_pages(self.config.sliding_window, self.config.page_size))

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
        """The number of free rows; unlimited in a system without rows."""
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

    def read_beyond(self, row: int, position: int) -> bool:
        """Whether a launch in flight still reads `position` of `row`, or one after it (RACE-1)."""
        return any(read > position for read in self.readers.get(row, ()))

    def matched_key(self, tokens: Tokens, prefix_len: int) -> PrefixKey:
        """The name of the page-aligned prefix of `prefix_len` tokens."""
        pages = prefix_len // self.config.page_size
        return tokens.key(pages - 1) if pages else ROOT

    def sides_behind(self, pages: Iterable[int]) -> dict[int, int]:
        """The window pages behind those of `pages` that have one."""
        return {page: self.window_of[page] for page in pages if page in self.window_of} if self.window_of else {}

    def window_sides(self, pages: Iterable[int]) -> list[int]:
        """The window pages behind `pages`, in their order."""
        return list(self.sides_behind(pages).values())

    # How it changes

    def begin_record(self, tokens: Tokens, row: int, prefix_len: int, seq_len: int) -> int:
        """A record begins, with a row and a lock on the prefix that was matched; its own pages follow."""
        record, page_size = self.next_record, self.config.page_size
        self.next_record += 1
        path = [*map(self.store.pages.__getitem__, tokens.keys(0, prefix_len // page_size))]
        self.store.lock(path, len(path))
        owner, readers = self.rows.get(row, ownership.FREE), len(self.readers.get(row, ()))
        self.rows[row] = ownership.allocate(owner, readers, record)
        self.may_keep.discard(row)
        self.records[record] = Record(row, self.matched_key(tokens, prefix_len))
        self.tables[record] = path
        self.lengths[record] = lengths.begin(prefix_len, seq_len, page_size)
        self.written[record] = prefix_len
        self.cursor[record] = 0
        self.borders[record] = ()
        return record

    def forget_record(self, record: int) -> None:
        """Remove a record with its lock, its row and its private pages. Its holder must have let go of it."""
        row, _, states, _ = self.records.pop(record)
        self.release_pages(self.private(record))
        for slot in states:
            del self.state_owner[slot]
        self.store.unlock(self.tables[record], self.lengths[record].protected // self.config.page_size)
        del self.lengths[record], self.tables[record], self.written[record], self.horizon[record]
        del self.cursor[record], self.borders[record]
        if ownership.withhold(record, len(self.readers.get(row, ()))) == WITHHELD:
            self.rows[row] = WITHHELD
        else:
            self.free_row(row)

    def free_row(self, row: int) -> None:
        """A row that no launch reads becomes free. An engine may go on withholding it while any launch is in flight."""
        del self.rows[row]
        if self.flights and self.config.withholds_rows:
            self.may_keep.add(row)

    def take_pages(self, record: int, pages: list[int], window_pages: list[int]) -> None:
        """Free pages, and the window sides behind them, become a record's own."""
        self.tables[record].extend(pages)
        self.owner.update(zip(pages, repeat(record)))
        for page, window_page in zip(pages, window_pages, strict=False):
            self.window_of[page] = window_page
            self.window_owner[window_page] = page

    def release_private(self, record: int, pages: list[int]) -> None:
        """Private pages of a record become free, and their window sides with them."""
        self.release_pages(pages)

    def cut_table(self, record: int, index: int) -> None:
        """The pages of a record from page index `index` on become free."""
        freed = self.tables[record][index:]
        del self.tables[record][index:]
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

    def leave_behind(self, record: int, until: int, pages: list[int]) -> None:
        """A record's cursor moves on: these pages give their window sides back."""
        for page in pages:
            self.release_window(page)
        self.cursor[record] = until

    def take_states(self, record: int, slots: Sequence[int]) -> None:
        """State slots become a record's own: free slots, or the one that its request took early."""
        for slot in slots:
            self.state_owner[slot] = record
            self.state_content.pop(slot, None)

    def publish(self, record: int, plan: Publication) -> None:
        """Hand the planned pages to the store, free the duplicates, and advance `protected` and the lock."""
        table, page_size = self.tables[record], self.config.page_size
        first = self.lengths[record].protected // page_size
        tombstones, own, _ = self.freed_by(plan)
        for tombstone, page in plan.revived:
            window_page = self.window_of[tombstone] = self.window_of.pop(page)
            self.window_owner[window_page] = tombstone
        for key, page in plan.exchanged:
            self.store.exchange(key, page)
            self.owner[page] = key
        table[first : first + len(plan.shared)] = plan.shared
        self.release_private(record, own)
        self.release_pages(tombstones)
        known, new = [self.records[record].locked, *plan.keys][len(plan.shared)], plan.keys[len(plan.shared) :]
        self.store.insert(known, new, plan.inserted)
        self.owner.update(zip(plan.inserted, new, strict=True))
        if plan.keys:
            self.store.lock(table, first + len(plan.keys), len(new))
            self.store.unlock(table, first)
            self.records[record] = self.records[record]._replace(locked=plan.keys[-1])
        length = min(plan.length, self.lengths[record].committed)
        self.lengths[record] = lengths.publish(self.lengths[record], length, page_size)

    def freed_by(self, plan: Publication) -> tuple[list[int], list[int], list[int]]:
        """The pages that a publication frees: tombstones of the store, pages of the holder, and window pages."""
        tombstones = [self.store.pages[key] for key, _ in plan.exchanged]
        taken = {page for _, page in plan.exchanged}
        own = [page for page in plan.duplicates if page not in taken]
        given = {page for _, page in plan.revived}
        return tombstones, own, self.window_sides(page for page in own if page not in given)

    def publish_state(self, record: int, key: PrefixKey, slot: int, new: int | None = None) -> None:
        """The store takes a state slot of a record. The record gets the free slot `new` in exchange."""
        if new is not None:
            self.state_owner[new] = record
            self.state_content.pop(new, None)
        self.store.states[key] = slot
        self.state_content.pop(slot, None)
        self.state_owner[slot] = key

    def drop(self, keys: Mapping[PrefixKey, int], losing: Sequence[PrefixKey]) -> None:
        """Pages leave the store, by their prefixes, and become free; what was found before them loses a longer one."""
        self.store.remove(keys, losing)
        self.release_pages(keys.values())

    def drop_sides(self, window_pages: Iterable[int]) -> None:
        """Window pages of the store become free."""
        for window_page in window_pages:
            self.release_window(self.window_owner[window_page])

    def drop_states(self, slots: Iterable[int]) -> None:
        """State slots of the store become free."""
        for slot in slots:
            del self.store.states[self.state_owner.pop(slot)]  # type: ignore[arg-type]

    def drop_prepared(self, req: str) -> None:
        """Forget what a request was about to do."""
        self.prepared.pop(req, None)
        self.speculating.pop(req, None)
        self.mid_prefill.discard(req)
