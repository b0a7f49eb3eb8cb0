"""Tests of a mutation run only: verdicts of the model are checked, and not compared with `verdicts`.

`tests/spec/test_findings.py` does both at once.
"""

import pytest

from tests.spec.findings import names, outcomes, source
from tests.spec.oddities import oddities


@pytest.mark.parametrize("name", [name for name in names() if "blind" not in name])
def test_no_verdict_is_odd(name: str) -> None:
    given = source(name)
    assert not [odd for outcome in outcomes(given) for odd in oddities(outcome, given.model.state.config)]
