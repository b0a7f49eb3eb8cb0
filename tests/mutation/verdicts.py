"""Tests of a mutation run only: verdicts of the model are judged, and not compared with `verdicts`.

`tests/spec/test_findings.py` does both at once.
"""

import pytest

from tests.spec.findings import names, outcomes, source
from tests.spec.oddities import oddities


@pytest.mark.parametrize("name", [name for name in names() if "blind" not in name])
def test_no_verdict_is_odd(name: str) -> None:
    told = source(name)
    assert not [odd for outcome in outcomes(told) for odd in oddities(outcome, told.model.state.config)]
