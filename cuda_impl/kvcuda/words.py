"""The layout of a kernel's words from the host: int32, a header, then one entry of `FIELDS` words for each job.

Everything that changes from step to step travels in these words, nothing as a kernel argument. So a captured CUDA graph
replays with new words, and Triton never compiles a second variant because an argument happened to be 1.

    entry    word 0      word 1     word 2       word 3       word 4        word 5       word 6  word 7
    header   ring index  jobs       extends / n  out index    window index
    extend   row         start      end          pages        tokens
    copy     row         start      end          arena index
    decode   row         committed  allocated    pages
    move     kind        row        first page   pages        ring index    arena index  bare    window index

Ring indices point into the ring of free pages, window indices into that of free window pages, arena indices into the
prefix store's list of pages, `out index` into `out_cache_loc`. The first `bare` pages of a move have no window side.
An extend job has the pages and tokens of all extend jobs before it, a decode job the pages that it takes itself.
Positions and lengths are in tokens.
"""

from enum import IntEnum

FIELDS = 8
"""Words of an entry."""


class Move(IntEnum):
    """The kind of a move of a run of pages."""

    FREE = 0
    """row -> ring: a holder frees private pages."""
    EVICT = 1
    """arena -> ring: the prefix store evicts pages."""
    PUBLISH = 2
    """row -> arena: a holder's pages become the prefix store's."""
    REPLACE = 3
    """row -> ring, then arena -> row: a holder's duplicates are freed, its row lists the store's pages instead."""
    REVIVE = 4
    """As REPLACE, but the window sides move behind the store's pages, which have none."""
    SHED = 5
    """row -> window ring: a holder frees window sides and keeps the pages."""
    DROP = 6
    """arena -> window ring: the prefix store evicts window sides and keeps the pages."""


OF_ARENA = frozenset({Move.EVICT, Move.DROP})
"""Moves without a row."""
REWRITES = frozenset({Move.REPLACE, Move.REVIVE})
"""Moves that write the row."""


class Fault(IntEnum):
    """A fault that the debug mode finds on the device."""

    NONE = 0
    DOUBLE_FREE = 1
    """A free page was freed."""
    DOUBLE_USE = 2
    """A page in use was handed out: the ring is corrupt."""
    PAGE_BOUNDS = 3
    """A row, the ring or the arena has a number out of the pages' bounds."""
    WINDOW_DOUBLE_FREE = 4
    WINDOW_DOUBLE_USE = 5
    WINDOW_BOUNDS = 6
    """The window ring or `window_of` has a number out of the window pages' bounds."""
    WINDOW_KEPT = 7
    """A page was handed out that still has a window side, which was not freed with it."""
