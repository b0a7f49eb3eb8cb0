"""The complete node in Rust, built and run where there is a compiler."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvcli.main import run_command

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "conformance/examples/node.rs"
RUSTC = shutil.which("rustc")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(RUSTC is None, reason="there is no rustc")]


def built(source: Path, node: Path) -> str:
    """The name under which kvspec runs a node that is compiled from `source`."""
    subprocess.run([str(RUSTC), "--edition", "2021", "-D", "warnings", "-o", node, source], check=True)
    return f"exec:{node}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(SOURCE, tmp_path_factory.mktemp("rust") / "node")


def test_the_rust_node_passes_all_vectors_without_hybrid_pools(node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--impl", node]) == 0
    passed = re.search(r": (\d+) passed[,;]", capsys.readouterr().out)
    assert passed is not None and int(passed[1]) >= 155


def test_the_rust_node_breaks_no_rule_in_random_operations(node: str, tmp_path: Path) -> None:
    arguments = ["--operations", "3000", "--seed", "11", "--out", str(tmp_path / "failure.jsonl")]
    assert run_command(["fuzz", "--impl", node, *arguments]) == 0


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("record.committed.min(launched)", "record.committed.min(launched.max(tokens))", "DATA-1"),
        ("split_off(prefix_len.div_ceil(size))", "split_off(prefix_len / size)", "TAIL-2"),
        ("if self.is_read(record.row) {", "if false {", "RACE-1"),
    ],
)
def test_a_mistake_in_the_rust_node_is_found(
    right: str, wrong: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    source = tmp_path / "mistaken.rs"
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    assert run_command(["run", "--impl", built(source, tmp_path / "node"), "-x"]) == 1
    assert f"{rule} is broken" in capsys.readouterr().out
