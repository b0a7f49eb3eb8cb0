"""The reference memory manager: one method for each operation of `kvspec.events`.

Each method first refuses what must be refused, looking at the operation as a whole, and changes the state only
then: a refused operation leaves everything as it was. `freed` in an answer is what the allocator took back meanwhile.
"""

from collections import deque
from typing import Literal, NamedTuple

from kvref import looking
from kvref.launch import Launch
from kvref.parts import make_allocator, make_pool, make_tree_cache
from kvref.radix_cache import MatchResult
from kvref.release import evict_swa, release_kv_cache
from kvref.request import KvRecord, Request, Run, SessionSlot
from kvref.session_cache import SessionCache
from kvref.window_pool import SWAAllocator
from kvspec import lengths
from kvspec.batch import Chunking, broken_rule
from kvspec.events import (
    Config,
    DecodeAnswer,
    Done,
    EvictAnswer,
    ExtendAnswer,
    Figures,
    MatchAnswer,
    PublishAnswer,
    Refusal,
    ReleaseAnswer,
    SnapshotAnswer,
    StateAnswer,
    SwaEvictAnswer,
)
from kvspec.pages import Runs, ceil_pages, compress, slot_index
from kvspec.tokens import Element, Tokens
from kvspec.window import window_held_tokens


class Prefill(NamedTuple):
    """One request of a prefill batch. Lengths in tokens."""

    request: Request
    run: Run | None
    """Its run, if an earlier chunk has begun it."""
    base: KvRecord | MatchResult
    """What it goes on from: a record, its run's or lent by a slot, or what it matched in the prefix store."""
    prefix_len: int
    seq_len: int

    @property
    def row(self) -> int | None:
        """The row that it brings."""
        return self.base.req_pool_idx if isinstance(self.base, KvRecord) else None

    @property
    def is_chunk(self) -> bool:
        """Whether more of the prompt is still to come."""
        return self.seq_len < len(self.request.tokens)


class Manager:
    """The memory of one engine: rows, pages, the prefix store and the session slots."""

    def __init__(self, config: Config) -> None:
        """Everything is free and nobody is there."""
        self.config = config
        self.allocator = make_allocator(config)
        self.pool = make_pool(config)
        self.tree_cache = make_tree_cache(config, self.pool, self.allocator)
        self.session_cache = SessionCache(self.tree_cache, self.pool, self.allocator)

        self.requests: dict[str, Request] = {}
        self.running: dict[str, Run] = {}
        self.holders: dict[str, KvRecord] = {}
        """The requests that have a row: those that run, and turns that a slot is lent to."""
        self.chunked: set[str] = set()
        """The requests in the middle of their prefill; at most one (BATCH-2)."""
        self.launches: deque[Launch] = deque()
        """The launches in flight, oldest first."""

    # Requests that wait

    def open_session(self, session: str) -> Done:
        """Open a streaming session.

        Raises:
            Refusal: it is open already.
        """
        if session in self.session_cache.slots:
            raise Refusal("OP-1", f"session {session} is open already")
        self.session_cache.open(session)
        return Done()

    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        """Take a request in; nothing is matched or owned yet.

        Raises:
            Refusal: the name is taken, the tokens are none, too many or malformed, or no turn of the session.
        """
        if req in self.requests:
            raise Refusal("OP-1", f"there is a request {req} already")
        try:
            sequence = Tokens(self.config.page_size, tokens)
        except ValueError as error:
            raise Refusal("OP-1", str(error)) from None
        if not len(sequence):
            raise Refusal("OP-1", f"request {req} has no tokens")
        if len(sequence) > self.config.max_context_len:
            raise Refusal("LEN-1", f"{len(sequence)} tokens exceed the context of {self.config.max_context_len}")
        slot = None if session is None else self._slot_for_turn(session, sequence)
        self.requests[req] = Request(req, sequence, slot)
        if slot is not None:
            slot.turn = req
        return Done()

    def _slot_for_turn(self, session: str, tokens: Tokens) -> SessionSlot:
        """The slot of a session that `tokens` may continue, or a refusal (20476, 22862)."""
        slot = self._slot(session)
        if slot.closing:
            raise Refusal("OP-1", f"session {session} is closing")
        if slot.turn is not None:
            raise Refusal("SESS-1", f"session {session} has a turn in flight: {slot.turn}")
        if not _begins_with(tokens, slot.history):
            raise Refusal("SESS-6", f"the tokens do not begin with the history of session {session}")
        return slot

    def match_prefix(self, req: str) -> MatchAnswer:
        """How much of a waiting request is cached already. Repeatable (20476).

        Raises:
            Refusal: the request is not waiting.
        """
        request = self._request(req)
        if req in self.running:
            raise Refusal("OP-1", f"request {req} is running")
        match = self.session_cache.match_prefix(request)
        request.prefix_len = match.prefix_len
        request.resumed = match.lent is not None
        if match.lent is not None:
            self.holders[req] = match.lent
        return MatchAnswer(
            match.prefix_len, match.protected_len, self._freed(), self._window_freed(), self._states_freed()
        )

    def take_state(self, req: str) -> StateAnswer:
        """A matched request that waits takes the state slot that it will compute in (17850).

        Raises:
            Refusal: there are no states, or the request has one, runs or has not matched, or no slot is free.
        """
        request = self._request(req)
        if not self.config.num_states:
            raise Refusal("OP-1", "there are no recurrent states")
        if req in self.holders or request.state is not None:
            raise Refusal("OP-1", f"request {req} has a state slot already")
        if request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        self._check_room(states=1)
        return StateAnswer(self.pool.states.alloc_early(request))

    def free_state(self, req: str) -> StateAnswer:
        """A waiting request that was not admitted gives its state slot back (17850).

        Raises:
            Refusal: it has taken none.
        """
        request = self._request(req)
        if request.state is None:
            raise Refusal("OP-1", f"request {req} has no state slot without a row")
        answer = StateAnswer(request.state)
        self.pool.states.free_early(request)
        self.pool.states.drain_freed()
        return answer

    # Requests that run

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Prefill each request up to its `seq_len`: rows, pages and locks for the whole batch, or nothing (17850).

        Raises:
            Refusal: some request cannot be extended so, the batch breaks BATCH-1 or BATCH-2, or it does not fit.
        """
        batch = [self._check_prefill(req, seq_len) for req, seq_len in reqs]
        self._check_chunking(batch)
        rows = self._alloc_rows(batch)
        pages: dict[str, list[int]] = {}
        states: dict[str, list[int]] = {}
        for prefill, row in zip(batch, rows, strict=True):
            name = prefill.request.name
            pages[name] = self._prefill(prefill, row)
            if prefill.row is None:
                states[name] = self.pool.states.alloc_extend_states(self.holders[name], prefill.request)
        return ExtendAnswer(
            {req: row for (req, _), row in zip(reqs, rows, strict=True)},
            _given(pages),
            self._window_sides(pages),
            _given(states) if self.config.num_states else None,
        )

    def _check_prefill(self, req: str, seq_len: int) -> Prefill:
        """One request of a prefill batch, or a refusal."""
        request = self._request(req)
        run = self.running.get(req)
        base: KvRecord | MatchResult
        if run is not None:
            if not run.mid_prefill:
                raise Refusal("OP-1", f"the prefill of {req} is complete")
            if run.prepared_end:
                raise Refusal("LAUNCH-1", f"the last chunk of {req} is not launched yet")
            base, prefix_len = run.kv, run.seq_len
        elif request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        elif request.resumed:
            base, prefix_len = self.holders[req], request.prefix_len
            if self.pool.read_len(base.req_pool_idx) > prefix_len:
                raise Refusal("RACE-1", f"a launch in flight reads what {req} would overwrite from {prefix_len} on")
        else:
            prefix_len = request.prefix_len
            base = self.tree_cache.match_prefix(request.tokens.pages[: prefix_len // self.config.page_size])
            if len(base.pages) * self.config.page_size < prefix_len:
                raise Refusal("STORE-5", f"what {req} matched has been evicted: match again")
        if not prefix_len < seq_len <= len(request.tokens):
            raise Refusal("OP-1", f"seq_len {seq_len} of {req} is not in {prefix_len + 1}..{len(request.tokens)}")
        if seq_len > self.config.max_context_len:
            raise Refusal("LEN-1", f"{req} would grow to {seq_len}, past {self.config.max_context_len}")
        return Prefill(request, run, base, prefix_len, seq_len)

    def _check_chunking(self, batch: list[Prefill]) -> None:
        """Refuse an empty batch, a request that is named twice, and what BATCH-1 and BATCH-2 forbid (20476)."""
        names = [prefill.request.name for prefill in batch]
        _check_batch(names)
        chunks = [prefill for prefill in batch if prefill.is_chunk]
        chunking = Chunking(
            continuing=sum(prefill.run is not None for prefill in batch),
            newly_chunked=sum(prefill.run is None for prefill in chunks),
            left=len(self.chunked.difference(names)) + len(chunks),
        )
        rule = broken_rule(chunking)
        if rule is not None:
            raise Refusal(rule, f"in the middle of their prefill: {chunking}")

    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        """The row of each request, or a refusal if rows or pages do not suffice for all of them (17850)."""
        brought = [prefill.row for prefill in batch]
        page_size = self.config.page_size
        needed = sum(
            self.allocator.pages_missing(ceil_pages(prefill.prefix_len, page_size), prefill.seq_len)
            for prefill in batch
        )
        states = self.pool.states
        self._check_room(
            pages=needed,
            rows_short=self.pool.rows_short(brought),
            states=sum(states.states_missing(prefill.request) for prefill in batch if prefill.row is None),
        )
        rows = self.pool.alloc(brought)
        assert rows is not None, "there is room"
        return rows

    def _check_room(self, *, pages: int = 0, rows_short: int = 0, states: int = 0) -> None:
        """Refuse what needs more than is free: rows, state slots, and pages with a window side behind each (17850)."""
        swa = self._swa
        pages_short = self.allocator.short_of(pages)
        window_short = 0 if swa is None else swa.window.short_of(pages)
        states_short = self.pool.states.short_of(states) if states else 0
        if pages_short or rows_short or window_short or states_short:
            raise Refusal(
                "CAP-1",
                f"missing: {pages_short} of {pages} pages, {window_short} window pages, {rows_short} rows, "
                f"{states_short} state slots",
                pages_short=pages_short,
                rows_short=rows_short,
                window_short=window_short,
                states_short=states_short,
            )

    def _prefill(self, prefill: Prefill, row: int) -> list[int]:
        """Extend one request of a batch that fits, and return its new pages.

        [0, prefix_len)         matched, lent, or written by an earlier chunk: stays
        [prefix_len, seq_len)   gets slots: first in the page that prefix_len cuts, then in new pages
        """
        request, run, base, prefix_len, seq_len = prefill
        page_size = self.config.page_size
        table = self.pool.req_to_token[row]
        if isinstance(base, KvRecord):
            kv = base
            kv.lengths = lengths.extend(kv.lengths, seq_len, page_size)
        else:
            kv = KvRecord(row, lengths.begin(prefix_len, seq_len, page_size), base.last_node)
            self.tree_cache.inc_lock_ref(base.last_node)
            table += base.pages
            self.holders[request.name] = kv
        if run is None:
            run = self.running[request.name] = Run(request, kv, prefix_len)
            request.prefix_len = None
            request.extended = True
        run.seq_len = run.prepared_end = seq_len
        run.promised_len = len(request.tokens)
        run.mid_prefill = prefill.is_chunk
        if run.mid_prefill:
            self.chunked.add(request.name)
        else:
            self.chunked.discard(request.name)
        return self.allocator.alloc_extend(table, seq_len)

    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        """Make room for `n` tokens of each request past its committed ones; one alone is committed at once (994).

        The step's tokens need not be there yet: with overlap the launch in flight is about to bring them.

        Raises:
            Refusal: `n` is no number of tokens, some request cannot decode now, or the batch does not fit.
        """
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        if n > 1 and self.config.num_states:
            raise Refusal("OP-1", "a recurrent state cannot take the drafts back that are not accepted")
        _check_batch(reqs)
        batch = self._running_batch(reqs)
        page_size, max_context_len, tables = self.config.page_size, self.config.max_context_len, self.pool.req_to_token
        growing: list[Run] = []
        for run in batch:
            kv = run.kv
            end = kv.kv_committed_len + n
            if run.prepared_end or run.mid_prefill:
                raise Refusal("OP-1", f"{run.name} has a prefill or a decode step that is not done")
            if run.drafts:
                raise Refusal("SPEC-1", f"the last speculative step of {run.name} is not verified yet")
            if kv.kv_committed_len >= run.promised_len:
                raise Refusal("OP-1", f"position {kv.kv_committed_len} of {run.name} has no token to decode")
            if end > max_context_len:
                raise Refusal("LEN-1", f"{run.name} would grow to {end}, past {max_context_len}")
            if end > len(tables[kv.req_pool_idx]) * page_size:
                growing.append(run)
        self._check_decode_room(growing, n)

        drafts = n if n > 1 else 0
        for run in batch:
            kv = run.kv
            run.prepared_end = end = kv.kv_committed_len + n
            run.drafts = drafts
            if end > kv.kv_allocated_len:
                kv.kv_allocated_len = end
            if not drafts:
                kv.kv_committed_len = end
        pages: dict[str, list[int]] = {}
        for run in growing:
            table = tables[run.kv.req_pool_idx]
            pages[run.name] = self.allocator.alloc_extend(table, run.kv.kv_allocated_len)
        return DecodeAnswer(_given(pages), self._window_sides(pages))

    def _check_decode_room(self, growing: list[Run], n: int) -> None:
        """Refuse a decode step whose new pages are not free."""
        if not growing:
            return
        tables = self.pool.req_to_token
        self._check_room(
            pages=sum(
                self.allocator.pages_missing(len(tables[run.kv.req_pool_idx]), run.kv.kv_committed_len + n)
                for run in growing
            )
        )

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """Hand what was prepared to the device, which reads the rows from now on (17850).

        Raises:
            Refusal: a launch of this number is in flight, or some request has nothing prepared.
        """
        if any(launch == other.number for other in self.launches):
            raise Refusal("OP-1", f"launch {launch} is in flight")
        _check_batch(reqs)
        batch = self._running_batch(reqs)
        for run in batch:
            if not run.prepared_end:
                raise Refusal("OP-1", f"{run.name} has nothing to launch")

        if self.config.num_states:
            for run in batch:
                self.pool.states.track(run.kv, run.launched_len, run.prepared_end, self.config.page_size)
        flight = Launch(launch)
        reads: dict[int, int] = {}
        for run in batch:
            reads[run.kv.req_pool_idx] = run.launched_len = run.prepared_end
            run.prepared_end = 0
            if run.mid_prefill:
                continue
            run.promised_len += 1
            if run.drafts:
                flight.drafted[run.name] = run
            else:
                flight.sampled[run.name] = run
        self.pool.begin_read(reads)
        self.launches.append(flight)
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> Done:
        """The oldest launch in flight has completed and brought `tokens` (17850).

        Raises:
            Refusal: another launch is older, or `tokens` are not for exactly the runs that it sampled.
        """
        flight = self.launches[0] if self.launches else None
        if flight is None or flight.number != launch:
            in_flight = any(launch == other.number for other in self.launches)
            raise Refusal("LAUNCH-1" if in_flight else "OP-1", f"launch {launch} is not the oldest in flight")
        if tokens.keys() != flight.sampled.keys():
            wrong = ", ".join(sorted(tokens.keys() ^ flight.sampled.keys()))
            raise Refusal("CHUNK-1", f"a token too few or too many for: {wrong}")
        for req, run in flight.sampled.items():
            run.tokens.append(tokens[req])
        for run in flight.drafted.values():
            run.verifiable = True
        self.launches.popleft()
        self.pool.end_read()
        return Done()

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit `accepted` positions of the completed speculative launch; the request keeps `tokens` (22862).

        Raises:
            Refusal: nothing waits for a verify, or the amounts are not what was written.
        """
        run = self._run(req)
        if not run.verifiable:
            raise Refusal("SPEC-1", f"{req} has no completed speculative launch to verify")
        if not 1 <= accepted <= run.drafts:
            raise Refusal("SPEC-1", f"{accepted} accepted positions are not in 1..{run.drafts}")
        if not 1 <= len(tokens) <= accepted:
            raise Refusal("SPEC-1", f"{len(tokens)} tokens for {accepted} accepted positions")
        run.drafts, run.verifiable = 0, False
        run.kv.lengths = lengths.verify(run.kv.lengths, accepted, self.config.page_size)
        for token in tokens:
            run.tokens.append(token)
        run.promised_len += len(tokens) - 1
        return Done()

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """Publish what a launched prefill wrote, so that others can match it while the request still runs (20476).

        Raises:
            Refusal: something prepared is not launched, the prefill is not where `chunked` says, or the prompt's
                next token is not sampled yet.
        """
        run = self._run(req)
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        if chunked != run.mid_prefill:
            raise Refusal("CHUNK-1", f"chunked is {chunked}, but {req} has {run.seq_len} of {len(run.tokens)} tokens")
        if not chunked and len(run.tokens) == run.seq_len:
            raise Refusal("CHUNK-1", f"the token that follows the prompt of {req} is not sampled yet")
        cached = self.session_cache.cache_unfinished_req(run)
        answer = PublishAnswer(run.kv.cache_protected_len, self._freed(), self._window_freed())
        if cached is not None:
            answer.state_cached, answer.state_taken = cached
        return answer

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """Give back the window sides that a running request has left behind (20070).

        Its next step stands at its last token at the earliest: a turn that is retracted computes that one again.

        Raises:
            Refusal: there is no sliding window, or the request is not running.
        """
        run, swa = self._run(req), self._swa
        if swa is None:
            raise Refusal("OP-1", "there is no sliding window")
        next_position = min(run.kv.kv_committed_len, run.launched_len, len(run.tokens) - 1)
        evict_swa(run.kv, next_position, self.config.sliding_window, self.pool, swa)
        return SwaEvictAnswer(run.kv.swa_evicted_seqlen, self._window_freed())

    # Ways out. Each ends in `release_kv_cache`, or in a session's slot.

    def finish(self, req: str) -> ReleaseAnswer:
        """The request is complete: publish and release, or leave the memory to the session (994, 22862).

        Raises:
            Refusal: the request is not running, or has a prefill or a decode step that is not done.
        """
        run = self._run(req)
        if run.mid_prefill:
            raise Refusal("OP-1", f"{req} is in the middle of its prefill")
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        self._end_run(run)
        del self.requests[req]
        slot = run.request.slot
        cached = None
        if slot is None:
            kept = min(run.kv.kv_committed_len, len(run.tokens))
            cached = self.tree_cache.cache_finished_req(run.kv, run.tokens, kept)
            self._release(run.kv)
        else:
            self.session_cache.save(slot, run)
            slot.history = run.tokens
            self.session_cache.end_turn(slot)
        answer = self._released()
        answer.state_cached = None if cached is None else cached.slot
        return answer

    def retract(self, req: str) -> ReleaseAnswer:
        """Take a running request's memory away; it waits again with its tokens (994, 22862).

        Raises:
            Refusal: the request is not running.
        """
        run = self._run(req)
        self._end_run(run)
        slot = run.request.slot
        if slot is None:
            self._release(run.kv)
        else:
            self.session_cache.save(slot, run)
        return self._released()

    def abort(self, req: str) -> ReleaseAnswer:
        """The request leaves without a result, wherever it is (22862).

        A turn that ran has overwritten its session's KV with tokens that the client never got: the KV is wiped. One
        that never ran leaves the slot as it was.

        Raises:
            Refusal: there is no such request.
        """
        request = self._request(req)
        run = self.running.get(req)
        if run is not None:
            self._end_run(run)
        del self.requests[req]
        self.pool.states.free_early(request)
        slot = request.slot
        kv = run.kv if run is not None else self.holders.pop(req, None)
        if slot is None:
            if kv is not None:
                self._release(kv)
        else:
            if kv is not None:
                self.session_cache.take_back(slot, kv)
            if request.extended:
                self.session_cache.wipe(slot)
            self.session_cache.end_turn(slot)
        return self._released()

    def close_session(self, session: str) -> ReleaseAnswer:
        """Release an idle session; with a turn in flight the release waits for it (22213).

        Raises:
            Refusal: the session is not open, or closing already.
        """
        slot = self._slot(session)
        if slot.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        slot.closing = True
        if slot.turn is None:
            self.session_cache.close(slot)
        return self._released()

    def preempt(self, session: str) -> ReleaseAnswer:
        """Release an idle slot's memory; the session keeps its tokens and its next turn prefills again.

        Raises:
            Refusal: the slot holds nothing, or has lent it.
        """
        slot = self._slot(session)
        if slot.kv is None or slot.lent:
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        self.session_cache.wipe(slot)
        return self._released()

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        """Free at least `n` pages, `window` window sides and `states` states of the prefix store, or all unlocked ones.

        Raises:
            Refusal: that asks for nothing, or for what there is no pool of.
        """
        if min(n, window, states) < 0 or n + window + states < 1:
            raise Refusal("OP-1", f"{n} pages, {window} window sides and {states} states are nothing to evict")
        if window and not self.config.sliding_window:
            raise Refusal("OP-1", "there is no sliding window")
        if states and not self.config.num_states:
            raise Refusal("OP-1", "there are no recurrent states")
        self.tree_cache.evict(n, window, states)
        return EvictAnswer(self._freed(), self._window_freed(), self._states_freed())

    # Looking

    def report(self, mode: Literal["idle", "busy"] = "busy") -> Figures:
        """The manager's own figures, in tokens and rows, each by its own definition: their sum is the check (20070).

        Raises:
            Refusal: the mode is `idle`, but a request holds memory.
        """
        if mode == "idle" and self.holders:
            raise Refusal("OP-1", f"{len(self.holders)} requests hold memory: this is not idle")
        page_size = self.config.page_size
        idle_slots = [kv for _, kv in self.session_cache.idle()]
        figures = Figures(
            available=self.allocator.available * page_size,
            evictable=self.tree_cache.evictable_size * page_size,
            protected=self.tree_cache.protected_size * page_size,
            session_held=sum(map(self._held_tokens, idle_slots)),
            uncached=sum(map(self._held_tokens, self.holders.values())),
            rows_available=self.pool.available,
            rows_requests=len(self.holders),
            rows_sessions=len(idle_slots),
            rows_withheld=self.pool.withheld,
        )
        swa, tree = self._swa, self.tree_cache
        if swa is not None:
            figures.window_available = swa.window.available * page_size
            figures.window_evictable = tree.swa_evictable_size * page_size
            figures.window_protected = tree.swa_protected_size * page_size
            figures.window_session_held = sum(map(self._window_held_tokens, idle_slots))
            figures.window_uncached = sum(map(self._window_held_tokens, self.holders.values()))
        if self.config.num_states:
            figures.states_available = self.pool.states.available
            figures.states_evictable = tree.mamba_evictable_size
            figures.states_protected = tree.mamba_protected_size
            figures.states_sessions = sum(len(kv.states) for kv in idle_slots)
            figures.states_requests = sum(len(kv.states) for kv in self.holders.values())
            figures.states_requests += sum(request.state is not None for request in self.requests.values())
        return figures

    def _held_tokens(self, kv: KvRecord) -> int:
        """Tokens of a holder's private pages, a page that is held in part counted whole (20070)."""
        return lengths.held_tokens(kv.lengths, self.config.page_size)

    def _window_held_tokens(self, kv: KvRecord) -> int:
        """The same of the window pool: the pages before the cursor have given their window side back (20070)."""
        return window_held_tokens(kv.lengths, kv.swa_evicted_seqlen, self.config.page_size)

    def snapshot(self) -> SnapshotAnswer:
        """The whole state, for a deep compare. Costs the whole pool."""
        idle_slots = dict(self.session_cache.idle())
        return looking.snapshot(self.holders, idle_slots, self.tree_cache, self.pool, self.allocator, self._slots_of)

    def _slots_of(self, kv: KvRecord) -> Runs:
        """The slot index of each allocated position of a row (rule PAGE-3)."""
        table, page_size = self.pool.req_to_token[kv.req_pool_idx], self.config.page_size
        return compress(
            slot_index(table[position // page_size], position, page_size) for position in range(kv.kv_allocated_len)
        )

    # Shared by several operations

    def _request(self, req: str) -> Request:
        """The request, or a refusal."""
        request = self.requests.get(req)
        if request is None:
            raise Refusal("OP-1", f"there is no request {req}")
        return request

    def _run(self, req: str) -> Run:
        """The run of a running request, or a refusal."""
        run = self.running.get(req)
        if run is None:
            raise Refusal("OP-1", f"request {req} is not running")
        return run

    def _running_batch(self, reqs: list[str]) -> list[Run]:
        """The runs of all requests of a batch, or a refusal."""
        try:
            return [self.running[req] for req in reqs]
        except KeyError as missing:
            raise Refusal("OP-1", f"request {missing.args[0]} is not running") from None

    def _slot(self, session: str) -> SessionSlot:
        """The slot of an open session, or a refusal."""
        slot = self.session_cache.slots.get(session)
        if slot is None:
            raise Refusal("OP-1", f"there is no session {session}")
        return slot

    def _end_run(self, run: Run) -> None:
        """Nothing that a launch in flight samples comes to a run that has ended, and it holds its row no longer."""
        del self.running[run.name], self.holders[run.name]
        self.chunked.discard(run.name)
        for launch in self.launches:
            launch.forget(run.name)

    def _release(self, kv: KvRecord) -> None:
        release_kv_cache(kv, self.tree_cache, self.pool, self.allocator)

    @property
    def _swa(self) -> SWAAllocator | None:
        """The allocator, if its pages have window sides."""
        allocator = self.allocator
        return allocator if isinstance(allocator, SWAAllocator) else None

    def _freed(self) -> Runs:
        return compress(self.allocator.drain_freed())

    def _window_freed(self) -> Runs | None:
        swa = self._swa
        return None if swa is None else compress(swa.window.drain_freed())

    def _states_freed(self) -> Runs | None:
        return compress(self.pool.states.drain_freed()) if self.config.num_states else None

    def _released(self) -> ReleaseAnswer:
        return ReleaseAnswer(self._freed(), self._window_freed(), self._states_freed())

    def _window_sides(self, pages: dict[str, list[int]]) -> dict[str, Runs] | None:
        """The window sides of the new pages of each request."""
        swa = self._swa
        return None if swa is None else _given({req: swa.windows_of(new) for req, new in pages.items()})


def _check_batch(reqs: list[str]) -> None:
    """Refuse an empty batch, and a request that is named twice."""
    if not reqs:
        raise Refusal("OP-1", "the batch is empty")
    if len(set(reqs)) < len(reqs):
        raise Refusal("OP-1", "a request is in the batch twice")


def _given(numbers: dict[str, list[int]]) -> dict[str, Runs]:
    """What each request was given, as an answer tells it; who was given nothing is not named."""
    return {req: compress(given) for req, given in numbers.items() if given}


def _begins_with(tokens: Tokens, history: Tokens) -> bool:
    """Whether a turn's tokens begin with its session's history (SESS-6)."""
    full, rest = len(history.pages), history.rest
    if tokens.pages[:full] != history.pages:
        return False
    following = tokens.pages[full] if len(tokens.pages) > full else tuple(tokens.rest)
    return not rest or (not isinstance(following, str) and list(following[: len(rest)]) == rest)
