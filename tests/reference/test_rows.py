"""Rows: reused, all or nothing, and withheld while a launch in flight reads them (17850)."""

from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import Request
from kvspec.tokens import Tokens


def alloc(pool: ReqToTokenPool, *brought: int | None) -> list[int]:
    rows = pool.alloc(brought)
    assert rows is not None
    return rows


def test_a_request_that_brings_a_row_keeps_it_and_its_block_table() -> None:
    pool = ReqToTokenPool(3)
    (kept,) = alloc(pool, None)
    pool.req_to_token[kept] += [7, 8]
    first, again, last = alloc(pool, None, kept, None)
    assert again == kept
    assert pool.req_to_token[kept] == [7, 8]
    assert len({first, again, last}) == 3
    assert pool.available == 0


def test_a_capacity_miss_takes_no_row_at_all() -> None:
    pool = ReqToTokenPool(3)
    (kept,) = alloc(pool, None)
    assert pool.alloc([None, kept, None, None]) is None
    assert pool.rows_short([None, kept, None, None]) == 1
    assert pool.available == 2
    assert sorted([kept, *alloc(pool, None, None)]) == [0, 1, 2]


def test_a_released_row_is_free_at_once_if_no_launch_reads_it() -> None:
    pool = ReqToTokenPool(1)
    (row,) = alloc(pool, None)
    pool.begin_read({row: 4})
    pool.end_read()
    pool.free(row)
    assert (pool.available, pool.withheld) == (1, 0)


def test_a_released_row_is_withheld_until_the_last_launch_that_reads_it_completes() -> None:
    pool = ReqToTokenPool(2)
    row, other = alloc(pool, None, None)
    pool.begin_read({row: 4, other: 4})
    pool.begin_read({row: 5})
    pool.begin_read({other: 5})
    pool.free(row)
    assert (pool.available, pool.withheld) == (0, 1)
    assert pool.alloc([None]) is None
    pool.end_read()
    assert (pool.available, pool.withheld) == (0, 1)
    pool.end_read()
    assert (pool.available, pool.withheld) == (1, 0)
    assert alloc(pool, None) == [row]


def test_a_row_is_withheld_alone() -> None:
    pool = ReqToTokenPool(2)
    row, other = alloc(pool, None, None)
    pool.begin_read({row: 4})
    pool.free(row)
    pool.free(other)
    assert (pool.available, pool.withheld) == (1, 1)
    assert alloc(pool, None) == [other]


def test_the_positions_in_flight_are_those_of_the_launch_that_reads_furthest() -> None:
    pool = ReqToTokenPool(2)
    row, other = alloc(pool, None, None)
    assert pool.read_len(row) == 0
    pool.begin_read({other: 3})
    assert pool.read_len(row) == 0
    pool.end_read()
    pool.begin_read({row: 9})
    pool.begin_read({row: 6})
    assert pool.read_len(row) == 9
    pool.end_read()
    assert pool.read_len(row) == 6


def test_without_state_slots_no_request_needs_one() -> None:
    pool = ReqToTokenPool(1)
    assert pool.states.available == 0
    assert pool.states.states_missing(Request("r", Tokens(1, [1]), None)) == 0


def test_a_row_that_is_handed_out_again_has_an_empty_block_table() -> None:
    pool = ReqToTokenPool(1)
    (row,) = alloc(pool, None)
    pool.req_to_token[row] += [7, 8]
    pool.free(row)
    (again,) = alloc(pool, None)
    assert pool.req_to_token[again] == []
