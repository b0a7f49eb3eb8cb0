"""The reference memory manager: one method for each operation of `kvspec.events`.

Each method first refuses what must be refused, looking at the operation as a whole, and changes the state only
then: a refused operation leaves everything as it was. `freed` in an answer is what the allocator took back meanwhile.

    state      the parts, who is there, and what several operations ask
    waiting    open_session, submit, match_prefix, take_state, free_state
    prefill    extend
    running    decode, launch, complete, verify
    leaving    retract, finish, abort, close_session, preempt; cache_unfinished, evict, swa_evict
    looking    report, snapshot
"""

from typing import ClassVar, get_args

from kvref.manager.leaving import Leaving
from kvref.manager.looking import Looking
from kvref.manager.prefill import Prefilling
from kvref.manager.running import Running
from kvref.manager.waiting import Waiting
from kvspec.events import FirstTurnChunks, Overshoot, Room, RowsRead, TurnsCountAs


class Manager(Waiting, Prefilling, Running, Leaving, Looking):
    """The memory of one engine: rows, pages, the prefix store and the session slots."""

    rows_read: ClassVar[tuple[RowsRead, ...]] = get_args(RowsRead)
    """It withholds rows where launches read them until they complete, and only there."""
    first_turn_chunks: ClassVar[tuple[FirstTurnChunks, ...]] = get_args(FirstTurnChunks)
    turns_count_as: ClassVar[tuple[TurnsCountAs, ...]] = get_args(TurnsCountAs)
    overshoot: ClassVar[tuple[Overshoot, ...]] = get_args(Overshoot)
    room: ClassVar[tuple[Room, ...]] = get_args(Room)
    """It takes what is there, however its caller estimates."""
