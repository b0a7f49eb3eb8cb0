"""The layout of what the host tells a kernel: int32 words, one entry of `FIELDS` words for each job, after a header.

Everything that changes from step to step travels in these words, nothing as a kernel argument: a captured CUDA graph
replays with new words, and Triton never compiles a second variant because a number happened to be 1.

    entry    word 0      word 1     word 2       word 3       word 4        word 5       word 6  word 7
    header   ring index  jobs       extends / n  out index    window index
    extend   row         start      end          pages
    copy     row         start      end          arena index
    decode   row         committed  allocated    pages
    move     kind        row        first page   pages        ring index    arena index  bare    window index

Ring indices point into the ring of free pages, window indices into that of free window pages, arena indices into the
prefix store's list of pages, `out index` into `out_cache_loc`. The first `bare` pages of a move have no window side any
more. Positions and lengths are in tokens.
"""

from enum import IntEnum

FIELDS = 8
"""Words an entry."""


class Move(IntEnum):
    """What a move does with a run of pages."""

    FREE = 0
    """row -> ring: a holder lets private pages go."""
    EVICT = 1
    """arena -> ring: the prefix store lets pages go."""
    PUBLISH = 2
    """row -> arena: the prefix store takes a holder's pages over."""
    REPLACE = 3
    """row -> ring, then arena -> row: a holder's duplicates go, its row names the store's pages instead."""
    REVIVE = 4
    """The same, but the window sides stay: they move behind the store's pages, which had lost theirs."""
    SHED = 5
    """row -> window ring: a holder lets window sides go and keeps the pages."""
    DROP = 6
    """arena -> window ring: the prefix store does."""


OF_ARENA = frozenset({Move.EVICT, Move.DROP})
"""Moves that name no row."""
REWRITES = frozenset({Move.REPLACE, Move.REVIVE})
"""Moves that write the row."""


class Fault(IntEnum):
    """What the debug mode finds on the device."""

    NONE = 0
    DOUBLE_FREE = 1
    """A page went back that is free already."""
    DOUBLE_USE = 2
    """A page was handed out that is in use: the ring is corrupt."""
    PAGE_BOUNDS = 3
    """A number that is no page was read from a row, the ring or the arena."""
    WINDOW_DOUBLE_FREE = 4
    WINDOW_DOUBLE_USE = 5
    WINDOW_BOUNDS = 6
    """The same of window pages, read from the window ring or from behind a page."""
    WINDOW_KEPT = 7
    """A page was handed out that still has a window side: the side was not given back with it."""
