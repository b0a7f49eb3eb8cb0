from hypothesis import example, given
from hypothesis import strategies as st

from kvconform.oracle.runs import alongside, merged, runs_of, without
from kvspec.pages import compress, expand


@example([5, 9, 7], [1, 2, 3])
@example([1, 2, 3], [5, 9, 7])
@example([1, 2, 0, 0], [5, 6, 7])
@example([5, 6, 7], [1, 2, 0, 0])
@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_two_sequences_are_gone_through_alongside(one: list[int], other: list[int]) -> None:
    both = list(zip(one, other, strict=False))
    reported = list(alongside(compress(one), compress(other)))
    assert [(first + i, second + i) for first, second, length in reported for i in range(length)] == both
    assert len(reported) <= len(compress(one)) + len(compress(other))


@given(
    st.lists(st.one_of(st.integers(1, 12), st.tuples(st.integers(1, 12), st.integers(1, 4)))),
    st.sets(st.integers(1, 12)),
)
def test_runs_are_compared_without_being_written_out(runs: list[int | tuple[int, int]], others: set[int]) -> None:
    numbers = set(expand(runs))
    assert expand(merged(runs)) == sorted(numbers)
    assert without(runs, list(others)) == compress(sorted(numbers - others))


def test_a_huge_pool_costs_nothing() -> None:
    assert without([(1, 2**31 - 1)], [7, (9, 2)]) == [(1, 6), 8, (11, 2**31 - 11)]
    assert merged([(5, 2**40), (1, 2)]) == [(1, 2), (5, 2**40)]


@given(numbers=st.sets(st.integers(-5, 25)))
def test_numbers_as_runs_are_the_shortest_runs(numbers: set[int]) -> None:
    assert runs_of(numbers) == compress(sorted(numbers))
