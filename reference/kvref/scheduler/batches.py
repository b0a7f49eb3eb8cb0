"""The next batch: admission, prefill lengths, decode batches."""

from kvref.scheduler import policy
from kvref.scheduler.req import Req
from kvref.scheduler.room import MakingRoom
from kvspec.events import Decode, Extend, MatchPrefix, Refusal, Report
from kvspec.pages import ceil_pages


class NotObserved(Exception):
    """The implementation omits a part of an answer that the scheduler needs."""


class Batching(MakingRoom):
    """Prepares prefill and decode batches, as large as tokens and room allow."""

    def _get_next_batch_to_run(self) -> tuple[list[tuple[Req, int]], list[Req]]:
        """The requests to prefill, each with its new length, and the requests to decode; both are prepared."""
        if self.config.mixed_chunk:
            decode = self._prepare_decode()
            return self._prepare_prefill(), decode
        prefill = self._prepare_prefill()
        return prefill, [] if prefill else self._prepare_decode()

    def _prepare_prefill(self) -> list[tuple[Req, int]]:
        """Extend as many requests as tokens and room allow. The others match again next time."""
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
                # An eviction may take a matched prefix, so the whole batch matches again (STORE-5), and no other
                # request: a turn whose lend was ended to make room would only take it again.
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
                continue  # a launch in flight still reads the row that the turn would write (RACE-1)
            self._match(req)
            growth = policy.expected_growth(req.remaining, self.new_token_ratio)
            need = ceil_pages(req.length + growth, self.memory.page_size)
            if not req.lent:  # the pages of a slot counted as room before they were lent
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
        """Pages for new requests: free and evictable pages, less the growth of the admitted requests.

        The free and evictable pages are counted in two ways, each too low: the report omits prefixes that only idle
        sessions have locked, and admitted requests hold fewer pages if they share some. The larger count is used.
        """
        figures = self.step(Report("busy"))
        admitted = self.running_batch if self.chunked_req is None else [*self.running_batch, self.chunked_req]
        self._hybrid.measure(figures, admitted)
        known = (figures.available, figures.evictable, figures.session_held)
        tokens = [figure for figure in known if figure is not None]
        if len(tokens) < len(known):
            return self.memory.num_pages  # without figures, room is found by trying
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
            raise NotObserved(f"match_prefix of {req.name} has no prefix_len in its answer, and scheduling needs it")
        req.prefix_len = prefix_len
        if req.session is not None:
            self._sessions.lend(req)

    def _admit(self, batch: list[tuple[Req, int]]) -> None:
        """Record that the batch was extended."""
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
        """Make room for one decode step of all running requests; retract as few as possible."""
        n = self.config.decode_len
        if n > 1 and any(flight.decode for flight in self._flights):
            return []  # a speculative step begins where the verify of the one before it ends
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
                    return []  # a request that finishes in a launch in flight needs no retract
                self._retract_last(refusal)
            else:
                self._decode_due = False
                self.new_token_ratio = policy.decayed(self.new_token_ratio, self.config)
                return self.running_batch
        return []
