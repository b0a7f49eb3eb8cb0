"""Parameters of tests that `make test` runs in part, and `make thorough` whole."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, values: Iterable[Any]) -> list[Any]:
    """Values of a parameter, or tuples of several: `make test` takes one in `count`, `make thorough` the others."""
    given = (value if type(value) is tuple else (value,) for value in values)
    return [pytest.param(*value, marks=pytest.mark.thorough if n % count else ()) for n, value in enumerate(given)]
