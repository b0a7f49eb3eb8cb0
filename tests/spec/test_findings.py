"""The oracle's verdicts on right and wrong answers are those in `verdicts`, to the letter."""

import pytest

from tests.spec.findings import Kinds, Outcome, Source, golden, names, source, summary, texts, written
from tests.spec.oddities import oddities

pytestmark = [pytest.mark.slow, pytest.mark.long]

CHANGED = (
    "what the model says has changed: "
    "run `python -m tests.spec.findings` and read the difference of tests/spec/verdicts"
)


def test_the_oracle_says_what_is_written_and_nothing_odd() -> None:
    """One test, since the whole file is about all sources together."""
    kinds, lines, known = Kinds(), dict[str, str](), golden()
    for name in names():
        odd: list[str] = []
        given = source(name)

        def see(outcome: Outcome, odd: list[str] = odd, given: Source = given) -> None:
            kinds.add(outcome)
            odd.extend(oddities(outcome, given.model.state.config))

        lines[name] = summary(given, see)
        assert odd == [] or "blind" in name, f"{name}: pages that were never reported are not checked now"
        assert lines[name] == known.get(name), f"{name}: {CHANGED}"
    assert texts(kinds, list(lines.values())) == written(), CHANGED
