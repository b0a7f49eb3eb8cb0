"""The reference memory manager: one method for each operation of `kvspec.events`.

Each method first checks the whole operation and refuses it if it is not allowed; only then it changes the state. So a
refused operation changes nothing. `freed` in an answer lists the pages that the operation freed in the allocator.

    state       the parts, the requests, and checks that several operations share
    waiting     open_session, submit, match_prefix, take_state, free_state
    prefill     extend
    running     decode, launch, complete, verify
    release     retract, finish, abort, close_session, preempt; cache_unfinished, evict, swa_evict
    inspection  report, snapshot
"""

from typing import ClassVar, get_args

from kvref.manager.inspection import Inspection
from kvref.manager.prefill import Prefilling
from kvref.manager.release import Release
from kvref.manager.running import Running
from kvref.manager.waiting import Waiting
from kvspec.events import FirstTurnChunks, Overshoot, Room, RowsRead, TurnsCountAs


class Manager(Waiting, Prefilling, Running, Release, Inspection):
    """The memory of one engine: rows, pages, the prefix store and the session slots."""

    rows_read: ClassVar[tuple[RowsRead, ...]] = get_args(RowsRead)
    """Rows are withheld only if launches read them until they complete."""
    first_turn_chunks: ClassVar[tuple[FirstTurnChunks, ...]] = get_args(FirstTurnChunks)
    turns_count_as: ClassVar[tuple[TurnsCountAs, ...]] = get_args(TurnsCountAs)
    overshoot: ClassVar[tuple[Overshoot, ...]] = get_args(Overshoot)
    room: ClassVar[tuple[Room, ...]] = get_args(Room)
    """It supports every way in which its caller estimates room."""
