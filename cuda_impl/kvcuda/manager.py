"""The device manager under observation: it answers with page numbers, which it reads back from the device.

For conformance: `kvspec run --impl cuda` checks this class. What it names is what stands in the rows, on the ring and
in the arena once the kernels have run; all decisions are the `DeviceManager`'s, which never reads.
"""

from kvcuda.device_manager import DeviceManager
from kvcuda.memory import DeviceFault
from kvspec.events import (
    Config,
    DecodeAnswer,
    EvictAnswer,
    ExtendAnswer,
    HolderView,
    MatchAnswer,
    PublishAnswer,
    ReleaseAnswer,
    SnapshotAnswer,
)
from kvspec.pages import Runs, ceil_pages, compress


class Manager(DeviceManager):
    """A `DeviceManager` in debug mode whose answers are complete."""

    lacks = frozenset({"sliding_window", "recurrent_states"})

    def __init__(self, config: Config) -> None:
        """Everything is free and nobody is there."""
        super().__init__(config, debug=True)

    def match_prefix(self, req: str) -> MatchAnswer:
        """As the device manager; names the tail that was freed."""
        before = self.memory.pushed
        answer = super().match_prefix(req)
        answer.freed = self._pushed_since(before)
        return answer

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """As the device manager; names the pages that each request was given."""
        held = {req: self._pages_before_extend(req) for req, _ in reqs}
        answer = super().extend(reqs)
        answer.pages = self._given(held)
        return answer

    def _pages_before_extend(self, req: str) -> int:
        """How many pages a request has that is about to extend, matched ones included."""
        run, request = self.running.get(req), self.requests.get(req)
        prefix_len = run.seq_len if run else request.prefix_len if request else None
        return ceil_pages(prefix_len or 0, self.config.page_size)

    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        """As the device manager; names the pages that each request was given."""
        held = {req: self._pages_held(self.running[req].kv.row) for req in reqs if req in self.running}
        answer = super().decode(reqs, n)
        answer.pages = self._given(held)
        return answer

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """As the device manager; names the duplicates that were freed."""
        before = self.memory.pushed
        answer = super().cache_unfinished(req, chunked)
        answer.freed = self._pushed_since(before)
        return answer

    def finish(self, req: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self.memory.pushed
        super().finish(req)
        return ReleaseAnswer(self._pushed_since(before))

    def retract(self, req: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self.memory.pushed
        super().retract(req)
        return ReleaseAnswer(self._pushed_since(before))

    def abort(self, req: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self.memory.pushed
        super().abort(req)
        return ReleaseAnswer(self._pushed_since(before))

    def close_session(self, session: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self.memory.pushed
        super().close_session(session)
        return ReleaseAnswer(self._pushed_since(before))

    def preempt(self, session: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self.memory.pushed
        super().preempt(session)
        return ReleaseAnswer(self._pushed_since(before))

    def evict(self, n: int) -> EvictAnswer:
        """As the device manager's `evict_pages`; names the pages."""
        before = self.memory.pushed
        self.evict_pages(n)
        return EvictAnswer(self._pushed_since(before))

    def snapshot(self) -> SnapshotAnswer:
        """The whole state, for a deep compare. Costs the whole pool."""
        self.memory.check()
        idle_slots = dict(self.sessions.idle())
        held = [kv.row for kv in (*self.holders.values(), *idle_slots.values())]
        arena = self.memory.arena.tolist()
        listed = [page for place, count in self.holdings.tree.all_runs() for page in arena[place : place + count]]
        return SnapshotAnswer(
            rows={row: compress(self._slots(row, 0, int(self.rows.allocated[row]))) for row in held},
            free_pages=compress(sorted(self._ring(self.memory.popped, self.memory.available))),
            store_pages=compress(sorted(listed)),
            requests={req: self._view(kv.row) for req, kv in self.holders.items()},
            sessions={session: self._view(kv.row) for session, kv in idle_slots.items()},
        )

    def _view(self, row: int) -> HolderView:
        return HolderView(row, *self.rows.lengths(row))

    def _pages_held(self, row: int) -> int:
        return ceil_pages(int(self.rows.allocated[row]), self.config.page_size)

    def _given(self, held: dict[str, int]) -> dict[str, Runs]:
        """The pages of each request behind the first `held` ones, as its row has them.

        Raises:
            DeviceFault: `out_cache_loc` is not what stands in the rows, or the debug mode found something.
        """
        self.memory.check()
        page_size = self.config.page_size
        given: dict[str, Runs] = {}
        for req, pages in held.items():
            row = self.running[req].kv.row
            self._check_out(row, int(self.rows.start[row]), int(self.rows.prepared[row]))
            end = self._pages_held(row)
            if end > pages:
                firsts = self._slots(row, pages * page_size, (end - 1) * page_size + 1)[::page_size]
                given[req] = compress(slot // page_size for slot in firsts)
        return given

    def _check_out(self, row: int, start: int, end: int) -> None:
        out = int(self.rows.out[row])
        written = self.memory.out_cache_loc[out : out + end - start].tolist()
        if written != self._slots(row, start, end):
            raise DeviceFault(f"out_cache_loc for positions {start}..{end - 1} of row {row} is not the row's")

    def _pushed_since(self, before: int) -> Runs:
        """The pages that came to the ring since it had been given `before` pages."""
        self.memory.check()
        return compress(self._ring(before, self.memory.pushed - before))

    def _ring(self, first: int, count: int) -> list[int]:
        """`count` entries of the ring, from the `first` ever on."""
        first %= self.config.num_pages
        end = min(first + count, self.config.num_pages)
        pages: list[int] = self.memory.ring[first:end].tolist()
        pages += self.memory.ring[: count - len(pages)].tolist()
        return pages

    def _slots(self, row: int, start: int, end: int) -> list[int]:
        """Positions `start..end - 1` of a row."""
        slots: list[int] = self.memory.req_to_token[row, start:end].tolist()
        return slots
