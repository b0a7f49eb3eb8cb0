"""Pages: each is free or in use, never both, in any order of allocations and frees (PAGE-1)."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.allocator import DoubleFreeError, PagedAllocator, TokenAllocator


@pytest.mark.slow
@given(random=st.randoms(use_true_random=False), num_pages=st.integers(1, 12), steps=st.integers(1, 40))
def test_free_pages_and_pages_in_use_partition_the_pool(random: Random, num_pages: int, steps: int) -> None:
    allocator = TokenAllocator(num_pages)
    in_use: set[int] = set()
    for _ in range(steps):
        if random.randrange(2) and in_use:
            given_back = random.sample(sorted(in_use), random.randint(1, len(in_use)))
            allocator.free(given_back)
            in_use.difference_update(given_back)
            assert allocator.drain_freed() == given_back
        elif allocator.available:
            taken = allocator.alloc(random.randint(1, allocator.available))
            assert in_use.isdisjoint(taken)
            assert len(set(taken)) == len(taken)
            in_use.update(taken)
        free = allocator.free_pages()
        assert sorted([*free, *in_use]) == list(range(1, num_pages + 1))
        assert allocator.available == len(free)


def test_asking_for_more_than_is_free_takes_nothing() -> None:
    allocator = PagedAllocator(4, page_size=4)
    allocator.free(allocator.alloc(2))
    table = allocator.alloc(1)
    before = allocator.free_pages()
    with pytest.raises(ValueError, match="5 pages were asked for, 3 are free"):
        allocator.alloc(5)
    with pytest.raises(ValueError, match="are free"):
        allocator.alloc_extend(table, 17)
    assert allocator.free_pages() == before
    assert len(table) == 1


@pytest.mark.parametrize("twice", [[1], [1, 1], [2, 1, 2], [3], [0]])
def test_free_of_a_free_page_is_an_error(twice: list[int]) -> None:
    allocator = TokenAllocator(3)
    allocator.alloc(2)
    if twice == [1]:
        allocator.free([1])
    with pytest.raises(DoubleFreeError, match=re.escape(f"of the pages {twice}, some were free already")):
        allocator.free(twice)


def test_a_block_table_grows_only_when_its_last_page_is_full() -> None:
    allocator = PagedAllocator(10, page_size=4)
    table: list[int] = []
    assert [len(allocator.alloc_extend(table, length)) for length in (1, 4, 5, 6, 16, 16, 3)] == [1, 0, 1, 0, 2, 0, 0]
    assert len(set(table)) == 4


def test_with_pages_of_one_token_every_token_needs_its_own() -> None:
    allocator = TokenAllocator(10)
    table: list[int] = []
    assert [len(allocator.alloc_extend(table, length)) for length in (1, 4, 5, 5, 2)] == [1, 3, 1, 0, 0]


def test_neither_start_up_nor_use_grows_with_the_pool() -> None:
    allocator = PagedAllocator(10**15, page_size=64)
    pages = allocator.alloc(3)
    allocator.free(pages)
    assert allocator.available == 10**15
    assert sorted(allocator.alloc(3)) == sorted(pages), "a page that came back goes out first"
