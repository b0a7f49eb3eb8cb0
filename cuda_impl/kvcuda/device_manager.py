"""The device manager: one method for each operation of `kvspec.events`, none of which reads the device.

Each method first refuses what must be refused, looking at the operation as a whole, and changes the state only then.
Lengths, rows and numbers of pages are the host's; the pages themselves only the device knows, so answers name none.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from kvcuda.backend import DEVICE
from kvcuda.holdings import Evicted, Holdings
from kvcuda.lanes import Event, Lanes, default_lanes
from kvcuda.memory import OUT_BUFFERS, Copy, DeviceMemory, Ints
from kvcuda.prefix_tree import Match
from kvcuda.records import Flight, KvRecord, Request, Run
from kvcuda.row_table import ints
from kvcuda.sessions import Sessions
from kvcuda.staging import Slot
from kvspec import lengths
from kvspec.batch import Chunking, broken_rule
from kvspec.events import (
    Config,
    DecodeAnswer,
    Done,
    ExtendAnswer,
    Figures,
    MatchAnswer,
    PublishAnswer,
    Refusal,
    StateAnswer,
    SwaEvictAnswer,
)
from kvspec.events import ReleaseAnswer as Released
from kvspec.pages import new_pages
from kvspec.tokens import Element, Tokens


class ForwardBatch(NamedTuple):
    """What a forward pass is to do: for each request, compute positions [start, end) of a row. Arrays int64 [batch]."""

    launch: int
    reqs: list[str]
    rows: Ints
    starts: Ints
    ends: Ints
    outs: Ints
    """Where in `out_cache_loc` the slots of each request's new positions begin."""


Forward = Callable[[ForwardBatch], object]
"""Enqueues a forward pass on the forward lane. It must not wait for it."""


class Prefill(NamedTuple):
    """One request of a prefill batch. Lengths in tokens."""

    request: Request
    run: Run | None
    """Its run, if an earlier chunk has begun it."""
    base: KvRecord | Match
    """What it goes on from: a record, its run's or lent by a slot, or what it matched in the prefix store."""
    prefix_len: int
    seq_len: int

    @property
    def is_chunk(self) -> bool:
        """Whether more of the prompt is still to come."""
        return self.seq_len < len(self.request.tokens)


class DeviceManager:
    """The memory of one engine: rows, pages of one or two pools, state slots, the prefix store, the session slots."""

    def __init__(
        self,
        config: Config,
        *,
        forward: Forward | None = None,
        lanes: Lanes | None = None,
        debug: bool = False,
    ) -> None:
        """Everything is free and nobody is there.

        `forward` is called by `launch`, once the forward lane waits for all that it depends on. With `debug` the
        kernels check every page they move.

        Raises:
            ValueError: sizes that the device manager cannot express.
        """
        self.config = config
        self.lanes = default_lanes(DEVICE) if lanes is None else lanes
        self.memory = DeviceMemory(config, self.lanes, debug=debug)
        self.holdings = Holdings(config, self.memory)
        self.rows = self.holdings.rows
        self.states = self.holdings.states
        self.sessions = Sessions(self.holdings)
        self.forward = forward

        self.requests: dict[str, Request] = {}
        self.running: dict[str, Run] = {}
        self.holders: dict[str, KvRecord] = {}
        """The requests that have a row: those that run, and turns that a slot is lent to."""
        self.chunked: set[str] = set()
        """The requests in the middle of their prefill; at most one (BATCH-2)."""
        self.launches: deque[Flight] = deque()
        """The launches in flight, oldest first."""
        self._last_batch: tuple[list[str], list[Run], Ints] | None = None
        """The running batch that was looked up last. Engines ask for the same one again and again."""

    # Requests that wait

    def open_session(self, session: str) -> Done:
        """Open a streaming session.

        Raises:
            Refusal: it is open already.
        """
        self.sessions.open(session)
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
        slot = None if session is None else self.sessions.slot_for_turn(session, sequence)
        self.requests[req] = Request(req, sequence, slot)
        if slot is not None:
            slot.turn = req
        return Done()

    def match_prefix(self, req: str) -> MatchAnswer:
        """How much of a waiting request is cached already. Repeatable (20476).

        Raises:
            Refusal: the request is not waiting.
        """
        request = self._request(req)
        if req in self.running:
            raise Refusal("OP-1", f"request {req} is running")
        states = self.states.pushed
        match = self.sessions.match(request)
        request.prefix_len = match.prefix_len
        request.resumed = match.lent is not None
        if match.lent is not None:
            self.holders[req] = match.lent
        return MatchAnswer(match.prefix_len, match.protected_len, states_freed=self.states.since(states))

    def take_state(self, req: str) -> StateAnswer:
        """A matched request that waits takes the state slot that it will compute in, before it has a row (17850).

        Raises:
            Refusal: there are no recurrent states, the request has a slot or has not matched, or none is free.
        """
        request = self._request(req)
        if not self.states.size:
            raise Refusal("OP-1", "there are no recurrent states")
        if req in self.holders or request.state:
            raise Refusal("OP-1", f"request {req} has a state slot already")
        if request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        if not self.states.available:
            raise Refusal("CAP-1", "no state slot is free", states_short=1)
        request.state = self.states.take()
        return StateAnswer(request.state)

    def free_state(self, req: str) -> StateAnswer:
        """A request that was not admitted gives back the state slot that it took (17850).

        Raises:
            Refusal: it took none, or has a row by now.
        """
        request = self._request(req)
        if not request.state:
            raise Refusal("OP-1", f"request {req} has no state slot without a row")
        return StateAnswer(self._give_state_back(request))

    def _give_state_back(self, request: Request) -> int:
        slot, request.state = request.state, 0
        self.states.give_back([slot])
        return slot

    # Requests that run

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Prefill each request up to its `seq_len`: rows, pages and locks for the whole batch, or nothing (17850).

        Raises:
            Refusal: some request cannot be extended so, the batch breaks BATCH-1 or BATCH-2, or it does not fit.
        """
        batch = [self._check_prefill(req, seq_len) for req, seq_len in reqs]
        self._check_chunking(batch)
        self._check_room(batch)
        copies: list[Copy] = []
        states: dict[str, list[int]] = {}
        rows = [self._begin(prefill, copies, states) for prefill in batch]
        starts, ends = ints([prefill.prefix_len for prefill in batch]), ints([seq_len for _, seq_len in reqs])
        out = self.memory.extend(ints(rows), starts, ends, copies)
        self._note_prepared(ints(rows), starts, out + np.cumsum(ends - starts) - (ends - starts))
        return ExtendAnswer(
            {req: row for (req, _), row in zip(reqs, rows, strict=True)},
            states=states if self.states.size else None,  # type: ignore[arg-type]
        )

    def _check_prefill(self, req: str, seq_len: int) -> Prefill:
        """One request of a prefill batch, or a refusal."""
        request = self._request(req)
        run = self.running.get(req)
        base: KvRecord | Match
        if run is not None:
            if not run.mid_prefill:
                raise Refusal("OP-1", f"the prefill of {req} is complete")
            if self.rows.prepared[run.kv.row]:
                raise Refusal("LAUNCH-1", f"the last chunk of {req} is not launched yet")
            base, prefix_len = run.kv, run.seq_len
        elif request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        elif request.resumed:
            base, prefix_len = self.holders[req], request.prefix_len
            if self.rows.read_len(base.row) > prefix_len:
                raise Refusal("RACE-1", f"a launch in flight reads what {req} would overwrite from {prefix_len} on")
        else:
            prefix_len = request.prefix_len
            base = self.holdings.tree.match(request.tokens.pages[: prefix_len // self.config.page_size])
            if base.pages * self.config.page_size < prefix_len:
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

    def _check_room(self, batch: list[Prefill]) -> None:
        """Refuse a prefill batch whose pages, rows or state slots are not free (17850)."""
        pages = sum(new_pages(prefill.prefix_len, prefill.seq_len, self.config.page_size) for prefill in batch)
        fresh = [prefill.request for prefill in batch if not isinstance(prefill.base, KvRecord)]
        states = sum(self.states.a_run - bool(request.state) for request in fresh) if self.states.size else 0
        pages_short, rows_short = max(0, pages - self.memory.available), max(0, len(fresh) - self.rows.available)
        window_short, states_short = self.memory.windows.short(pages), max(0, states - self.states.available)
        if pages_short or rows_short or window_short or states_short:
            raise Refusal(
                "CAP-1",
                f"{pages} pages, {len(fresh)} rows and {states} state slots are needed; {pages_short} pages, "
                f"{rows_short} rows, {window_short} window pages and {states_short} state slots are short",
                pages_short=pages_short,
                rows_short=rows_short,
                window_short=window_short,
                states_short=states_short,
            )

    def _begin(self, prefill: Prefill, copies: list[Copy], states: dict[str, list[int]]) -> int:
        """The host's side of one request of a batch that fits; returns its row.

        [0, prefix_len)         matched, lent, or written by an earlier chunk: stays. What a fresh row matched is
                                added to `copies`
        [prefix_len, seq_len)   gets slots

        State slots that a fresh row's request does not have yet are taken, and added to `states`.
        """
        request, run, base, prefix_len, seq_len = prefill
        rows, page_size = self.rows, self.config.page_size
        if isinstance(base, KvRecord):
            kv = base
            rows.set_lengths(kv.row, lengths.extend(rows.lengths(kv.row), seq_len, page_size))
        else:
            early = [request.state] if request.state else []
            new = [self.states.take() for _ in range(self.states.a_run - len(early))]
            if new:
                states[request.name] = new
            kv = self.holders[request.name] = KvRecord(rows.take(), base.last_node, early + new)
            request.state = 0
            rows.set_lengths(kv.row, lengths.begin(prefix_len, seq_len, page_size))
            self.holdings.tree.lock(base.last_node)
            position = 0
            for place, count in base.runs:
                copies.append(Copy(kv.row, position, position + count * page_size, place))
                position += count * page_size
        row = kv.row
        if run is None:
            run = self.running[request.name] = Run(request, kv, prefix_len)
            rows.launched[row] = prefix_len
            request.prefix_len = None
            request.extended = True
        run.seq_len = seq_len
        rows.prepared[row] = seq_len
        rows.drafts[row] = 0
        rows.promised[row] = len(request.tokens)
        run.mid_prefill = prefill.is_chunk
        if run.mid_prefill:
            self.chunked.add(request.name)
        else:
            self.chunked.discard(request.name)
        return row

    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        """Make room for `n` tokens of each request past its committed ones; one alone is committed at once (994).

        The step's tokens need not be there yet: with overlap the launch in flight is about to bring them.

        Raises:
            Refusal: `n` is no number of tokens, some request cannot decode now, or the batch does not fit.
        """
        self.memory.run_decode(self.stage_decode(reqs, n), len(reqs))
        return DecodeAnswer()

    def stage_decode(self, reqs: list[str], n: int = 1) -> Slot:
        """The host's part of `decode`: everything but the kernel, whose words are in the slot that is returned.

        Raises:
            Refusal: as `decode`.
        """
        rows, committed = self._check_decode(reqs, n)
        allocated, out, slot = self.memory.stage_decode(rows, committed, self.rows.allocated[rows], n)
        self._decoded(rows, committed, allocated, n, out)
        return slot

    def _check_decode(self, reqs: list[str], n: int) -> tuple[Ints, Ints]:
        """The rows and committed lengths of a decode step, or a refusal for anything but lack of room."""
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        if n > 1 and self.states.size:
            raise Refusal("OP-1", "recurrent states cannot take a speculative step back")
        runs, rows = self._running_batch(reqs)
        table = self.rows
        committed = table.committed[rows]
        drafts = table.drafts[rows]
        ready = (committed < table.promised[rows]) & ((table.prepared[rows] | drafts) == 0)
        if not ready.all() or not self.chunked.isdisjoint(reqs):
            unready = next(
                run for run, is_ready in zip(runs, ready.tolist(), strict=True) if run.mid_prefill or not is_ready
            )
            rule = "SPEC-1" if drafts.any() else "OP-1"
            raise Refusal(rule, f"{unready.name} has a step that is not done or verified, or no token to decode")
        longest = int(committed.max()) + n
        if longest > self.config.max_context_len:
            raise Refusal("LEN-1", f"a request would grow to {longest}, past {self.config.max_context_len}")
        return rows, committed

    def _decoded(self, rows: Ints, committed: Ints, allocated: Ints, n: int, out: int) -> None:
        """Note a decode step that is on its way."""
        table = self.rows
        table.allocated[rows] = allocated
        table.prepared[rows] = committed + n
        table.drafts[rows] = n if n > 1 else 0
        if n == 1:
            table.committed[rows] = committed + 1
        self._note_prepared(rows, committed, out + n * np.arange(len(rows)))

    def _note_prepared(self, rows: Ints, starts: Ints, outs: Ints) -> None:
        """Remember where in `out_cache_loc` a batch lies, for its launch."""
        table = self.rows
        table.start[rows] = starts
        table.out[rows] = outs
        table.batch[rows] = self.memory.batches - 1

    def launch(self, launch: int, reqs: list[str], forward: Forward | None = None) -> Done:
        """Hand what was prepared to the device, which reads the rows from now on (17850).

        `forward` is this launch's own forward pass, where it is not the manager's.

        Raises:
            Refusal: a launch of this number is in flight, or some request has nothing prepared.
            ValueError: a forward pass is attached, and what it reads of `out_cache_loc` was prepared too long ago.
        """
        if any(launch == other.number for other in self.launches):
            raise Refusal("OP-1", f"launch {launch} is in flight")
        runs, rows = self._running_batch(reqs)
        table = self.rows
        ends = table.prepared[rows]
        if not ends.all():
            idle = next(run for run, end in zip(runs, ends.tolist(), strict=True) if not end)
            raise Refusal("OP-1", f"{idle.name} has nothing to launch")
        forward = forward or self.forward
        done = None if forward is None else self._hand_over(forward, launch, reqs, rows, ends)

        sampled, last = runs, rows
        if not self.chunked.isdisjoint(reqs):
            sampled = [run for run in runs if not run.mid_prefill]
            last = ints([run.kv.row for run in sampled])
        drafted: list[Run] = []
        drafts = table.drafts[last]
        if drafts.any():
            drafted = [run for run, count in zip(sampled, drafts.tolist(), strict=True) if count]
            sampled = [run for run, count in zip(sampled, drafts.tolist(), strict=True) if not count]
        if self.config.tracking_states:
            borders = ends - ends % self.config.page_size
            for i in np.flatnonzero(borders > table.start[rows]).tolist():
                runs[i].kv.pass_border(int(borders[i]))
        table.launched[rows] = ends
        table.prepared[rows] = 0
        table.promised[last] += 1
        table.begin_read(rows, ends)
        self.launches.append(Flight(launch, sampled, drafted, done))
        return Done()

    def _hand_over(self, forward: Forward, launch: int, reqs: list[str], rows: Ints, ends: Ints) -> Event:
        """Enqueue a forward pass behind the row writes that it depends on; returns the event of its end."""
        table, memory, lanes = self.rows, self.memory, self.lanes
        batches = set(table.batch[rows].tolist())
        if min(batches) < memory.oldest_batch:
            raise ValueError(
                f"launch {launch} comes too late: {OUT_BUFFERS} batches were prepared since, or a larger one"
            )
        batch = ForwardBatch(launch, list(reqs), rows, table.start[rows], ends, table.out[rows])
        written, done = lanes.event(), lanes.event()
        lanes.scheduler.record(written)
        lanes.forward.wait(written)
        forward(batch)
        lanes.forward.record(done)
        memory.out_is_read(batches, done)
        return done

    def complete(self, launch: int, tokens: dict[str, int]) -> Done:
        """The oldest launch in flight has completed and brought `tokens` (17850).

        Nothing waits here but the scheduler's lane: rows that were withheld for the launch are written again only
        behind its end.

        Raises:
            Refusal: another launch is older, or `tokens` are not for exactly the runs that it sampled.
        """
        flight = self.launches[0] if self.launches else None
        if flight is None or flight.number != launch:
            in_flight = any(launch == other.number for other in self.launches)
            raise Refusal("LAUNCH-1" if in_flight else "OP-1", f"launch {launch} is not the oldest in flight")
        due = [run for run in flight.sampled if not run.ended] if flight.thinned else flight.sampled
        try:
            brought = [tokens[run.name] for run in due]
        except KeyError as missing:
            raise Refusal("CHUNK-1", f"no token came for {missing.args[0]}") from None
        if len(tokens) > len(brought):
            stranger = min(tokens.keys() - {run.name for run in due})
            raise Refusal("CHUNK-1", f"a token came for {stranger}, which launch {launch} did not sample for")
        for run, token in zip(due, brought, strict=True):
            run.tokens.append(token)
        for run in flight.drafted:
            run.verifiable = True
        self.launches.popleft()
        if flight.done is not None:
            self.lanes.scheduler.wait(flight.done)
        self.rows.end_read()
        return Done()

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit `accepted` positions of the completed speculative launch; the request keeps `tokens` (22862).

        Raises:
            Refusal: nothing waits for a verify, or the amounts are not what was written.
        """
        run = self._run(req)
        if not run.verifiable:
            raise Refusal("SPEC-1", f"{req} has no completed speculative launch to verify")
        row = run.kv.row
        most = int(self.rows.drafts[row])
        if not 1 <= accepted <= most:
            raise Refusal("SPEC-1", f"{accepted} accepted positions are not in 1..{most}")
        if not 1 <= len(tokens) <= accepted:
            raise Refusal("SPEC-1", f"{len(tokens)} tokens for {accepted} accepted positions")
        run.verifiable = False
        self.rows.drafts[row] = 0
        self.rows.set_lengths(row, lengths.verify(self.rows.lengths(row), accepted, self.config.page_size))
        for token in tokens:
            run.tokens.append(token)
        self.rows.promised[row] += len(tokens) - 1
        return Done()

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """Publish what a launched prefill wrote, so that others can match it while the request still runs (20476).

        Raises:
            Refusal: something prepared is not launched, the prefill is not where `chunked` says, or the prompt's
                next token is not sampled yet.
        """
        run = self._run(req)
        if self.rows.prepared[run.kv.row]:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        if chunked != run.mid_prefill:
            raise Refusal("CHUNK-1", f"chunked is {chunked}, but {req} has {run.seq_len} of {len(run.tokens)} tokens")
        if not chunked and len(run.tokens) == run.seq_len:
            raise Refusal("CHUNK-1", f"the token that follows the prompt of {req} is not sampled yet")
        cached, taken = self.sessions.cache_unfinished(run)
        return PublishAnswer(int(self.rows.protected[run.kv.row]), state_cached=cached, state_taken=taken)

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """Give back the window sides that a running request has left behind (20070).

        A chunk in flight may still read them. They stay what they are until it has: only a later forward pass writes
        them again.

        Raises:
            Refusal: the request is not running, or there is no sliding window.
        """
        run = self._run(req)
        if not self.config.sliding_window:
            raise Refusal("OP-1", "there is no sliding window")
        row = run.kv.row
        following = min(int(self.rows.committed[row]), int(self.rows.launched[row]), len(run.tokens) - 1)
        return SwaEvictAnswer(self.holdings.shed(run.kv, following))

    # Ways out. Each ends in `Holdings.release`, or in a session's slot.

    def finish(self, req: str) -> Released:
        """The request is complete: publish and release, or leave the memory to the session (994, 22862).

        Raises:
            Refusal: the request is not running, or has a prefill or a decode step that is not done.
        """
        run = self._run(req)
        if run.mid_prefill:
            raise Refusal("OP-1", f"{req} is in the middle of its prefill")
        if self.rows.prepared[run.kv.row]:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        states, cached = self.states.pushed, None
        self._end_run(run)
        del self.requests[req]
        slot = run.request.slot
        if slot is None:
            kept = min(int(self.rows.committed[run.kv.row]), len(run.tokens))
            self.holdings.publish(run.kv, run.tokens, kept)
            cached = self.holdings.leave_state(run.kv)
            self.holdings.release(run.kv)
        else:
            self.sessions.save(slot, run)
            slot.history = run.tokens
            self.sessions.end_turn(slot)
        return self._released(states, cached)

    def retract(self, req: str) -> Released:
        """Take a running request's memory away; it waits again with its tokens (994, 22862).

        Raises:
            Refusal: the request is not running.
        """
        run, states = self._run(req), self.states.pushed
        self._end_run(run)
        slot = run.request.slot
        if slot is None:
            self.holdings.release(run.kv)
        else:
            self.sessions.save(slot, run)
        return self._released(states)

    def abort(self, req: str) -> Released:
        """The request leaves without a result, wherever it is (22862).

        A turn that ran has overwritten its session's KV with tokens that the client never got: the KV is wiped. One
        that never ran leaves the slot as it was.

        Raises:
            Refusal: there is no such request.
        """
        request, states = self._request(req), self.states.pushed
        run = self.running.get(req)
        if run is not None:
            self._end_run(run)
        if request.state:
            self._give_state_back(request)
        del self.requests[req]
        slot = request.slot
        kv = run.kv if run is not None else self.holders.pop(req, None)
        if slot is None:
            if kv is not None:
                self.holdings.release(kv)
        else:
            if kv is not None:
                self.sessions.take_back(slot, kv)
            if request.extended:
                self.sessions.wipe(slot)
            self.sessions.end_turn(slot)
        return self._released(states)

    def close_session(self, session: str) -> Released:
        """Release an idle session; with a turn in flight the release waits for it (22213).

        Raises:
            Refusal: the session is not open, or closing already.
        """
        slot, states = self.sessions.slot(session), self.states.pushed
        if slot.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        slot.closing = True
        if slot.turn is None:
            self.sessions.close(slot)
        return self._released(states)

    def preempt(self, session: str) -> Released:
        """Release an idle slot's memory; the session keeps its tokens and its next turn prefills again.

        Raises:
            Refusal: the slot holds nothing, or has lent it.
        """
        slot, states = self.sessions.slot(session), self.states.pushed
        if slot.kv is None or slot.lent:
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        self.sessions.wipe(slot)
        return self._released(states)

    def evict_pages(self, n: int, window: int = 0, states: int = 0) -> Evicted:
        """Free at least `n` pages of the prefix store, `window` window sides and `states` states, or all there are.

        What somebody has locked stays. Window sides and states may go without their pages; pages take both along.

        Raises:
            Refusal: nothing is asked for, or a pool is named that there is none of.
        """
        if min(n, window, states) < 0 or not n + window + states:
            raise Refusal("OP-1", f"n is {n}, window {window}, states {states}")
        if window and not self.config.sliding_window:
            raise Refusal("OP-1", "there is no sliding window")
        if states and not self.states.size:
            raise Refusal("OP-1", "there are no recurrent states")
        return self.holdings.evict(n, window, states)

    def _released(self, states: int, cached: int | None = None) -> Released:
        """The answer of what lets memory go: the state slots that went back since `states` had."""
        return Released(states_freed=self.states.since(states), state_cached=cached)

    # Looking

    def report(self, mode: Literal["idle", "busy"] = "busy") -> Figures:
        """The manager's own figures, each pool's by its own definition: their sum is the check (20070, 22213).

        Raises:
            Refusal: the mode is `idle`, but a request holds memory.
        """
        if mode == "idle" and self.holders:
            raise Refusal("OP-1", f"{len(self.holders)} requests hold memory: this is not idle")
        page_size = self.config.page_size
        idle_slots = [kv for _, kv in self.sessions.idle()]
        told = Figures(
            available=self.memory.available * page_size,
            evictable=self.holdings.tree.evictable * page_size,
            protected=self.holdings.tree.protected * page_size,
            session_held=self.holdings.held_tokens(idle_slots),
            uncached=self.holdings.held_tokens(self.holders.values()),
            rows_available=self.rows.available,
            rows_requests=len(self.holders),
            rows_sessions=len(idle_slots),
            rows_withheld=self.rows.withheld,
        )
        tree, holders = self.holdings.tree, self.holders.values()
        if self.config.sliding_window:
            told.window_available = self.memory.windows.available * page_size
            told.window_evictable = tree.window_evictable * page_size
            told.window_protected = tree.window_protected * page_size
            told.window_session_held = self.holdings.window_held_tokens(idle_slots)
            told.window_uncached = self.holdings.window_held_tokens(holders)
        if self.states.size:
            told.states_available = self.states.available
            told.states_evictable = tree.states_evictable
            told.states_protected = tree.states_protected
            told.states_sessions = sum(len(kv.states) for kv in idle_slots)
            early = sum(request.state > 0 for request in self.requests.values())
            told.states_requests = sum(len(kv.states) for kv in holders) + early
        return told

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

    def _running_batch(self, reqs: list[str]) -> tuple[list[Run], Ints]:
        """The runs and the rows of all requests of a batch, or a refusal."""
        last = self._last_batch
        if last is not None and last[0] == reqs:
            return last[1], last[2]
        _check_batch(reqs)
        try:
            runs = [self.running[req] for req in reqs]
        except KeyError as missing:
            raise Refusal("OP-1", f"request {missing.args[0]} is not running") from None
        rows = ints([run.kv.row for run in runs])
        self._last_batch = list(reqs), runs, rows
        return runs, rows

    def _end_run(self, run: Run) -> None:
        """Nothing that a launch in flight samples comes to a run that has ended, and it holds its row no longer."""
        del self.running[run.name], self.holders[run.name]
        self.chunked.discard(run.name)
        run.ended = True
        for flight in self.launches:
            flight.thinned = True
        self._last_batch = None


def _check_batch(reqs: Sequence[str]) -> None:
    """Refuse an empty batch, and a request that is named twice."""
    if not reqs:
        raise Refusal("OP-1", "the batch is empty")
    if len(set(reqs)) < len(reqs):
        raise Refusal("OP-1", "a request is in the batch twice")
