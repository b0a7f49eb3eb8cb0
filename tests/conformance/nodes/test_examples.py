"""The complete node in Rust, built and run where there is a compiler."""

import shutil
from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.implementations import load
from kvconform.vectors.files import read_vectors, vector_files
from kvspec.events import Config
from tests.mutation.defects import NODE
from tests.mutation.node import built, by_vectors, mistaken
from tests.mutation.node_mutants import Mutant

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no rustc")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(NODE, tmp_path_factory.mktemp("rust") / "node")


def test_the_rust_node_passes_all_vectors(node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--impl", node, "-q"]) == 0
    passed, rest = capsys.readouterr().out.removeprefix(f"{node}: ").split(" passed; ")
    assert int(passed) == len(vector_files()) and "skipped" not in rest


def test_the_rust_node_breaks_no_rule_in_random_operations(node: str, tmp_path: Path) -> None:
    arguments = ["--operations", "3000", "--seed", "11", "--out", str(tmp_path / "failure.jsonl")]
    assert run_command(["fuzz", "--impl", node, *arguments]) == 0


def test_the_rust_node_gives_the_same_answers_to_the_same_operations(node: str) -> None:
    rows, factory = set(), load(node)
    for _ in range(10):
        manager = factory(Config(page_size=2, num_pages=8, num_rows=2, max_context_len=16))
        for req in "ab":
            manager.submit(req, [1, 2], None)
            manager.match_prefix(req)
        manager.extend([("a", 2), ("b", 2)])
        manager.launch(1, ["a", "b"])
        for req in "ab":
            manager.retract(req)
        manager.complete(1, {})
        manager.match_prefix("a")
        rows.add(str(manager.extend([("a", 2)]).rows))
    assert len(rows) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "right", "wrong", "rule"),
    [
        ("manager/release.rs", "min(launched).min(tokens)", "min(launched.max(tokens)).min(tokens)", "LAUNCH-1"),
        ("manager/waiting.rs", "split_off(prefix_len.div_ceil(size))", "split_off(prefix_len / size)", "TAIL-2"),
        ("manager/release.rs", "if self.is_read(record.row) {", "if false {", "RACE-1"),
        ("store.rs", "if from_end < self.reach {", "if from_end == 0 {", "SWA-5"),
    ],
)
def test_a_mistake_in_the_rust_node_is_found(module: str, right: str, wrong: str, rule: str, tmp_path: Path) -> None:
    node = mistaken(Mutant(module, right, wrong, ""), tmp_path)
    # Positions that are counted and were never launched break LAUNCH-1, in vectors of content.
    about = [vector for vector in read_vectors() if {rule, "DATA-1"}.intersection(vector.header.rules)]
    assert rule in by_vectors(node, about)
