"""The arithmetic of window sides and of kept states: its contracts on random lengths, and the model held against it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconform.fuzzing.swarm import memory
from kvspec import lengths
from kvspec.events import Refusal
from kvspec.lengths import Lengths
from kvspec.model import Model
from kvspec.model.state import State
from kvspec.pages import ceil_pages, floor_align
from kvspec.states import KEPT, kept_borders, last_state, well_kept
from kvspec.window import (
    attended_from,
    evictable_until,
    left_behind,
    resumes_at,
    sides_let_go,
    window_held_tokens,
    window_pages,
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
    assert repr(window_pages(held, cursor, page_size)) == str(len(whole)), "a whole number"
    assert window_held_tokens(held, cursor, page_size) == len(whole) * page_size


@given(holders(), st.integers(0, 300))
def test_each_side_is_left_behind_once(holder: tuple[Lengths, int, int], further: int) -> None:
    held, cursor, page_size = holder
    last = floor_align(held.committed, page_size)
    middle = min(last, cursor + further * page_size)
    steps = [*left_behind(held, cursor, middle, page_size), *left_behind(held, middle, last, page_size)]
    assert steps == list(left_behind(held, cursor, last, page_size))


@given(holders(), st.data())
def test_window_pages_are_conserved_by_every_change_of_lengths(
    holder: tuple[Lengths, int, int], data: st.DataObject
) -> None:
    before, cursor, page_size = holder
    committed = Lengths(before.protected, before.committed, before.committed)
    key_len = data.draw(st.integers(max(before.protected, cursor), before.committed))
    for start, after in (
        (committed, lengths.extend(committed, before.committed + 1 + key_len, page_size)),
        (before, lengths.decode(before, data.draw(st.integers(1, 9)), page_size)),
        (before, lengths.publish(before, key_len, page_size)),
        (before, lengths.trim(before, key_len, page_size)),
        (before, lengths.resume(before, key_len, page_size)),
        (before, lengths.shrink(before, data.draw(st.integers(before.committed, before.allocated)), page_size)),
    ):
        taken = max(0, ceil_pages(after.allocated, page_size) - ceil_pages(start.allocated, page_size))
        let_go = sides_let_go(start, after, cursor, page_size)
        assert isinstance(let_go, int)
        assert window_pages(after, cursor, page_size) + let_go == window_pages(start, cursor, page_size) + taken


@given(holders(), st.integers(1, 300), st.integers(1, 300), st.integers(0, 9), st.integers(1, 99))
def test_a_resumed_turn_stands_behind_its_cursor(
    holder: tuple[Lengths, int, int], written: int, tokens: int, more: int, window: int
) -> None:
    held, _, page_size = holder
    written, tokens = max(written, held.protected), max(tokens, held.protected + 1)
    kept = lengths.trim(held, min(written, tokens), page_size)
    resumed = lengths.resume(kept, tokens - 1 + more, page_size)
    assert resumed.committed == resumes_at(held.committed, written, tokens, tokens - 1 + more, window, page_size)


def sides(state: State) -> dict[int, tuple[Lengths, int, int]]:
    """Each record's lengths, its cursor, and how many of its private pages have a window side."""
    return {
        record: (held, state.cursor[record], len(state.window_sides(state.private(record))))
        for record, held in state.lengths.items()
    }


def test_the_model_lets_sides_go_as_the_arithmetic_says() -> None:
    """At each step of random walks: what a record holds, and what it lets go when its lengths change."""
    moved = 0
    for seed in SEEDS:
        draw = RandomDraw(seed)
        model = Model(memory(draw))
        if not model.state.config.sliding_window:
            continue
        page_size, before = model.state.config.page_size, sides(model.state)
        for op in proposals(model.state, draw, 120):
            try:
                model.step(op)
            except Refusal:
                continue
            after = sides(model.state)
            for record in before.keys() & after.keys():
                (old, cursor, had), (new, now, has) = before[record], after[record]
                if now == cursor:
                    taken = max(0, ceil_pages(new.allocated, page_size) - ceil_pages(old.allocated, page_size))
                    assert has + sides_let_go(old, new, cursor, page_size) == had + taken
                else:
                    assert has + len(left_behind(old, cursor, now, page_size)) == had
                moved += old != new or now != cursor
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
