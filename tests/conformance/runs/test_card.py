"""The report card: what was checked of an implementation, on one page."""

import json
from pathlib import Path

import msgspec
import pytest

from kvcli.main import run_command
from kvconform.features import FEATURES
from kvconform.runs import card as cards
from kvconform.runs.card import Card

KEEPS = "tests.conformance.helpers:KeepsPages"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "OPERATIONS", 400)


def card_of(path: Path, *arguments: str) -> tuple[int, Card]:
    status = run_command(["run", *arguments, "--report-card", str(path)])
    return status, msgspec.json.decode(path.read_bytes(), type=Card)


def test_a_card_counts_vectors_by_chapter_and_random_operations(tmp_path: Path) -> None:
    status, card = card_of(tmp_path / "card.json", "-k", "speculative-decoding")
    assert status == 0
    assert card.chapters["speculative-decoding"]["passed"] > 5
    assert (card.failed, card.skipped, card.broken) == ({}, {}, [])
    assert 400 <= card.fuzzed < 800 and card.seed == 0
    assert card.unsupported.items() <= FEATURES.items()


def test_a_card_names_what_failed(tmp_path: Path) -> None:
    status, card = card_of(tmp_path / "card.json", "abort_plain", "overshoot_plain", "--impl", KEEPS)
    assert status == 1
    assert sum(counts["failed"] for counts in card.chapters.values()) == len(card.failed) > 0
    assert any("PAGE-1" in kind or "STORE" in kind for kind in card.broken)


def test_a_card_in_markdown_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "card.md"
    assert (
        run_command(["run", "-k", "speculative-decoding", "--impl", KEEPS, "--report-card", str(path), "--json"]) == 1
    )
    verdicts = [case["verdict"] for case in json.loads(capsys.readouterr().out)["cases"]]
    passed, failed = verdicts.count("conforms"), verdicts.count("fails")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# Report card: {KEEPS}\n")
    assert f"\n| all | {passed} | 0 | {failed} | 0 | 0 |\n" in text and failed
    assert "\n## Broken in random operations\n" in text


def test_a_card_without_vectors_of_the_request_level_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", "request_lives", "--report-card", str(tmp_path / "card.md")]) == 2
    assert "there are none" in capsys.readouterr().err


def test_an_implementation_that_cannot_be_made_ends_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["fuzz", "--operations", "1000", "--impl", "tests.conformance.helpers:CannotBeMade"]) == 1
    assert "while it was made" in capsys.readouterr().out
