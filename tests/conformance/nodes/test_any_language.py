"""The page `any-language.md` lists all features; a run that supports no vector names those that lack."""

import re

import pytest

from kvcli.main import run_command
from kvconform.features import FEATURES
from tests.conformance.nodes.golang import ROOT


def test_the_page_lists_the_features() -> None:
    page = (ROOT / "conformance/docs/any-language.md").read_text(encoding="utf-8")
    table = page.partition("## The features")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.MULTILINE)) == FEATURES


def test_a_run_that_supports_no_vector_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    node = """exec:echo '{"kvspec": 2, "name": "n"}'"""
    assert run_command(["run", "room_is_estimated", "--impl", node]) == 2
    assert f"supports none of these vectors: no {FEATURES['estimated_room']}" in capsys.readouterr().err
