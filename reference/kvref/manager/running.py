"""Decode steps, launches, and their results."""

from kvref.launch import Launch
from kvref.manager.state import ManagerState, check_batch, given
from kvref.request import Run
from kvspec import lengths
from kvspec.events import CompleteAnswer, DecodeAnswer, Done, Refusal


class Running(ManagerState):
    """Operations on requests that run: room for their next tokens, and the forward passes that write them."""

    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        """Make room for `n` tokens of each request past its committed ones; one alone is committed at once (994).

        With overlap, the launch in flight may still be computing the step's tokens.

        Raises:
            Refusal: `n` is no number of tokens, some request cannot decode now, or the batch does not fit.
        """
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        if n > 1 and self.config.num_states:
            raise Refusal("OP-1", "a recurrent state cannot take the drafts back that are not accepted")
        check_batch(reqs)
        batch = self._running_batch(reqs)
        page_size, max_context_len, tables = self.config.page_size, self.config.max_context_len, self.pool.req_to_token
        growing: list[Run] = []
        for run in batch:
            kv = run.kv
            end = self._room_end(run, n)
            if run.prepared_end or run.mid_prefill:
                raise Refusal("OP-1", f"{run.name} has a prefill or a decode step that is not done")
            if len(run.unverified) > (n > 1):
                raise Refusal("SPEC-1", f"a speculative step of {run.name} is not verified yet")
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
            run.prepared_end = end = self._room_end(run, n)
            run.drafts = drafts
            if end > kv.kv_allocated_len:
                kv.kv_allocated_len = end
            if not drafts:
                kv.kv_committed_len = end
        pages: dict[str, list[int]] = {}
        for run in growing:
            table = tables[run.kv.req_pool_idx]
            pages[run.name] = self.allocator.alloc_extend(table, run.kv.kv_allocated_len)
        return DecodeAnswer(given(pages), self._window_sides(pages))

    def _check_decode_room(self, growing: list[Run], n: int) -> None:
        """Refuse a decode step whose new pages are not free."""
        if not growing:
            return
        tables = self.pool.req_to_token
        self._check_room(
            pages=sum(
                self.allocator.pages_missing(len(tables[run.kv.req_pool_idx]), self._room_end(run, n))
                for run in growing
            )
        )

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """Launch the prepared positions on the device, which reads the rows from now on (17850).

        Raises:
            Refusal: a launch of this number is in flight, or some request has nothing prepared.
        """
        if any(launch == other.number for other in self.launches):
            raise Refusal("OP-1", f"launch {launch} is in flight")
        check_batch(reqs)
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
                run.unverified.append(run.drafts)
                run.drafts = 0
            else:
                flight.sampled[run.name] = run
        self.pool.begin_read(reads)
        self.launches.append(flight)
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        """The oldest launch in flight has completed and sampled `tokens` (17850).

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
            run.verifiable += 1
        self.launches.popleft()
        self.pool.end_read()
        return CompleteAnswer()

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit `accepted` positions of the completed speculative launch; the request keeps `tokens` (22862).

        Raises:
            Refusal: nothing waits for a verify, or the amounts are not what was written.
        """
        run = self._run(req)
        if not run.verifiable:
            raise Refusal("SPEC-1", f"{req} has no completed speculative launch to verify")
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"the step of {req} that is ahead of this verify is not launched yet")
        if not 1 <= accepted <= run.unverified[0]:
            raise Refusal("SPEC-1", f"{accepted} accepted positions are not in 1..{run.unverified[0]}")
        if not 1 <= len(tokens) <= accepted:
            raise Refusal("SPEC-1", f"{len(tokens)} tokens for {accepted} accepted positions")
        self._verified(run)
        run.kv.lengths = lengths.verify(run.kv.lengths, accepted, self.config.page_size)
        for token in tokens:
            run.tokens.append(token)
        if len(tokens) < accepted:  # it has stopped: the result of its next step is dropped
            run.unverified.clear()
            run.verifiable = 0
            for launch in self.launches:
                launch.forget(req)
        run.promised_len = len(run.tokens) + len(run.unverified)
        run.launched_len = run.kv.kv_committed_len + sum(run.unverified)
        return Done()

    def _verified(self, run: Run) -> None:
        """Remove a run's oldest speculative step."""
        run.unverified.popleft()
        run.verifiable -= 1

    def _room_end(self, run: Run, n: int) -> int:
        """The latest end of a step of `n` positions: at the latest it begins past all unverified positions (28754)."""
        return run.kv.kv_committed_len + sum(run.unverified) + n
