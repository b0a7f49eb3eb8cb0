from hypothesis import given
from hypothesis import strategies as st

from kvspec.pages import ceil_align, ceil_pages, compress, expand, floor_align, floor_pages, slot_index

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
    assert floor_pages(border, page_size) == ceil_pages(border, page_size) == length // page_size
    assert (ceil_align(length, page_size) == border) == (length == border)


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=50, unique=True), page_sizes, st.data())
def test_page_3_slots_of_a_table_are_distinct_and_lead_back(
    table: list[int], page_size: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(table) * page_size - 1))
    slot = slot_index(table[position // page_size], position, page_size)
    assert (slot // page_size, slot % page_size) == (table[position // page_size], position % page_size)


@given(st.lists(st.integers(-5, 30)))
def test_runs_expand_to_the_same_numbers_in_the_same_order(numbers: list[int]) -> None:
    runs = compress(numbers)
    assert expand(runs) == numbers
    assert all(isinstance(run, int) or run[1] > 1 for run in runs)


def test_runs_are_as_few_as_possible() -> None:
    assert compress([3, 4, 5, 9, 8, 1, 2]) == [(3, 3), 9, 8, (1, 2)]
