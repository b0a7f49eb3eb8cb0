"""The arithmetic of window sides and of kept states: its contracts on random lengths, and the model held against it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconform.fuzzing.swarm import memory
from kvconform.oracle import Model
from kvspec import lengths
from kvspec.events import Refusal
from kvspec.lengths import Lengths
from kvspec.pages import ceil_pages, floor_align
from kvspec.states import KEPT, kept_borders, last_state, well_kept
from kvspec.window import (
    attended_from,
    evictable_until,
    left_behind,
    window_held_tokens,
)
from tests.walk import SEEDS, RandomDraw, proposals

page_sizes = st.sampled_from([1, 2, 4, 16, 64])


@st.composite
def holders(draw: st.DrawFn) -> tuple[Lengths, int, int]:
    """Well-formed lengths, a cursor and a page size."""
    page_size = draw(page_sizes)
    protected = draw(st.integers(0, 6)) * page_size
    committed = protected + draw(st.integers(0, 4 * page_size))
    cursor = floor_align(draw(st.integers(0, committed)), page_size)
    return Lengths(protected, committed, committed + draw(st.integers(0, 2 * page_size))), cursor, page_size


@given(st.integers(0, 500), st.integers(1, 500), page_sizes)
def test_the_cursor_stops_at_the_page_that_is_read_first(position: int, window: int, page_size: int) -> None:
    until, first = evictable_until(position, window, page_size), attended_from(position, window)
    assert until // page_size == first // page_size
    assert first == position - min(position, window)


@given(holders())
def test_what_is_held_is_what_stands_from_the_cursor_on(holder: tuple[Lengths, int, int]) -> None:
    held, cursor, page_size = holder
    whole = [
        index
        for index in range(held.protected // page_size, ceil_pages(held.allocated, page_size))
        if index * page_size >= cursor
    ]
    assert window_held_tokens(held, cursor, page_size) == len(whole) * page_size


@given(holders(), st.integers(0, 300))
def test_each_side_is_left_behind_once(holder: tuple[Lengths, int, int], further: int) -> None:
    held, cursor, page_size = holder
    last = floor_align(held.committed, page_size)
    middle = min(last, cursor + further * page_size)
    steps = [*left_behind(held, cursor, middle, page_size), *left_behind(held, middle, last, page_size)]
    assert steps == list(left_behind(held, cursor, last, page_size))


@given(holders(), st.integers(1, 300), st.integers(1, 300), st.integers(0, 9), st.integers(1, 99))
def test_a_resumed_turn_stands_behind_its_cursor(
    holder: tuple[Lengths, int, int], written: int, tokens: int, more: int, window: int
) -> None:
    held, _, page_size = holder
    written, tokens = max(written, held.protected), max(tokens, held.protected + 1)
    kept = lengths.trim(held, min(written, tokens), page_size)
    resumed = lengths.resume(kept, tokens - 1 + more, page_size)
    nearest = min(held.committed, written, tokens - 1)
    assert evictable_until(nearest, window, page_size) <= attended_from(resumed.committed, window)


def test_the_model_holds_the_sides_that_the_arithmetic_says() -> None:
    """Each record, after each step of random walks: each change of its lengths or cursor lets the right ones go."""
    moved = 0
    for seed in SEEDS:
        draw = RandomDraw(seed)
        model = Model(memory(draw))
        page_size, before = model.state.config.page_size, dict[int, tuple[Lengths, int]]()
        if not model.state.config.sliding_window:
            continue
        for op in proposals(model.state, draw, 120):
            with suppress(Refusal):
                model.step(op)
            state = model.state
            for record, held in state.lengths.items():
                sides = state.window_sides(state.private(record))
                assert len(sides) * page_size == window_held_tokens(held, state.cursor[record], page_size)
            after = {record: (held, state.cursor[record]) for record, held in state.lengths.items()}
            moved += sum(before[record] != after[record] for record in before.keys() & after.keys())
            before = after
    assert moved


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), page_sizes)
def test_the_last_borders_that_were_passed_are_kept(steps: list[int], page_size: int) -> None:
    borders: tuple[int, ...] = ()
    start, passed = 0, list[int]()
    for step in steps:
        end = start + step
        if floor_align(end, page_size) > start:
            passed.append(floor_align(end, page_size))
        borders = kept_borders(borders, start, end, page_size)
        start = end
    assert borders == tuple(passed[-KEPT:])
    assert well_kept(borders, start, page_size)


@pytest.mark.parametrize(
    "borders", [(3,), (0,), (8, 4), (4, 4), (4, 8, 12), (4, 16)], ids=lambda borders: " ".join(map(str, borders))
)
def test_borders_that_no_launch_has_kept(borders: tuple[int, ...]) -> None:
    assert not well_kept(borders, 12, 4)


@pytest.mark.parametrize(
    ("borders", "protected", "target", "cached", "expected"),
    [
        ((4, 8), 0, 9, False, 8),
        ((4, 8), 0, 8, False, 8),
        ((4, 8), 0, 7, False, 4),
        ((4, 8), 0, 3, False, 0),
        ((4, 8), 8, 9, False, 8),
        ((4,), 8, 9, False, 0),
        ((4,), 8, 9, True, 8),
        ((12,), 8, 9, True, 8),
        ((), 0, 9, False, 0),
    ],
)
def test_a_turn_goes_on_from_the_last_state_that_is_kept(
    borders: tuple[int, ...], protected: int, target: int, cached: bool, expected: int
) -> None:
    assert last_state(borders, protected, target, cached=cached) == expected
