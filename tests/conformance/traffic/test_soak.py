"""Traffic in every combination of modes."""

from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.traffic.soak import combinations


def test_every_mode_meets_every_other() -> None:
    every = list(combinations())
    assert len(set(every)) == len(every) == (2 * 3 + 1) * 3 * 2 * 2 * 3 * 2 * 4 * 2
    for one in ("overlap", "mixed_chunk", "drafts", "retract_interval", "abort_interval"):
        for other in ("overlap", "mixed_chunk", "drafts", "retract_interval", "abort_interval"):
            assert any(getattr(mode, one) and getattr(mode, other) for mode, *_ in every)


@pytest.mark.slow
def test_the_reference_survives_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["soak", "--minutes", "0.05", "--seed", "9"]) == 0
    assert "reference: no rule was broken." in capsys.readouterr().out


def test_a_defect_ends_a_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["soak", "--impl", "bug:stale-row-index", "--minutes", "1"]) == 1
    assert "does not conform: ROW-4" in capsys.readouterr().out


def test_each_run_is_recorded_for_check(tmp_path: Path) -> None:
    assert run_command(["soak", "--operations", "300", "--record", str(tmp_path / "traces")]) == 0
    traces = sorted(map(str, (tmp_path / "traces").iterdir()))
    assert traces and run_command(["check", "-q", *traces]) == 0
