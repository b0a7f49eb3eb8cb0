"""Walks cover each transition of a scope, none of them can be left out, and they are vectors."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.exploring import exhaust
from kvconform.exploring.canonical import key
from kvconform.exploring.covering import COVERS, Cover, Targets, graph, in_pairs, walks
from kvconform.exploring.moves import Node
from kvconform.oracle import Model
from kvconform.runs import exporting
from kvconform.traces.codec import read_vector
from kvconform.vectors.runner import unanswered
from kvspec.events import Refusal
from tests.conformance.exploring.small import SMALL

pytestmark = pytest.mark.slow

CHAPTER = Path(__file__).parents[3] / "spec/docs/interpreting-the-vectors.md"
SCOPE = SMALL._replace(operations=frozenset(("retract",)))
LITTLE = Cover("tiny", ("abort", "cache_unfinished", "close_session", "evict", "give_back", "preempt", "retract"))


def places(targets: Targets, walk: list[int]) -> list[int]:
    """Where a walk comes to, its beginning first."""
    came = [0]
    for step in walk:
        came.append(targets[came[-1]][step])
    return came


def taken(targets: Targets, walks: list[list[int]]) -> set[tuple[int, int]]:
    """The steps of all walks, each by its place and its number there."""
    return {one for walk in walks for one in zip(places(targets, walk), walk, strict=False)}


def test_walks_take_each_step_and_none_can_be_left_out() -> None:
    targets = graph(SCOPE).targets
    found = list(walks(targets))
    steps = {(place, step) for place, leading in enumerate(targets) for step in range(len(leading))}
    assert taken(targets, found) == steps
    assert all(taken(targets, found[:at] + found[at + 1 :]) < steps for at in range(len(found)))


def test_walks_between_pairs_take_each_two_steps_of_which_one_follows_the_other() -> None:
    targets = graph(SCOPE).targets
    pairs = {
        (place, first, second)
        for place, leading in enumerate(targets)
        for first, target in enumerate(leading)
        for second in range(len(targets[target]))
    }
    found = set()
    for walk in walks(in_pairs(targets)):
        found |= set(zip(places(targets, walk), walk, walk[1:], strict=False))
    assert found == pairs


def test_the_operations_of_walks_come_to_each_state_that_exploring_finds() -> None:
    moves, targets = graph(SCOPE)
    came = set()
    for walk in walks(targets):
        model = Model(SCOPE.config)
        for place, step in zip(places(targets, walk), walk, strict=False):
            for op in moves[place][step]:
                with suppress(Refusal):
                    model.step(unanswered(op))
            came.add((targets[place][step], key(Node(model.state, frozenset()))))
    explored = exhaust(SCOPE)
    assert len(came) == explored.states - 1, "all but the empty state, each by one name"
    assert sum(map(len, moves)) >= explored.transitions


def test_walks_are_vectors_with_answers_that_hold_and_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporting, "COVERS", (LITTLE,))
    for files in ("vector_files", "memory_vector_files"):
        monkeypatch.setattr(exporting, files, list)
    said: list[str] = []
    manifest = exporting.export(tmp_path / "once", "full", said.append)
    assert said[0] == "tiny: looking for walks"
    assert len(manifest.vectors) > 50
    for one in manifest.vectors:
        assert one.file.startswith("request/walks/tiny_")
        vector = read_vector(tmp_path / "once" / one.file)
        assert one.answers == one.file and one.rules == vector.header.rules and one.operations == len(vector.steps)
        assert all(step.expect is not None for step in vector.steps)
    assert run_command(["run", str(tmp_path / "once/request"), "-q"]) == 0
    assert f": {len(manifest.vectors)} passed;" in capsys.readouterr().out
    assert exporting.export(tmp_path / "again", "full").digest == manifest.digest


@pytest.mark.parametrize("cover", COVERS, ids=lambda cover: cover.name)
def test_the_chapter_says_of_each_system_what_is_left_out(cover: Cover) -> None:
    (row,) = re.findall(rf"^\| {cover.name} \| .*", CHAPTER.read_text(encoding="utf-8"), re.MULTILINE)
    assert row.split("|")[3].strip() == ", ".join(f"`{operation}`" for operation in cover.without)
