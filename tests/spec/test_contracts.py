"""A quick look at conditions finds what icontract finds, and icontract says it."""

import icontract
import pytest

from tests.contracts import quick


@quick(icontract.require)(lambda size: size >= 1)
@quick(icontract.require)(lambda number: number >= 0)
@quick(icontract.ensure)(lambda number, result: result == number or number == 7)
@quick(icontract.ensure)(lambda result: result != 9)
def kept(number: int, size: int = 2, *, part: int = 1) -> int:
    """The number; each condition can be broken."""
    return number // part


def test_what_holds_is_what_the_function_returns() -> None:
    assert kept(4) == kept(number=4, size=1) == 4
    assert kept(7, part=2) == 3


@pytest.mark.parametrize(
    ("number", "size", "part", "said"),
    [(4, 0, 1, "size >= 1"), (-1, 1, 1, "number >= 0"), (4, 1, 2, "result == number"), (9, 1, 1, "result != 9")],
)
def test_each_condition_is_looked_at(number: int, size: int, part: int, said: str) -> None:
    with pytest.raises(icontract.ViolationError, match=said):
        kept(number, size, part=part)
