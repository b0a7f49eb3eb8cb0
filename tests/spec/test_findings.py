"""What the model says of right and wrong answers is what `findings.txt` says, to the letter."""

import pytest

from tests.spec.findings import FILE, Kinds, golden, names, source, summary, text

KINDS, LINES = Kinds(), dict[str, str]()
"""What the tests below have seen, so that the whole file is not made twice."""


@pytest.mark.parametrize("name", names())
def test_the_model_says_what_findings_txt_says(name: str) -> None:
    LINES[name] = summary(source(name), KINDS.add)
    assert LINES[name] == golden().get(name), (
        "what the model says has changed: "
        "run `python -m tests.spec.findings` and read the difference of tests/spec/findings.txt"
    )


def test_findings_txt_shows_nothing_else() -> None:
    kinds, lines = KINDS, LINES
    if list(lines) != names():  # another process has seen the rest
        kinds = Kinds()
        lines = {name: summary(source(name), kinds.add) for name in names()}
    assert text(kinds, list(lines.values())) == FILE.read_text()
