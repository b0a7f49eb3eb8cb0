"""Tests are chosen by the lines that they run, and mutants that no test can notice are known."""

import inspect
from types import CodeType, FunctionType
from typing import Any, cast

import pytest

from tests.mutation import lines


def original(values: list[int], limit: int = 3) -> float:
    total = 0
    for value, other in zip(values, values, strict=True):
        if value > limit:
            total += value
        elif other < 0:
            total -= max(
                value,
                other,
            )
    assert total >= 0 or total < 0, "a number"
    return cast("float", total)


def code(function: Any) -> CodeType:
    assert isinstance(function, FunctionType)
    return function.__code__


def mutant(old: str, new: str, tmp_path: Any) -> CodeType:
    """The original with a text replaced."""
    text = inspect.getsource(original).replace("original", "f")
    assert text.count(old) == 1, old
    file = tmp_path / "changed.py"
    file.write_text(text.replace(old, new))
    names: dict[str, Any] = {"cast": cast}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return code(names["f"])


@pytest.mark.parametrize(
    ("old", "new", "values", "reached"),
    [
        ("total += value", "total -= value", [1], False),
        ("total += value", "total -= value", [1, 4], True),
        ("total = 0", "total = 1", [], True),
        ("value > limit", "value >= limit", [], False),
        ("value > limit", "value >= limit", [1], True),
        ("other < 0", "other <= 0", [4], False),
        ("other < 0", "other <= 0", [3], True),
        ("            other,\n", "            2 * other,\n", [-1], True),
        ("            other,\n", "            2 * other,\n", [1], False),
        ('return cast("float", total)', "return None", [], True),
        ("limit: int = 3", "limit: int = 4", [], True),
    ],
)
def test_a_test_is_run_if_it_gets_to_what_is_changed(
    old: str, new: str, values: list[int], reached: bool, tmp_path: Any
) -> None:
    with lines.traced([code(original)]) as run:
        original(values)
    leading = lines.leading_to(code(original), mutant(old, new, tmp_path))
    assert (leading == lines.ALL or run[code(original)] & leading != 0) == reached


def test_one_that_is_not_looked_at_to_its_end_may_have_run_any_line() -> None:
    with lines.traced([code(original)]) as run:
        for _ in range(lines.PATIENCE + 2):
            original([1])
        assert run[code(original)] > 0
    assert run == {code(original): lines.ALL}
    with lines.traced([code(original)]) as run:
        for values in ([4], [1], [-1]):
            original(values)
        for _ in range(lines.PATIENCE + 2):
            original([1])
    assert run[code(original)] > 0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("strict=True", "strict=None", "strict="),
        (", strict=True", ", ", "strict="),
        ("zip(values, values", "zip(values, None", ""),
        ('cast("float", total)', "cast(None, total)", "strict="),
        ('cast("float", total)', "cast(total)", ""),
        ('cast("float", total)', 'cast("float", None)', ""),
        ("or total", "and total", "an assertion"),
        ("total -=", "total +=", ""),
    ],
)
def test_mutants_that_no_test_can_notice_are_known(old: str, new: str, why: str, tmp_path: Any) -> None:
    said = lines.unchecked(code(original), mutant(old, new, tmp_path))
    assert said.startswith(why) and bool(said) == bool(why)


def test_a_difference_is_the_changed_lines(tmp_path: Any) -> None:
    assert lines.difference(code(original), mutant("total += value", "total = value", tmp_path))[-2:] == [
        "-            total += value",
        "+            total = value",
    ]
