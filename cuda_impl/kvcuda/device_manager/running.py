"""Decode steps, launches, and their results."""

import numpy as np

from kvcuda.arrays import Ints
from kvcuda.device_manager.state import ManagerState
from kvcuda.forward import Forward, ForwardBatch, StateBatch
from kvcuda.memory import OUT_BUFFERS
from kvcuda.records import Flight, Run
from kvcuda.row_table import ints
from kvcuda.staging import Slot
from kvcuda.streams import Event
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
        self.memory.run_decode(self.stage_decode(reqs, n), len(reqs))
        return DecodeAnswer()

    def stage_decode(self, reqs: list[str], n: int = 1) -> Slot:
        """The host's part of `decode`: everything but the kernel. Returns the slot with the kernel's words.

        Raises:
            Refusal: as `decode`.
        """
        rows, begins = self._check_decode(reqs, n)
        allocated, out, slot = self.memory.stage_decode(rows, begins, self.rows.allocated[rows], n)
        self._decoded(rows, begins, allocated, n, out)
        return slot

    def _check_decode(self, reqs: list[str], n: int) -> tuple[Ints, Ints]:
        """The rows of a decode step and where it begins in each, or a refusal for anything but lack of room.

        A step that is ahead of a verify begins past all unverified positions, the latest possible start (28754).
        """
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        if n > 1 and self.states.size:
            raise Refusal("OP-1", "recurrent states cannot take a speculative step back")
        runs, rows = self._running_batch(reqs)
        table = self.rows
        committed = table.committed[rows]
        waiting = table.steps[rows] > (n > 1)
        ready = (committed < table.promised[rows]) & (table.prepared[rows] == 0) & ~waiting
        if not ready.all() or not self.chunked.isdisjoint(reqs):
            unready = next(
                run for run, is_ready in zip(runs, ready.tolist(), strict=True) if run.mid_prefill or not is_ready
            )
            unverified = table.steps[unready.kv.row] > (n > 1) and not table.prepared[unready.kv.row]
            rule = "SPEC-1" if unverified else "OP-1"
            raise Refusal(rule, f"{unready.name} has a step that is not done or verified, or no token to decode")
        begins = committed + table.unverified[rows]
        longest = int(begins.max()) + n
        if longest > self.config.max_context_len:
            raise Refusal("LEN-1", f"a request would grow to {longest}, past {self.config.max_context_len}")
        return rows, begins

    def _decoded(self, rows: Ints, begins: Ints, allocated: Ints, n: int, out: int) -> None:
        """Note a decode step that is on its way."""
        table = self.rows
        table.allocated[rows] = allocated
        table.prepared[rows] = begins + n
        table.drafts[rows] = n if n > 1 else 0
        if n == 1:
            table.committed[rows] = begins + 1
        self._note_prepared(rows, begins, out + n * np.arange(len(rows)))

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
        if forward is not None:
            self._check_in_time(launch, rows)
        states = self._pass_states(runs, rows, ends) if self.states.size else None
        done = None
        if forward is not None:
            done = self._hand_over(
                forward, ForwardBatch(launch, list(reqs), rows, table.start[rows], ends, table.out[rows], states)
            )

        sampled, last = runs, rows
        if not self.chunked.isdisjoint(reqs):
            sampled = [run for run in runs if not run.mid_prefill]
            last = ints([run.kv.row for run in sampled])
        drafted: list[Run] = []
        drafts = table.drafts[last]
        if drafts.any():
            drafted = [run for run, count in zip(sampled, drafts.tolist(), strict=True) if count]
            sampled = [run for run, count in zip(sampled, drafts.tolist(), strict=True) if not count]
            for run in drafted:
                run.unverified.append(int(table.drafts[run.kv.row]))
            table.unverified[last] += drafts
            table.steps[last] += drafts > 0
            table.drafts[last] = 0
        table.launched[rows] = ends
        table.prepared[rows] = 0
        table.promised[last] += 1
        table.begin_read(rows, ends)
        self.launches.append(Flight(launch, sampled, drafted, done))
        return Done()

    def _check_in_time(self, launch: int, rows: Ints) -> None:
        """Check that `out_cache_loc` still has a launch's slots.

        Raises:
            ValueError: a later batch has overwritten them.
        """
        if self.rows.batch[rows].min() < self.memory.oldest_batch:
            raise ValueError(
                f"launch {launch} comes too late: {OUT_BUFFERS} batches were prepared since, or a larger one"
            )

    def _pass_states(self, runs: list[Run], rows: Ints, ends: Ints) -> StateBatch:
        """The slots of a launch's recurrent states, which include the first `ends` tokens from now on."""
        table = self.rows
        starts, slots = table.start[rows], ints([run.kv.state for run in runs])
        sources, borders, border_slots = slots * (starts > 0), slots * 0, slots * 0
        for i in np.flatnonzero((starts > 0) & (table.state_at[rows] != starts)).tolist():
            sources[i] = self.holdings.source_of_state(runs[i].kv, int(starts[i]))
        if self.config.tracking_states:
            last_borders = ends - ends % self.config.page_size
            for i in np.flatnonzero(last_borders > starts).tolist():
                borders[i] = last_borders[i]
                border_slots[i] = runs[i].kv.pass_border(int(last_borders[i]))
        table.state_at[rows] = ends
        return StateBatch(sources, slots, borders, border_slots)

    def _hand_over(self, forward: Forward, batch: ForwardBatch) -> Event:
        """Enqueue a forward pass behind the row writes that it depends on; returns the event of its end."""
        streams = self.streams
        written, done = streams.event(), streams.event()
        streams.scheduler.record(written)
        streams.forward.wait(written)
        forward(batch)
        streams.forward.record(done)
        self.memory.out_is_read(set(self.rows.batch[batch.rows].tolist()), done)
        return done

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        """The oldest launch in flight has completed and sampled `tokens` (17850).

        Only the scheduler's stream waits for the launch: rows that were withheld for it are written again only after
        its end.

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
            run.verifiable += 1
        self.launches.popleft()
        if flight.done is not None:
            self.streams.scheduler.wait(flight.done)
        self.rows.end_read()
        return CompleteAnswer()

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit `accepted` positions of the completed speculative launch; the request keeps `tokens` (22862).

        Raises:
            Refusal: nothing waits for a verify, or the amounts are not what was written.
        """
        run = self._run(req)
        if not run.verifiable:
            raise Refusal("SPEC-1", f"{req} has no completed speculative launch to verify")
        row, table = run.kv.row, self.rows
        if table.prepared[row]:
            raise Refusal("LAUNCH-1", f"the step of {req} that is ahead of this verify is not launched yet")
        most = run.unverified[0]
        if not 1 <= accepted <= most:
            raise Refusal("SPEC-1", f"{accepted} accepted positions are not in 1..{most}")
        if not 1 <= len(tokens) <= accepted:
            raise Refusal("SPEC-1", f"{len(tokens)} tokens for {accepted} accepted positions")
        run.unverified.popleft()
        run.verifiable -= 1
        table.set_lengths(row, lengths.verify(table.lengths(row), accepted, self.config.page_size))
        for token in tokens:
            run.tokens.append(token)
        if len(tokens) < accepted:  # it has stopped: the result of its next step is dropped
            run.unverified.clear()
            run.verifiable = 0
            for flight in self.launches:
                flight.drafted = [other for other in flight.drafted if other is not run]
        table.steps[row], table.unverified[row] = len(run.unverified), sum(run.unverified)
        table.promised[row] = len(run.tokens) + len(run.unverified)
        table.launched[row] = table.committed[row] + table.unverified[row]
        return Done()
