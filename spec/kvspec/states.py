"""Recurrent states: which ones a request keeps, and from where it can go on, as functions of a few integers (17850).

State space layers fold all tokens before a position into one *state*, which is overwritten at every step and cannot be
taken back by a token. So besides the slot that it computes in, a request keeps the states at the last two page borders
that its launches passed: one may be published while the next one is written.

    launch [start, end)          floor(end) > start: the state at floor(end) is kept, and the oldest kept one given up
    resume, at most at target    where the working state stands, or at a kept border in [protected, target]
"""

from kvspec.contracts import ensure, require
from kvspec.pages import floor_align

KEPT = 2
"""Page borders whose states a request keeps: as many as it has state slots besides the one that it computes in."""

Borders = tuple[int, ...]
"""Page borders, in tokens, in the order in which they were passed."""


def well_kept(borders: Borders, length: int, page_size: int) -> bool:
    """Whether these can be the borders that launches up to `length` have kept: the last ones, each once, in order."""
    if len(borders) > KEPT or any(border % page_size for border in borders):
        return False
    passed = (0, *borders)
    return all(one < other for one, other in zip(passed, borders, strict=False)) and passed[-1] <= length


@require(lambda start, end: 0 <= start < end)
@require(lambda borders, start, page_size: page_size >= 1 and well_kept(borders, start, page_size))
@ensure(lambda borders, end, page_size, result: len(result) >= len(borders) and well_kept(result, end, page_size))
@ensure(lambda start, end, page_size, result: end - end % page_size <= start or result[-1] == end - end % page_size)
@ensure(lambda borders, start, end, page_size, result: end - end % page_size > start or result == borders)
@ensure(lambda borders, result: result[:-1] in (borders, borders[1:], borders[:-1]))
def kept_borders(borders: Borders, start: int, end: int, page_size: int) -> Borders:
    """The borders whose states are kept after a launch of `[start, end)`: the last one that it passed is new."""
    border = floor_align(end, page_size)
    return (*borders, border)[-KEPT:] if border > start else borders


@require(lambda protected, target: 0 <= protected <= target)
@require(lambda borders: len(borders) <= KEPT and all(border > 0 for border in borders))
@ensure(lambda target, result: 0 <= result <= target)
@ensure(lambda borders, protected, cached, result: result in borders or result == (protected if cached else 0))
@ensure(lambda protected, result: result == 0 or result >= protected)
@ensure(
    lambda borders, protected, target, result: (
        not any(max(result + 1, protected) <= border <= target for border in borders)
    )
)
def last_state(borders: Borders, protected: int, target: int, *, cached: bool) -> int:
    """The last border up to `target` from which a turn can go on, in tokens; 0 if there is none (rule MAMBA-3).

    It has the states at `borders`; `cached` is whether the store keeps the one at its protected length, below which a
    turn never resumes (rule LEN-3).
    """
    kept = [border for border in borders if protected <= border <= target]
    return max(kept, default=protected if cached else 0)
