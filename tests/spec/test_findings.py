"""The oracle's verdicts on right and wrong answers are those in `verdicts`, to the letter.

`make test` checks the sources that show most kinds of verdicts, `make thorough` all.
"""

import pytest

from tests.spec.findings import Kinds, Outcome, Source, first, golden, names, source, summary, texts, written
from tests.spec.oddities import oddities

pytestmark = [pytest.mark.slow, pytest.mark.long]

CHANGED = (
    "what the model says has changed: "
    "run `python -m tests.spec.findings` and read the difference of tests/spec/verdicts"
)


def checked(name: str, kinds: Kinds, known: str | None) -> str:
    """The line of a source, as it is written and with nothing odd."""
    odd: list[str] = []
    given: Source = source(name)

    def see(outcome: Outcome) -> None:
        kinds.add(outcome)
        odd.extend(oddities(outcome, given.model.state.config))

    line = summary(given, see)
    assert odd == [] or "blind" in name, f"{name}: pages that were never reported are not checked now"
    assert line == known, f"{name}: {CHANGED}"
    return line


@pytest.mark.parametrize("name", first())
def test_the_oracle_says_what_is_written_and_nothing_odd(name: str) -> None:
    checked(name, Kinds(), golden()[name])


@pytest.mark.thorough
def test_the_oracle_says_what_is_written_of_every_source() -> None:
    """One test, since the files are about all sources together."""
    kinds, known = Kinds(), golden()
    lines = [checked(name, kinds, known.get(name)) for name in names()]
    assert texts(kinds, lines) == written(), CHANGED
