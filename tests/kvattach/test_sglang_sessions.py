"""Streaming sessions of SGLang's releases before 0.5.22. Their slots free pages and rows by functions of their own."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.hooks import Hooks
from kvattach.sglang.residency import Lock, Stays
from kvattach.sglang.view import NEW, ROWS, Stay
from kvspec.memory.events import EndHolder, MemoryEvent, Release, Transfer, Unmap
from tests.kvattach.lagging import Events


class Sessions:
    """A slot has a copy of the row's number, and frees the row by the list itself, as until 0.5.18."""

    def __init__(self, freed: Any) -> None:
        self.slots: dict[str, Any] = {}
        self.freed = freed
        """Called with each row that is freed."""
        self.acting: list[str] = []
        """For whom pages were freed."""

    def try_cache_finished_req(self, req: Any, is_insert: bool = True) -> bool:
        name = req.session.session_id
        self.slots[name] = SimpleNamespace(req_pool_idx=req.req_pool_idx)
        self._free_kv_aligned(req.req_pool_idx, 4, 8)
        if req.aborted:
            self.release_session(name)
        req.req_pool_idx = None
        return True

    def release_session(self, session_id: str) -> None:
        self.freed(self.slots.pop(session_id))

    def _free_kv_aligned(self, kept: Any, target: int, end: int) -> None:
        assert (target, end) == (4, 8)
        self.acting.append(self.who())

    who: Callable[[], str]


class Memory(Stays):
    """Rows 1 and 2 belong to turns, the first with a lock."""

    def __init__(self, events: Events, release: Any) -> None:
        self.hooks, self._who, self._size, self._numbers = Hooks(events), [NEW], 4, count(1)
        self._release = release
        self._readers, self._locked = {}, [Lock("turn 1", "node")]
        self._stays = {f"turn {row}": Stay(f"turn {row}", 4, f"turn {row}") for row in (1, 2)}
        self._rows = {}
        for row, stay in enumerate(self._stays.values(), 1):
            stay.row, self._rows[row] = row, stay
        self._install_sessions(release)

    def _request(self, req: Any) -> str:
        return self._stays[req.rid].name


def memory(events: Events, *, by_table: bool) -> tuple[Any, Any]:
    """A memory, and its sessions; `by_table`: they free rows by the table, as from 0.5.19 on."""
    sessions_class = type("StreamingSession", (Sessions,), {**vars(Sessions)})
    release = SimpleNamespace(session_slots=sessions_class, rows_by_number=False, checkpoints=False)
    made: Any = Memory(events, release)
    sessions = sessions_class(made._left if by_table else lambda _: None)
    sessions.who = lambda: made._who[-1]
    return made, sessions


def turn(row: int, *, aborted: bool = False) -> Any:
    session = SimpleNamespace(session_id="s")
    made = {"origin_input_ids": [1, 2, 3], "output_ids": [4], "aborted": aborted, "kv": None}
    return SimpleNamespace(rid=f"turn {row}", req_pool_idx=row, session=session, **made)


@pytest.mark.parametrize("by_table", [False, True], ids=["by the list", "by the table"])
def test_a_turn_passes_everything_to_its_slot_and_closing_frees_the_row_once(by_table: bool) -> None:
    events = Events()
    made, sessions = memory(events, by_table=by_table)
    sessions.try_cache_finished_req(turn(1), is_insert=False)
    passed: list[MemoryEvent] = [Transfer("turn 1", "session s.1"), EndHolder("turn 1")]
    assert events.all == passed
    assert made._locked[0].who == "session s.1"
    sessions.release_session("s")
    assert events.all[2:] == [Release("session s.1", ROWS, [1]), EndHolder("session s.1")]
    assert list(made._rows) == [2]


@pytest.mark.parametrize("by_table", [False, True], ids=["by the list", "by the table"])
def test_an_aborted_turn_frees_its_own_row_once_and_leaves_no_slot(by_table: bool) -> None:
    events = Events()
    made, sessions = memory(events, by_table=by_table)
    made._stays["turn 2"].pages[ROWS] = [2]
    sessions.try_cache_finished_req(turn(2, aborted=True), is_insert=False)
    ended = [Release("turn 2", ROWS, [2]), Unmap("turn 2 rows"), EndHolder("turn 2")]
    assert events.all == ended
    assert list(made._stays) == ["turn 1"]


def test_pages_that_a_slot_frees_are_those_of_its_row_s_holder() -> None:
    _, sessions = memory(Events(), by_table=True)
    sessions._free_kv_aligned(2, 4, 8)
    sessions._free_kv_aligned(SimpleNamespace(req_pool_idx=1), 4, 8)
    sessions.try_cache_finished_req(turn(1), is_insert=False)
    sessions._free_kv_aligned(1, 4, 8)
    assert sessions.acting == ["turn 2", "turn 1", "turn 1", "session s.1"]
