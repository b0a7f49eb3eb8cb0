"""What the model says of right and wrong answers is what `findings.txt` says, to the letter."""

from tests.spec.findings import FILE, Kinds, golden, sources, summary, text


def test_the_model_says_what_findings_txt_says() -> None:
    expected = golden()
    kinds, lines = Kinds(), []
    for source in sources():
        lines.append(summary(source, kinds.add))
        assert lines[-1] == expected.get(source.name), (
            f"what the model says has changed, first in {source.name}: "
            "run `python -m tests.spec.findings` and read the difference of tests/spec/findings.txt"
        )
    assert text(kinds, lines) == FILE.read_text()
