"""The documents show what is printed now; the guide runs from the built wheel, in an empty folder."""

from pathlib import Path

import pytest

from tests.printed import DOCUMENTS, ROOT, agrees, examples, shell_for


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_shows_what_is_printed(document: str, tmp_path: Path) -> None:
    shell = shell_for(document, tmp_path)
    found = list(examples((ROOT / document).read_text(encoding="utf-8")))
    assert len(found) > 1
    for example in found:
        printed = shell.run(example.command)
        assert agrees(example.shown, printed), "\n".join([f"{document}: {example.command} now prints", *printed])


def test_an_example_is_a_command_and_what_stands_below_it() -> None:
    ran = "Text\n\n    $ one\n    1\n\n    2\n    $ two\n\n"
    text = f"{ran}<!-- not run: slow -->\n\n    $ three\n    3\n\nText\n\n    $ four\n"
    found = [(example.line, example.command, example.shown) for example in examples(text)]
    assert found == [(3, "one", ["1", "", "2"]), (7, "two", []), (16, "four", [])]


def test_lines_are_left_out_only_where_it_is_said() -> None:
    assert agrees(["1", "...", "4"], ["1", "2", "3", "4"])
    assert agrees(["..."], [])
    assert not agrees(["1", "4"], ["1", "2", "3", "4"])
    assert not agrees(["1", "...", "4"], ["1", "2", "3"])
