"""Continuous batching: turns requests into operations, and drives any implementation of them.

A cycle, in order:

    receive             requests are admitted while the queue is short; a turn only after the turn before it
    prefill             the request in the middle of its prefill, then new ones while tokens and room last
    or decode           one step for all running requests; with `mixed_chunk` both share a launch
    launch, complete    with `overlap` earlier launches complete only now, or later
    process             tokens arrive; prompts are published, finished requests leave

After a refusal for lack of room (CAP-1) the scheduler makes room, the cheapest first: window sides behind the window,
unlocked prefixes, idle sessions (least recently used first), KV lent to waiting turns. If that is not enough, a prefill
waits, and a decode retracts the request that was admitted last, but never the last one that runs. So the oldest request
always makes progress, and every request ends (LIVE-1).

One layer for each concern, each built on those before it:

    state      waiting and running requests, launches in flight
    release    requests that finish, are retracted or aborted
    room       what to evict, preempt or retract if room is short
    batches    admission, prefill lengths, decode batches
    Scheduler  the cycle, here

`policy` has the decisions as functions of a few integers, `shortage` the shortage of each pool, `req` requests,
sessions and launches, `sessions` the order of their turns, `hybrid` window pages and state slots.
"""

import contextlib
from collections.abc import Callable

from kvref.scheduler import policy
from kvref.scheduler.batches import Batching, NotObserved
from kvref.scheduler.req import Flight, GenerateReq, Req
from kvspec.events import Abort, CacheUnfinished, Complete, Launch, Refusal, Submit, Verify
from kvspec.rules import Violation

__all__ = ["MAX_RECEIVED_PER_ROW", "MIN_WAITING", "NotObserved", "Scheduler"]

MIN_WAITING = 16
"""Requests are received while fewer wait."""
MAX_RECEIVED_PER_ROW = 4
"""Received and unfinished requests for each row, queued turns of sessions included."""


class Scheduler(Batching):
    """Runs requests to their end on any implementation, through `step` alone."""

    def run(self) -> None:
        """Run all requests to their end.

        Raises:
            NotObserved: the implementation does not answer the length of a match.
            Violation: LIVE-1, no request can go on, and nothing is left to evict, preempt or retract.
        """
        while self.cycle():
            pass

    def cycle(self) -> bool:
        """Do one cycle, and return whether there was anything to do.

        Raises:
            NotObserved: the implementation does not answer the length of a match.
            Violation: LIVE-1, no request can go on, and nothing is left to evict, preempt or retract.
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
        # With nothing to launch, launches in flight may hold the rows, or the results, that all requests wait for.
        unseen = self._unseen() if prefill or decode else 0
        while len(self._flights) > unseen:
            self._process(self._flights.popleft())
        return True

    def _unseen(self) -> int:
        """The number of launches that stay in flight while the next one is prepared."""
        overlap = self.config.overlap
        return self._completions.randint(0, overlap) if self.config.completion_seed else overlap

    def _has_work(self) -> bool:
        return bool(self.waiting_queue or self.running_batch or self.chunked_req)

    # Arrival

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
        reason = policy.never_fits(prompt_len, len(request.outputs), self.config.ahead, self.memory)
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

    # Launches

    def _launch(self, prefill: list[tuple[Req, int]], decode: list[Req]) -> None:
        """Launch the batch, and publish its chunk before the next chunk is prepared."""
        self._launches += 1
        names = [req.name for req, _ in prefill]
        self.step(Launch(self._launches, names + [req.name for req in decode]))
        ending = [req for req, seq_len in prefill if seq_len == req.length]
        self._flights.append(Flight(self._launches, ending, decode, set()))
        if self.chunked_req is not None and prefill:
            self.step(CacheUnfinished(self.chunked_req.name, chunked=True))
            self._hybrid.slide(self.chunked_req, self.chunked_req.seq_len)

    def _process(self, flight: Flight) -> None:
        """Process a completed launch: tokens arrive, and finished requests leave (994)."""
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
        """Commit the accepted drafts, and keep those before the request's end (22862). Returns whether it is done."""
        count = policy.accepted(req.length, self.config.drafts)
        tokens = list(req.outputs[req.produced : req.produced + count])
        self.step(Verify(req.name, count, tokens))
        req.produced += len(tokens)
        return req.produced == req.output_len

    # Unrequested events, to exercise every release in every phase

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
            # An abort after the finish is refused and changes nothing (OP-1).
            with contextlib.suppress(Refusal):
                self.step(Abort(self._last_finished))
