"""The schema that is printed describes what is read and written."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvcli.main import run_command
from kvconform.traces.schema import schema
from kvconform.vectors.files import memory_vector_files, vector_files
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR

VALIDATOR = Draft202012Validator(schema())


def test_the_schema_is_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    Draft202012Validator.check_schema(schema())
    assert run_command(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


@pytest.mark.slow
def test_vectors_and_what_is_recorded_of_them_satisfy_the_schema(tmp_path: Path) -> None:
    vectors = vector_files()[::9]
    assert run_command(["run", *map(str, vectors), "--record", str(tmp_path)]) == 0
    traces = sorted(tmp_path.iterdir())
    assert [path.name for path in vectors] == [path.name for path in traces] != []
    for line in {line for path in vectors + traces for line in path.read_text().splitlines()}:
        VALIDATOR.validate(json.loads(line))
    assert run_command(["check", "-j", "1", *map(str, traces)]) == 0


@pytest.mark.slow
def test_vectors_of_the_memory_level_satisfy_the_schema() -> None:
    lines = {line for path in memory_vector_files() for line in path.read_text().splitlines()}
    assert len(lines) > 300
    for line in lines:
        VALIDATOR.validate(json.loads(line))


@pytest.mark.parametrize("change", [{"op": "renew"}, {"pages": [1.5]}, {"holder": 7}, {"extra": 1}, {"pages": [[1]]}])
def test_what_is_no_event_does_not_satisfy_the_schema(change: dict[str, Any]) -> None:
    line = {"op": "take", "holder": "r", "pool": "kv", "pages": [1, [2, 3]], "at": "alloc"}
    assert VALIDATOR.is_valid(line)
    assert not VALIDATOR.is_valid(line | change)


def test_every_line_of_a_trace_satisfies_the_schema() -> None:
    for line in [HEADER, VECTOR, *LIFE, *RECORDED, {"op": "expect", "lengths": {"r": [0, 6, 6], "q": None}}]:
        assert VALIDATOR.is_valid(line)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "steal"},
        {"req": 7},
        {"extra": 1},
        {"obs": {"prefix_len": "8"}},
        {"obs": {"freed": [[1]]}},
        {"obs": {"freed": [1.5]}},
        {"obs": {"evicted": []}},
    ],
)
def test_what_cannot_be_read_does_not_satisfy_the_schema(change: dict[str, Any]) -> None:
    line = copy.deepcopy(RECORDED[1])
    assert VALIDATOR.is_valid(line)
    assert not VALIDATOR.is_valid(line | change)


def test_a_header_without_sizes_does_not_satisfy_the_schema() -> None:
    assert not VALIDATOR.is_valid({"kvspec": 2, "producer": "x", "config": {"page_size": 4}})
