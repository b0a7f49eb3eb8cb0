"""Continuous batching: turns requests into operations, and drives whatever carries them out.

A cycle, in order:

    receive             requests come in while few wait; a turn only after the turn before it
    prefill             the request that is in the middle of its prefill, then new ones while tokens and room last
    or decode           one step for everything that runs; with `mixed_chunk` both share a launch
    launch, complete    with `overlap` the launch before this one completes only now
    process             tokens arrive; prompts are published, finished requests leave

A refusal for lack of room (CAP-1) is answered by making room, what costs least first: window sides that are left
behind, what the prefix store has and nobody has locked, idle sessions (least recently used first), KV lent to turns
that wait. If that is not enough, a prefill waits and a decode retracts the request that was admitted last, but never
the only one. So the oldest request always goes on, and everything ends (LIVE-1).
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable

from kvref import policy
from kvref.policy import SchedulerConfig
from kvref.scheduler_hybrid import HybridPools
from kvref.scheduler_req import Flight, GenerateReq, Req, Session
from kvref.scheduler_sessions import SessionController
from kvref.shortage import NOTHING, Shortage, evicted, released, shortage
from kvspec.events import (
    Abort,
    CacheUnfinished,
    Complete,
    Config,
    Decode,
    Evict,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    Refusal,
    Report,
    Retract,
    Step,
    Submit,
    Verify,
)
from kvspec.pages import ceil_pages
from kvspec.rules import Violation

MIN_WAITING = 16
"""Requests are received while fewer wait."""
MAX_RECEIVED_PER_ROW = 4
"""Requests that are received and not done, turns behind their session's other turns included, for each row."""


class NotObserved(Exception):
    """The implementation leaves something out of an answer that the scheduler cannot do without."""


class Scheduler:
    """Runs requests to their end on any implementation, through nothing but `step`."""

    def __init__(
        self,
        step: Step,
        memory: Config,
        requests: Iterable[GenerateReq],
        config: SchedulerConfig = SchedulerConfig(),  # noqa: B008 - it is immutable
    ) -> None:
        """Schedule `requests`, which are drawn one by one, on an implementation of the size `memory`.

        Raises:
            ValueError: with these switches nothing could ever run in this memory.
        """
        self.step = step
        self.memory = memory
        self.config = config = policy.fitted(config, memory)
        self.waiting_queue: deque[Req] = deque()
        self.running_batch: list[Req] = []
        """What decodes, in the order of admission."""
        self.chunked_req: Req | None = None
        """The request in the middle of its prefill: the one admitted last."""
        self.new_token_ratio = config.init_new_token_ratio
        self.finished = 0
        """Requests that ran to their end."""
        self.rejected: dict[str, str] = {}
        """Requests that could never run, and why."""
        self.aborted: list[str] = []
        """Requests that were aborted on their way."""

        self._requests = iter(requests)
        self._received = 0
        self._sessions = SessionController(step)
        self._hybrid = HybridPools(step, memory, config.drafts)
        self._flights: deque[Flight] = deque()
        self._launches = 0
        self._completed = 0
        self._batch_is_full = False
        """There was no room for another request, and nothing has left since."""
        self._decode_due = False
        """A request was retracted: what runs must decode before anything is prefilled, or the request comes straight
        back, is retracted again, and this never ends (994)."""
        self._last_finished = ""
        self._last_retract = self._last_abort = self._last_close = 0
        self._aborts = self._closes = 0

    def run(self) -> None:
        """Run all requests to their end.

        Raises:
            NotObserved: the implementation does not say how long a matched prefix is.
            Violation: LIVE-1, nothing can go on although everything was given up that can be.
        """
        while self.cycle():
            pass

    def cycle(self) -> bool:
        """Do one cycle, and return whether there was anything to do.

        Raises:
            NotObserved: the implementation does not say how long a matched prefix is.
            Violation: LIVE-1, nothing can go on although everything was given up that can be.
        """
        self._disturb()
        self._receive()
        if not self._has_work() and not self._flights:
            return False
        prefill, decode = self._get_next_batch_to_run()
        if prefill or decode:
            self._launch(prefill, decode)
        elif not self._flights and self._has_work():
            raise Violation("LIVE-1", "requests wait, but neither prefill nor decode finds room in the empty memory")
        # With nothing to launch, what is in flight may hold the rows, or the results, that all the others wait for.
        while len(self._flights) > (1 if self.config.overlap and (prefill or decode) else 0):
            self._process(self._flights.popleft())
        return True

    def _has_work(self) -> bool:
        return bool(self.waiting_queue or self.running_batch or self.chunked_req)

    # Requests come in

    def _receive(self) -> None:
        while len(self.waiting_queue) < MIN_WAITING and self._received < MAX_RECEIVED_PER_ROW * self.memory.num_rows:
            request = next(self._requests, None)
            if request is None:
                return
            self._receive_one(request)

    def _receive_one(self, request: GenerateReq) -> None:
        page_size = self.memory.page_size
        page_keys = sum([isinstance(element, str) for element in request.tokens])
        prompt_len = len(request.tokens) + page_keys * (page_size - 1)
        reason = policy.never_fits(prompt_len, len(request.outputs), self.config.drafts, self.memory)
        session = None if request.session is None else self._sessions.get(request.session)
        if reason is not None:
            self.rejected[request.name] = reason
        else:
            req = Req(request, prompt_len, session)
            self._received += 1
            if session is None:
                self.step(Submit(req.name, req.tokens))
                self.waiting_queue.append(req)
            else:
                session.turns.append(req)
        if session is not None:
            session.complete = request.last_turn
            self._await_next_turn(session)

    def _await_next_turn(self, session: Session) -> None:
        req = self._sessions.next_turn(session)
        if req is not None:
            self.waiting_queue.append(req)

    # What to run

    def _get_next_batch_to_run(self) -> tuple[list[tuple[Req, int]], list[Req]]:
        """Requests to prefill, each with the length it will have reached, and requests to decode; both are prepared."""
        if self.config.mixed_chunk:
            decode = self._prepare_decode()
            return self._prepare_prefill(), decode
        prefill = self._prepare_prefill()
        return prefill, [] if prefill else self._prepare_decode()

    def _prepare_prefill(self) -> list[tuple[Req, int]]:
        """Extend as many requests as tokens and room allow. Those that are not admitted match again next time."""
        if self._decode_due and self.running_batch:
            return []
        limit = self.memory.num_rows - len(self.running_batch)
        room = None
        while limit:
            if room is None and self.waiting_queue and not self._batch_is_full:
                room = self._room()
            batch = self._plan_prefill(limit, room or 0)
            self._hybrid.give_back(batch)
            if not batch:
                return []
            try:
                self.step(Extend([(req.name, seq_len) for req, seq_len in batch]))
            except Refusal as refusal:
                # What is evicted may be what was matched, so all of the batch is matched again (STORE-5). But nothing
                # else is: a turn whose lend was ended to make room would only take it again.
                limit = len(batch) if self._make_room(refusal, batch) else len(batch) - 1
                continue
            self._admit(batch)
            return batch
        self._hybrid.give_back([])
        return []

    def _plan_prefill(self, limit: int, room: int) -> list[tuple[Req, int]]:
        """At most `limit` requests for a prefill batch, new ones while they fit into `room` pages (20476)."""
        batch: list[tuple[Req, int]] = []
        self._hybrid.begin_plan()
        budget = self.config.max_prefill_tokens
        may_chunk = True
        if self.chunked_req is not None:
            req = self.chunked_req
            count = policy.prefill_len(req.length - req.seq_len, budget, self.config, may_chunk=True)
            batch.append((req, req.seq_len + count))
            budget -= count
            may_chunk = req.seq_len + count == req.length
        if self._batch_is_full and (batch or self.running_batch):
            return batch
        for req in self.waiting_queue:
            if not budget or len(batch) == limit:
                break
            if req.session is not None and req.session.busy_until > self._completed:
                continue  # a launch in flight still reads the row that it would write (RACE-1)
            self._match(req)
            growth = policy.expected_growth(req.remaining, self.new_token_ratio)
            need = ceil_pages(req.length + growth, self.memory.page_size)
            if not req.lent:  # a slot's pages were counted as room before they were lent
                need -= req.prefix_len // self.memory.page_size
            if not (self._hybrid.plan(req) and need <= room) and (batch or self.running_batch):
                self._batch_is_full = True
                break
            count = policy.prefill_len(req.length - req.prefix_len, budget, self.config, may_chunk=may_chunk)
            if not count:
                break
            self._hybrid.take_state(req)
            batch.append((req, req.prefix_len + count))
            budget -= count
            room -= need
            may_chunk = may_chunk and req.prefix_len + count == req.length
        return batch

    def _room(self) -> int:
        """Pages for new requests: what is free or can be given up, less what the admitted ones will still need.

        Two counts of the former, each too low: the report does not tell what only idle sessions have locked, and
        what the admitted ones hold is less where they share it. The larger one is taken.
        """
        figures = self.step(Report("busy"))
        admitted = self.running_batch if self.chunked_req is None else [*self.running_batch, self.chunked_req]
        self._hybrid.measure(figures, admitted)
        known = (figures.available, figures.evictable, figures.session_held)
        tokens = [figure for figure in known if figure is not None]
        if len(tokens) < len(known):
            return self.memory.num_pages  # an engine that does not tell is asked by trying
        page_size = self.memory.page_size
        remaining = sum([req.output_len - req.produced for req in self.running_batch])
        committed = [req.prompt_len + req.produced - 1 for req in self.running_batch]
        growth = policy.expected_growth(remaining, self.new_token_ratio)
        held = sum([ceil_pages(length, page_size) for length in committed])
        if self.chunked_req is not None:
            req = self.chunked_req
            held += ceil_pages(req.seq_len, page_size)
            growth += req.length - req.seq_len + policy.expected_growth(req.remaining, self.new_token_ratio)
        reserved = policy.next_decode_pages(committed, self.config.decode_len, page_size)
        reserved += ceil_pages(growth, page_size)
        return max(sum(tokens) // page_size, self.memory.num_pages - held) - reserved

    def _match(self, req: Req) -> None:
        prefix_len = self.step(MatchPrefix(req.name)).prefix_len
        if prefix_len is None:
            raise NotObserved(f"match_prefix of {req.name} does not tell prefix_len, and scheduling needs it")
        req.prefix_len = prefix_len
        if req.session is not None:
            self._sessions.lend(req)

    def _admit(self, batch: list[tuple[Req, int]]) -> None:
        """The batch was extended."""
        chunked_req = None
        ending = []
        self._hybrid.admitted(batch)
        for req, seq_len in batch:
            if req is not self.chunked_req:
                self.waiting_queue.remove(req)
                req.lent = False
                req.ran = True
                req.swa_evicted_seqlen = 0
            req.seq_len = seq_len
            if seq_len < req.length:
                chunked_req = req
            else:
                ending.append(req)
        self.chunked_req = chunked_req
        # A new list: launches in flight keep the old one.
        self.running_batch = self.running_batch + ending

    def _prepare_decode(self) -> list[Req]:
        """Make room for one decode step of everything that runs, retracting as few as need be."""
        n = self.config.decode_len
        if n > 1 and any(flight.decode for flight in self._flights):
            return []  # a speculative step begins where the one before it was verified to
        if self.memory.sliding_window:
            for req in self.running_batch:
                self._hybrid.slide(req, req.length - 1)
        while self.running_batch:
            try:
                self.step(Decode([req.name for req in self.running_batch], n))
            except Refusal as refusal:
                if self._make_room(refusal):
                    continue
                self._decode_due = True
                if self._flights:
                    return []  # whoever finishes in a launch in flight needs no retract
                self._retract_last(refusal)
            else:
                self._decode_due = False
                self.new_token_ratio = policy.decayed(self.new_token_ratio, self.config)
                return self.running_batch
        return []

    # Room

    def _make_room(self, refusal: Refusal, batch: Iterable[tuple[Req, int]] = ()) -> bool:
        """Give up what costs least until `refusal` is answered; whether anything was. Spares the turns of `batch`."""
        short = shortage(refusal)
        made = False
        if short.window > 0:
            slid = Shortage(window=self._hybrid.slide_all(self.running_batch, self.chunked_req))
            short = short.less(slid)
            made = slid != NOTHING
        while short.is_left:
            if short.is_evictable:
                gone = self._evict(short)
                made = made or gone != NOTHING
                short = short.less(gone)
                if not short.is_left:
                    break
            preempted = self._sessions.preempt_oldest(self._completed)
            if preempted is None:
                return self._end_lend({req for req, _ in batch}) or made
            short = short.less(released(preempted))
            made = True
        return made

    def _evict(self, short: Shortage) -> Shortage:
        """Evict what is short, and a page for each request that runs: the next shortage is a page's growth away."""
        growth = len(self.running_batch)
        pages = short.pages + growth if short.pages > 0 else 0
        window = short.window + growth if short.window > 0 else 0
        return evicted(self.step(Evict(pages, window, max(0, short.states))))

    def _end_lend(self, spared: set[Req]) -> bool:
        """Send a turn that waits with its session's KV back to the state before it matched; whether there was one.

        The abort ends the lend, and the slot can be preempted then.
        """
        for req in self.waiting_queue:
            if req.lent and req not in spared:
                break
        else:
            return False
        assert req.session is not None
        if req.session.closing:  # which has no slot to go back to: the client is gone
            self._abort(req)
            return True
        self.step(Abort(req.name))
        self.step(Submit(req.name, req.tokens_so_far(), req.session.name))
        req.lent = False
        if not req.ran:
            self._sessions.take_back(req.session, req.session.busy_until)
        req.ran = False
        return True

    def _retract_last(self, refusal: Refusal) -> None:
        """Retract the request that was admitted last, but never the only one."""
        if self.chunked_req is not None:
            self._retract(self.chunked_req)
        elif len(self.running_batch) > 1:
            self._retract(self.running_batch[-1])
        else:
            name = self.running_batch[0].name
            raise Violation("LIVE-1", f"{name} runs alone and all else was given up, but it cannot go on: {refusal}")

    def _retract(self, req: Req) -> None:
        self.step(Retract(req.name))
        self._leave({req})
        if req.session is not None:
            self._sessions.take_back(req.session, self._launches)
        self.waiting_queue.appendleft(req)
        self.new_token_ratio = self.config.init_new_token_ratio
        self._decode_due = True

    # Launches

    def _launch(self, prefill: list[tuple[Req, int]], decode: list[Req]) -> None:
        """Hand the batch over, and publish the chunk in it before its next one is prepared."""
        self._launches += 1
        names = [req.name for req, _ in prefill]
        self.step(Launch(self._launches, names + [req.name for req in decode]))
        ending = [req for req, seq_len in prefill if seq_len == req.length]
        self._flights.append(Flight(self._launches, ending, decode, set()))
        if self.chunked_req is not None and prefill:
            self.step(CacheUnfinished(self.chunked_req.name, chunked=True))
            self._hybrid.slide(self.chunked_req, self.chunked_req.seq_len)

    def _process(self, flight: Flight) -> None:
        """A launch has completed: tokens arrive, and what they end leaves (994)."""
        ending, decoding = flight.still(flight.prefill), flight.still(flight.decode)
        sampling = ending if self.config.drafts else ending + decoding
        tokens = {req.name: req.outputs[req.produced] for req in sampling}
        self.step(Complete(flight.launch, tokens))
        self._completed = flight.launch
        done = set()
        for req in sampling:
            req.produced += 1
            if req.produced == req.output_len:
                done.add(req)
        if self.config.drafts:
            done.update(req for req in decoding if self._verify(req))
        for req in ending:
            if req not in done:
                self.step(CacheUnfinished(req.name))
        if done:
            self._finish(done)

    def _verify(self, req: Req) -> bool:
        """Commit what the draft model got right, keep what is not past the end (22862); whether the request is done."""
        count = policy.accepted(req.length, self.config.drafts)
        tokens = list(req.outputs[req.produced : req.produced + count])
        self.step(Verify(req.name, count, tokens))
        req.produced += len(tokens)
        return req.produced == req.output_len

    # Requests leave

    def _finish(self, done: set[Req]) -> None:
        finished = [req for req in self.running_batch if req in done]
        self._leave(done)
        for req in finished:
            self.step(Finish(req.name))
            self._last_finished = req.name
            self.finished += 1
            self._end(req, keeps_kv=True)

    def _leave(self, reqs: set[Req]) -> None:
        """Requests stop running."""
        self.running_batch = [req for req in self.running_batch if req not in reqs]
        if self.chunked_req in reqs:
            self.chunked_req = None
        self._batch_is_full = False
        for flight in self._flights:
            flight.left.update(reqs)

    def _end(self, req: Req, *, keeps_kv: bool) -> None:
        """The request is no more; its session goes on with its next turn, if there is one."""
        self._received -= 1
        session = req.session
        if session is not None:
            if keeps_kv:
                self._sessions.take_back(session, self._launches)
            self._sessions.end_turn(session)
            self._await_next_turn(session)

    def _abort(self, req: Req) -> None:
        """A client is gone. A turn that ran takes its session's KV with it (22862)."""
        self.step(Abort(req.name))
        self.aborted.append(req.name)
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
        self._leave({req})
        session = req.session
        if session is not None and req.ran:
            self._sessions.forget_kv(session)
        self._end(req, keeps_kv=req.lent and not req.ran)

    # Events that no request asks for, to exercise every way out at every moment

    def _disturb(self) -> None:
        config, now = self.config, self._launches
        if policy.is_due(now, self._last_retract, config.retract_interval) and not self._decode_due:
            self._last_retract = now
            if len(self.running_batch) > 1:
                self._retract(self.running_batch[-1])
        if policy.is_due(now, self._last_abort, config.abort_interval):
            self._last_abort = now
            self._abort_some()
        if policy.is_due(now, self._last_close, config.close_interval):
            self._last_close = now
            self._closes += 1
            session = self._sessions.closable(in_flight=self._closes % 2 == 0)
            if session is not None:
                self._sessions.close(session)

    def _abort_some(self) -> None:
        """Abort, in turns, a request that waits, is chunked, runs, or has just finished."""
        self._aborts += 1
        moments: list[Callable[[], Req | None]] = [
            lambda: self.waiting_queue[0] if self.waiting_queue else None,
            lambda: self.chunked_req,
            lambda: self.running_batch[-1] if self.running_batch else None,
        ]
        moment = self._aborts % (len(moments) + 1)
        if moment < len(moments):
            req = moments[moment]()
            if req is not None:
                self._abort(req)
        elif self._last_finished:
            # The engine does not know yet that the client has its answer: refused, and nothing changes (OP-1).
            with contextlib.suppress(Refusal):
                self.step(Abort(self._last_finished))
