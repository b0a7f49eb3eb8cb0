"""The complete node in C++, built and run where there is a compiler."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvcli.main import run_command

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "conformance/examples/node.cpp"
COMPILER = shutil.which("g++")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="there is no g++")]


def built(source: Path, node: Path) -> str:
    """The name under which kvspec runs a node that is compiled from `source`."""
    subprocess.run([str(COMPILER), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", node, source], check=True)
    return f"exec:{node}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(SOURCE, tmp_path_factory.mktemp("cpp") / "node")


def test_the_cpp_node_passes_all_vectors_without_hybrid_pools(node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--impl", node, "-q"]) == 0
    passed = re.search(r": (\d+) passed[,;]", capsys.readouterr().out)
    assert passed is not None and int(passed[1]) >= 159


def test_the_cpp_node_breaks_no_rule_in_random_operations(node: str, tmp_path: Path) -> None:
    arguments = ["--operations", "1000", "--seed", "11", "--out", str(tmp_path / "failure.jsonl")]
    assert run_command(["fuzz", "--impl", node, *arguments]) == 0


HEADER = '{"config": {"page_size": 4, "num_pages": 4, "num_rows": 2, "max_context_len": 16}}\n'


def test_the_cpp_node_writes_names_as_they_were_read(node: str) -> None:
    submitted = r'{"op": "submit", "req": "é\"\\\/\n\u0001", "tokens": ["key", 5]}'
    ended = asked(node, f"{HEADER}{submitted}\n{submitted}")
    refusal = r'"reason":"there is a request é\"\\/\u000a\u0001 already"'
    assert ended.returncode == 0 and refusal in ended.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("[", "expected a number before: "),
        ('{"op": "report"}', "an operation comes before a header"),
        (HEADER + '{"op": "finish", "req": "A"} B', "expected the end of the line before: B"),
    ],
)
def test_the_cpp_node_says_in_a_line_what_it_cannot_read(node: str, line: str, error: str) -> None:
    ended = asked(node, line)
    assert (ended.returncode, ended.stderr) == (1, f"node: {error}\n")


def asked(node: str, lines: str) -> "subprocess.CompletedProcess[str]":
    """The end of a node that reads `lines`."""
    command = [node.removeprefix("exec:")]
    return subprocess.run(command, input=lines, capture_output=True, encoding="utf-8", check=False, timeout=60)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("right", "wrong", "finding"),
    [
        (
            "+ ceil_pages(kept);",
            "+ floor_pages(kept);",
            "TAIL-2 is broken at tail_freed_after_retract_p4",
        ),
        (
            "passage.row == row && passage.part.end > from",
            "passage.row == row && passage.part.end < from",
            "RACE-1 is broken at row_withheld_after_retract",
        ),
    ],
)
def test_a_mistake_in_the_cpp_node_is_found(
    right: str, wrong: str, finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    source = tmp_path / "mistaken.cpp"
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    vector = finding.split()[-1]
    assert run_command(["run", "--impl", built(source, tmp_path / "node"), "-k", vector]) == 1
    assert f"{finding}:" in capsys.readouterr().out
