"""The device manager for conformance: it answers with page numbers, which it reads back from the device.

`kvspec run --impl cuda` checks this class. Its pages are those in the rows, on the ring and in the arena after the
kernels have run. All decisions are the `DeviceManager`'s, which never reads the device.
"""

from typing import TypeVar

import torch

from kvcuda.device_manager import DeviceManager
from kvcuda.memory import DeviceFault
from kvcuda.prefix_tree import Node
from kvcuda.records import KvRecord
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
    SwaEvictAnswer,
)
from kvspec.pages import Runs, ceil_pages, compress

F = TypeVar("F", MatchAnswer, PublishAnswer, ReleaseAnswer)
"""An answer with the freed pages."""


class Manager(DeviceManager):
    """A `DeviceManager` in debug mode whose answers are complete."""

    def __init__(self, config: Config) -> None:
        """Everything is free, and there are no requests."""
        super().__init__(config, debug=True)

    def match_prefix(self, req: str) -> MatchAnswer:
        """As the device manager; names the tail that was freed."""
        before = self._pushed()
        return self._name_freed(super().match_prefix(req), before)

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """As the device manager; names the pages that each request was given."""
        held = {req: self._pages_before_extend(req) for req, _ in reqs}
        answer = super().extend(reqs)
        answer.pages, answer.window_pages = self._given(held)
        if self.states.size:
            kvs = {req: self.running[req].kv for req, _ in reqs}
            starts = {req: int(self.rows.start[kv.row]) for req, kv in kvs.items()}
            answer.states_from = {
                req: self.holdings.source_of_state(kv, starts[req]) for req, kv in kvs.items() if starts[req]
            }
        return answer

    def _pages_before_extend(self, req: str) -> int:
        """The pages of a request before it extends, matched ones included."""
        run, request = self.running.get(req), self.requests.get(req)
        prefix_len = run.seq_len if run else request.prefix_len if request else None
        return ceil_pages(prefix_len or 0, self.config.page_size)

    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        """As the device manager; names the pages that each request was given."""
        held = {req: self._pages_held(self.running[req].kv.row) for req in reqs if req in self.running}
        answer = super().decode(reqs, n)
        answer.pages, answer.window_pages = self._given(held)
        return answer

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """As the device manager; names the duplicates that were freed."""
        before = self._pushed()
        return self._name_freed(super().cache_unfinished(req, chunked), before)

    def finish(self, req: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self._pushed()
        return self._name_freed(super().finish(req), before)

    def retract(self, req: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self._pushed()
        return self._name_freed(super().retract(req), before)

    def abort(self, req: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self._pushed()
        return self._name_freed(super().abort(req), before)

    def close_session(self, session: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self._pushed()
        return self._name_freed(super().close_session(session), before)

    def preempt(self, session: str) -> ReleaseAnswer:
        """As the device manager; names the pages that were freed."""
        before = self._pushed()
        return self._name_freed(super().preempt(session), before)

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """As the device manager; names the window pages that were freed."""
        before = self._pushed()
        answer = super().swa_evict(req)
        answer.window_freed = self._window_pushed_since(before)
        return answer

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        """As the device manager's `evict_pages`; names the pages."""
        before = self._pushed()
        slots = self.evict_pages(n, window, states).states
        pages = self._pushed_since(before)
        return EvictAnswer(pages, self._window_pushed_since(before), slots if self.states.size else None)

    def snapshot(self) -> SnapshotAnswer:
        """The whole state, for a deep compare. Costs the whole pool."""
        self.memory.check()
        idle_slots = dict(self.sessions.idle())
        held = [kv.row for kv in (*self.holders.values(), *idle_slots.values())]
        arena, nodes = self.memory.arena.tolist(), self.holdings.tree.nodes()
        pages = {node: [page for place, count in node.runs for page in arena[place : place + count]] for node in nodes}
        listed = [page for node in nodes for page in pages[node]]
        sides = self._window_sides()
        stored = [node.state for node in nodes if node.state]
        return SnapshotAnswer(
            rows={row: compress(self._slots(row, 0, int(self.rows.allocated[row]))) for row in held},
            free_pages=compress(sorted(_entries(self.memory.ring, self.memory.popped, self.memory.available))),
            store_pages=compress(sorted(listed)),
            requests={req: self._view(kv) for req, kv in self.holders.items()},
            sessions={session: self._view(kv) for session, kv in idle_slots.items()},
            window_sides=sides,
            free_rows=compress(sorted(self.rows.free_rows())),
            withheld_rows=compress(sorted(self.rows.withheld_rows())),
            **self._locks(pages, sides),
            free_states=sorted(self.states.free()) if self.states.size else None,
            store_states=sorted(stored) if self.states.size else None,
        )

    def _locks(self, pages: dict[Node, list[int]], sides: dict[int, int] | None) -> dict[str, dict[int, int]]:
        """The number of locks on each locked page, window page and state of the prefix store."""
        locks = {"locks": {page: node.locks for node in pages for page in pages[node] if node.locks}}
        if sides is not None:
            locked = [node for node in pages if node.window_locks and node.has_window]
            locks["window_locks"] = {sides[page]: node.window_locks for node in locked for page in pages[node]}
        if self.states.size:
            locks["state_locks"] = {node.state: node.ends for node in pages if node.state and node.ends}
        return locks

    def _window_sides(self) -> dict[int, int] | None:
        """The window page behind each page that has one."""
        if not self.config.sliding_window:
            return None
        return {page: side for page, side in enumerate(self.memory.windows.window_of.tolist()) if side}

    def _view(self, kv: KvRecord) -> HolderView:
        cursor = self.holdings.window_cursor(kv) if self.config.sliding_window else None
        lengths = self.rows.lengths(kv.row)
        if not self.states.size:
            return HolderView(kv.row, *lengths, cursor)
        tracking = {border: slot for slot, border in kv.tracked if border}
        return HolderView(kv.row, *lengths, cursor, sorted(kv.states), kv.state, tracking)

    def _pages_held(self, row: int) -> int:
        return ceil_pages(int(self.rows.allocated[row]), self.config.page_size)

    def _given(self, held: dict[str, int]) -> tuple[dict[str, Runs], dict[str, Runs] | None]:
        """The pages of each request behind the first `held` ones, read from its row, and their window sides.

        Raises:
            DeviceFault: `out_cache_loc` differs from the rows, or the debug mode found a fault.
        """
        self.memory.check()
        page_size, sides = self.config.page_size, self._window_sides()
        given: dict[str, Runs] = {}
        given_windows: dict[str, Runs] = {}
        for req, pages in held.items():
            row = self.running[req].kv.row
            self._check_out(row, int(self.rows.start[row]), int(self.rows.prepared[row]))
            end = self._pages_held(row)
            if end > pages:
                firsts = self._slots(row, pages * page_size, (end - 1) * page_size + 1)[::page_size]
                given[req] = compress(slot // page_size for slot in firsts)
                if sides is not None:
                    given_windows[req] = compress(sides.get(slot // page_size, 0) for slot in firsts)
        return given, None if sides is None else given_windows

    def _check_out(self, row: int, start: int, end: int) -> None:
        out = int(self.rows.out[row])
        written = self.memory.out_cache_loc[out : out + end - start].tolist()
        if written != self._slots(row, start, end):
            raise DeviceFault(f"out_cache_loc for positions {start}..{end - 1} of row {row} is not the row's")

    def _pushed(self) -> tuple[int, int]:
        """Pages, and window pages, that were put on their rings so far."""
        return self.memory.pushed, self.memory.windows.pushed

    def _name_freed(self, answer: F, before: tuple[int, int]) -> F:
        """Name in an answer the pages that were put on the rings since `before`."""
        answer.freed, answer.window_freed = self._pushed_since(before), self._window_pushed_since(before)
        return answer

    def _pushed_since(self, before: tuple[int, int]) -> Runs:
        self.memory.check()
        return compress(_entries(self.memory.ring, before[0], self.memory.pushed - before[0]))

    def _window_pushed_since(self, before: tuple[int, int]) -> Runs | None:
        self.memory.check()
        windows = self.memory.windows
        return compress(_entries(windows.ring, before[1], windows.pushed - before[1])) if windows.size else None

    def _slots(self, row: int, start: int, end: int) -> list[int]:
        """Positions `start..end - 1` of a row."""
        slots: list[int] = self.memory.req_to_token[row, start:end].tolist()
        return slots


def _entries(ring: torch.Tensor, first: int, count: int) -> list[int]:
    """`count` entries of a ring, from entry `first` on, counted since the start."""
    first %= len(ring)
    end = min(first + count, len(ring))
    pages: list[int] = ring[first:end].tolist()
    pages += ring[: count - len(pages)].tolist()
    return pages
