"""The complete node in Go, built and run where there is a Go."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvcli.main import run_command
from tests.conformance.nodes.golang import EXAMPLES, go, needs_go

SOURCE = EXAMPLES / "node-go"

pytestmark = [pytest.mark.slow, pytest.mark.thorough, needs_go]


def built(source: Path, node: Path) -> str:
    """The name under which kvspec runs a node that is compiled from the folder `source`."""
    go("build", "-o", node, ".", cwd=source)
    return f"exec:{node}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(SOURCE, tmp_path_factory.mktemp("go") / "node")


def test_the_go_node_passes_all_vectors_without_hybrid_pools(node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--impl", node]) == 0
    passed = re.search(r": (\d+) passed[,;]", capsys.readouterr().out)
    assert passed is not None and int(passed[1]) >= 159


def test_the_go_node_breaks_no_rule_in_random_operations(node: str, tmp_path: Path) -> None:
    arguments = ["--operations", "2000", "--seed", "11", "--out", str(tmp_path / "failure.jsonl")]
    assert run_command(["fuzz", "--impl", node, *arguments]) == 0


def test_the_examples_in_go_are_formatted() -> None:
    gofmt = Path(go("env", "GOROOT", cwd=SOURCE).strip()) / "bin/gofmt"
    assert subprocess.run([gofmt, "-l", EXAMPLES], check=True, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("[", "node: unexpected EOF"),
        ('{"op": "submit", "req": "A", "tokens": [1]}', "node: submit comes before a header"),
        ('{"config": {"page_size": 0}}', "node: pages of 0 tokens"),
    ],
)
def test_the_go_node_says_in_a_line_what_it_cannot_read(node: str, line: str, answers: str) -> None:
    command = node.removeprefix("exec:")
    ended = subprocess.run([command], input=line, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, f"{answers}\n")


@pytest.mark.parametrize(
    ("file", "right", "wrong", "finding"),
    [
        (
            "leaving.go",
            ", r.run.prepared.start)",
            ", r.run.prepared.end)",
            "LAUNCH-1 is broken at step_not_launched_is_not_kept",
        ),
        (
            "waiting.go",
            "m.cut(kept, r.prefixLen)",
            "m.cut(kept, kept.committed)",
            "TAIL-1 is broken at tail_freed_after_one_retract",
        ),
        ("manager.go", "if m.reads(r.row, 0) {", "if false {", "RACE-1 is broken at row_withheld_after_retract"),
    ],
)
def test_a_mistake_in_the_go_node_is_found(
    file: str, right: str, wrong: str, finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shutil.copytree(SOURCE, tmp_path / "mistaken")
    text = (source / file).read_text(encoding="utf-8")
    assert text.count(right) == 1
    (source / file).write_text(text.replace(right, wrong), encoding="utf-8")
    vector = finding.split()[-1]
    assert run_command(["run", "--impl", built(source, tmp_path / "node"), "-k", vector]) == 1
    assert f"{finding}:" in capsys.readouterr().out
