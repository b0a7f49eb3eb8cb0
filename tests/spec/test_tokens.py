import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.tokens import Element, Tokens

ids = st.lists(st.integers(0, 1), max_size=14)
page_sizes = st.integers(1, 4)


@given(ids, ids, page_sizes)
def test_extends_is_being_a_prefix(one: list[int], other: list[int], page_size: int) -> None:
    assert Tokens(page_size, one).extends(Tokens(page_size, other)) == (one[: len(other)] == other)


@given(ids, ids, page_sizes)
def test_equal_keys_are_equal_prefixes(one: list[int], other: list[int], page_size: int) -> None:
    first, second = Tokens(page_size, one), Tokens(page_size, other)
    for index in range(min(len(first.pages), len(second.pages))):
        end = (index + 1) * page_size
        assert (first.key(index) == second.key(index)) == (one[:end] == other[:end])


@given(ids, page_sizes)
def test_appending_is_the_same_as_starting_with_all(tokens: list[int], page_size: int) -> None:
    grown = Tokens(page_size)
    for token in tokens:
        grown.append(token)
    whole = Tokens(page_size, tokens)
    assert (grown.pages, grown.rest, len(grown)) == (whole.pages, whole.rest, len(tokens))
    assert grown.elements() == tokens


def test_page_keys_and_ids_mix_at_page_borders() -> None:
    elements: list[Element] = ["a", 1, 2, "b", 3]
    tokens = Tokens(2, elements)
    assert len(tokens) == 7
    assert tokens.elements() == elements
    assert tokens.extends(Tokens(2, ["a", 1])) and not tokens.extends(Tokens(2, ["a", 2]))
    assert not Tokens(2, ["a"]).extends(Tokens(2, ["b"]))


def test_a_page_key_is_not_its_own_text_as_ids() -> None:
    assert Tokens(1, ["7"]).key(0) != Tokens(1, [7]).key(0)


def test_history_is_extended_by_a_page_given_by_key_at_its_border_alone() -> None:
    assert not Tokens(4, ["k"]).extends(Tokens(4, [1, 2]))
    assert Tokens(4, ["k", "l"]).extends(Tokens(4, ["k"])) and Tokens(4, ["k"]).extends(Tokens(4))


def test_a_page_key_inside_a_page_is_an_error() -> None:
    with pytest.raises(ValueError, match="position 1, not at a border of pages of 4"):
        Tokens(4, [1, "k"])


def test_a_copy_is_independent() -> None:
    tokens = Tokens(2, [1, 2, 3])
    other = tokens.copy()
    other.append(4)
    assert len(tokens) == 3 and other.key(1) != Tokens(2, [1, 2, 3, 5]).key(1)
