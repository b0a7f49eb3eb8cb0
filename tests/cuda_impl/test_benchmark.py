"""The benchmark runs only on a GPU; here each of its cases is done once, at small sizes."""

import pytest
from benchmarks import canary
from benchmarks.device import Times, operations, whole_steps
from benchmarks.device_cases import Case, Pool, free_rows, sized_operations

pytestmark = pytest.mark.slow


class OneRun:
    """A clock that does each case once and times nothing."""

    def time(self, case: Case) -> Times:
        case.run(case.setup())
        return Times(1.0, None, 1.0)


def test_every_case_can_be_done() -> None:
    sized = sized_operations(None, scale=64)
    assert {one.page_size for one in sized} == {1, 16, 64}
    assert all(one.moved > 0 for one in sized)
    ways = [row[2] for row in operations(OneRun(), lambda moved: moved, sized)]
    assert (ways.count("kvcuda"), ways.count("strided")) == (18, 12)
    assert whole_steps(2, 3, graph=True) > 0


def test_pages_that_the_case_frees_are_those_of_the_tails() -> None:
    pool = Pool(4, 3, 16, room=8)
    case = free_rows(pool, first_page=1)["kvcuda"]
    case.run(case.setup())
    assert pool.memory.pushed == 9
    assert pool.memory.ring[:9].tolist() == [2, 3, 4, 6, 7, 8, 10, 11, 12]


def test_canary_is_silent_on_every_pass_that_is_measured() -> None:
    rows = list(canary.table(OneRun(), lambda moved: moved, canary.sizes(scale=64), None))
    assert len(rows) == 5
    assert canary.sizes()[0].moved == 256 * (4096 * 16 + 44)
