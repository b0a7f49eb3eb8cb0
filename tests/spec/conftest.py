"""A finding of the model is reported whole in every test."""

from collections.abc import Iterator

import pytest

from kvconform.oracle import Model
from kvspec.events import Event
from kvspec.rules import Violation
from tests.spec.oddities import half_said


@pytest.fixture(autouse=True, scope="module")
def reported_whole() -> Iterator[None]:
    """Look at each finding of a step."""
    step = Model.step

    def looked_at(model: Model, op: Event) -> None:
        try:
            step(model, op)
        except Violation as finding:
            unsaid = [*half_said(finding)]
            assert not unsaid, unsaid
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "step", looked_at)
        yield
