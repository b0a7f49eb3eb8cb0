from hypothesis import example, given
from hypothesis import strategies as st

from kvspec.pages import (
    beginning,
    ceil_align,
    ceil_pages,
    compress,
    count,
    expand,
    floor_align,
    slot_index,
    slots_of,
)

lengths = st.integers(0, 10**7)
page_sizes = st.sampled_from([1, 2, 3, 4, 16, 64, 256])


@given(lengths, page_sizes)
def test_a_page_held_in_part_is_counted_whole(length: int, page_size: int) -> None:
    pages = ceil_pages(length, page_size)
    assert pages == len({position // page_size for position in range(length - length % page_size, length)}) + (
        length // page_size
    )
    assert ceil_align(length, page_size) == pages * page_size


@given(lengths, page_sizes)
def test_floor_and_ceil_agree_exactly_at_page_borders(length: int, page_size: int) -> None:
    border = floor_align(length, page_size)
    assert border // page_size == ceil_pages(border, page_size) == length // page_size
    assert (ceil_align(length, page_size) == border) == (length == border)


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=50, unique=True), page_sizes, st.data())
def test_page_3_slots_of_a_table_are_distinct_and_lead_back(
    table: list[int], page_size: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(table) * page_size - 1))
    slot = slot_index(table[position // page_size], position, page_size)
    assert (slot // page_size, slot % page_size) == (table[position // page_size], position % page_size)


@example([0, 1], 1, 2)
@given(st.lists(st.integers(-1, 4), max_size=8), st.integers(1, 3), st.integers(0, 24))
def test_page_3_slots_of_a_row_are_those_of_its_positions(table: list[int], page_size: int, length: int) -> None:
    length = min(length, len(table) * page_size)
    pages = [table[position // page_size] for position in range(length)]
    runs = slots_of(table, length, page_size)
    assert expand(runs) == [slot_index(page, at, page_size) if page > 0 else 0 for at, page in enumerate(pages)]
    assert all(isinstance(run, int) or run[0] > 0 for run in runs), "what is no page is in no run"
    assert len(runs) <= len(table) + sum(page <= 0 for page in pages)


@given(st.lists(st.integers(-5, 30)))
def test_runs_expand_to_the_same_numbers_in_the_same_order(numbers: list[int]) -> None:
    runs = compress(numbers)
    assert expand(runs) == numbers
    assert all(isinstance(run, int) or run[1] > 1 for run in runs)


@given(st.lists(st.one_of(st.integers(1, 12), st.tuples(st.integers(1, 12), st.integers(1, 4)))), st.integers(0, 60))
def test_the_beginning_of_runs_is_what_stands_first_written_out(runs: list[int | tuple[int, int]], most: int) -> None:
    assert beginning(runs, most) == expand(runs)[:most]
    assert count(runs) == len(expand(runs))


def test_the_beginning_of_an_endless_run_costs_what_is_asked_for() -> None:
    assert beginning([7, (1, 2**63)], 4) == [7, 1, 2, 3]


def test_runs_are_as_few_as_possible() -> None:
    assert compress([3, 4, 5, 9, 8, 1, 2]) == [(3, 3), 9, 8, (1, 2)]
