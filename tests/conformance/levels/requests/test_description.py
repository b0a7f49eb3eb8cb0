"""A value that an answer leaves out is not reported as if it were known."""

from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.levels.requests.description import sentence
from kvspec import events as e
from tests.conformance.helpers import HEADER, RECORDED, lines


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (e.MatchPrefix("A", obs=e.MatchAnswer()), "A asks how much of it is cached."),
        (e.MatchPrefix("A", obs=e.MatchAnswer(prefix_len=8)), "A asks how much of it is cached: 8."),
        (e.Extend([("A", 6)], obs=e.ExtendAnswer()), "A prefill is prepared, of A up to 6."),
        (e.Extend([("A", 6)], obs=e.ExtendAnswer(pages={"A": [(1, 2)]})), ": A gets pages 1..2."),
        (e.Extend([("A", 6)], obs=e.ExtendAnswer(rows={"A": 0})), ": A has row 0."),
        (e.Extend([("A", 6)], obs=e.ExtendAnswer({"A": 0}, {"A": [3]})), ": A has row 0 and gets page 3."),
        (e.Decode(["A"], obs=e.DecodeAnswer()), "A decode step is prepared for A."),
        (e.Decode(["A"], obs=e.DecodeAnswer({})), " for A, in the pages that are there."),
        (e.CacheUnfinished("A", obs=e.PublishAnswer()), "A publishes what it has prefilled."),
        (e.Finish("A", obs=e.ReleaseAnswer()), "A is finished."),
        (e.Finish("A", obs=e.ReleaseAnswer([])), "A is finished; nothing is freed."),
        (e.Report("busy", obs=e.Figures()), "The figures are asked for (busy)."),
        (e.Snapshot(obs=e.SnapshotAnswer()), "A look at the whole state."),
        (e.Snapshot(obs=e.SnapshotAnswer(requests={})), ": no row is held."),
        (e.Snapshot(obs=e.SnapshotAnswer(requests={"A": e.HolderView(committed_len=8)})), ": A committed 8."),
    ],
)
def test_a_sentence_says_what_was_answered_and_no_more(op: e.Operation[e.Answer], said: str) -> None:
    assert sentence(op).endswith(said)


def test_without_rows_the_map_has_none_and_pages_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = HEADER | {"config": HEADER["config"] | {"num_rows": 0}}
    given = RECORDED[2] | {"obs": {"pages": {"r": [[1, 2]]}}}
    ends = RECORDED[5] | {"obs": {"freed": []}}
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines(header, *RECORDED[:2], given, *RECORDED[3:5], ends))
    assert run_command(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "request r: protected 0, committed 6, allocated 6, pages 1..2\n" in out
    assert " -1" not in out
