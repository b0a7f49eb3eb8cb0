"""What the model says of right and wrong answers is what `findings.txt` says, to the letter."""

import pytest

from tests.spec.findings import FILE, Kinds, Outcome, golden, names, source, summary, text
from tests.spec.oddities import oddities

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("findings")]

KINDS, LINES = Kinds(), dict[str, str]()
"""What the tests below have seen, so that the whole file is not made twice."""


@pytest.mark.parametrize("name", names())
def test_the_model_says_what_findings_txt_says_and_nothing_odd(name: str) -> None:
    odd: list[str] = []
    told = source(name)

    def see(outcome: Outcome) -> None:
        KINDS.add(outcome)
        odd.extend(oddities(outcome, told.model.state.config))

    LINES[name] = summary(told, see)
    assert odd == [] or "blind" in name, "what nobody told the model before is not judged now"
    assert LINES[name] == golden().get(name), (
        "what the model says has changed: "
        "run `python -m tests.spec.findings` and read the difference of tests/spec/findings.txt"
    )


def test_findings_txt_shows_nothing_else() -> None:
    kinds, lines = KINDS, LINES
    if list(lines) != names():  # only a part of the tests above was asked for
        kinds = Kinds()
        lines = {name: summary(source(name), kinds.add) for name in names()}
    assert text(kinds, list(lines.values())) == FILE.read_text()
