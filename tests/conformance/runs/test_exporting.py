"""Vectors as files: all of them, with answer keys that hold, and the same bytes each time."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcli.main import run_command
from kvconform.features import needs
from kvconform.runs.exporting import Manifest, export
from kvconform.traces.codec import Vector, read_vector
from kvconform.vectors.files import memory_vector_files, vector_files
from kvconform.vectors.runner import ExpectationFailed, run_vector
from kvref.manager import Manager
from kvspec.rules import ALL_RULES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "vectors"
    export(folder, "standard")
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)


def keys(folder: Path, manifest: Manifest) -> list[Vector]:
    return [read_vector(folder / one.answers) for one in manifest.vectors if one.level == "request"]


def test_every_vector_is_exported_as_it_is(folder: Path, manifest: Manifest) -> None:
    paths = [*vector_files(), *memory_vector_files()]
    assert [one.name for one in manifest.vectors] == [path.stem for path in paths]
    for one, path in zip(manifest.vectors, paths, strict=True):
        if one.level == "memory":
            assert (folder / one.file).read_bytes() == path.read_bytes()
            continue
        exported, own = read_vector(folder / one.file), read_vector(path)
        assert exported.steps == own.steps
        assert exported.header.needs == one.needs == sorted(needs(own))
        assert exported.header == msgspec.structs.replace(own.header, needs=one.needs)


def test_the_reference_answers_as_every_answer_key_says(folder: Path, manifest: Manifest) -> None:
    found = [run_vector(vector, Manager).finding for vector in keys(folder, manifest)]
    assert found == [None] * len(found)


@pytest.mark.parametrize("part", ["prefix_len", "protected_len", "freed", "pages", "evicted", "lengths", "uncached"])
def test_another_number_in_an_answer_key_is_noticed(
    folder: Path, manifest: Manifest, part: str, tmp_path: Path
) -> None:
    for one in manifest.vectors:
        if one.level == "memory":
            continue
        lines = [json.loads(line) for line in (folder / one.answers).read_text().splitlines()]
        for line in lines:
            if line["op" if "op" in line else "kvspec"] == "expect" and changed(line, part):
                path = tmp_path / "changed.jsonl"
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
                assert isinstance(run_vector(read_vector(path), Manager).finding, ExpectationFailed)
                return
    raise AssertionError(f"no answer key has {part}")


def changed(expect: dict[str, Any], part: str) -> bool:
    """Make one number of a part of an `expect` line another; whether it has that part."""
    if part == "lengths":
        held = [lengths for lengths in expect.get("lengths", {}).values() if lengths]
        for lengths in held:
            lengths[1] += 1
        return bool(held)
    place = expect["figures"] if part == "uncached" else expect.get("answer", {})
    if part == "pages" and place.get(part):
        place[part] = {req: count + 1 for req, count in place[part].items()}
    elif isinstance(place.get(part), int):
        place[part] += 1
    else:
        return False
    return True


def test_an_answer_key_has_a_line_for_every_operation(folder: Path, manifest: Manifest) -> None:
    for vector, own in zip(keys(folder, manifest), map(read_vector, vector_files()), strict=True):
        assert len(vector.steps) == len(own.steps)
        for key, step in zip(vector.steps, own.steps, strict=True):
            assert key.expect is not None and key.expect.figures is not None
            if step.expect is not None:
                assert key.expect.refused == step.expect.refused


def test_the_digest_is_that_of_the_files_and_always_the_same(folder: Path, manifest: Manifest, tmp_path: Path) -> None:
    digest = sha256()
    for path in sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl")):
        digest.update(path.encode() + b"\0" + (folder / path).read_bytes() + b"\0")
    assert manifest.digest == digest.hexdigest()
    export(tmp_path / "again", "standard")
    assert (tmp_path / "again/manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_the_small_size_exercises_every_rule_that_all_vectors_do(tmp_path: Path, manifest: Manifest) -> None:
    small = export(tmp_path / "small", "small")
    assert {rule for one in small.vectors for rule in one.rules} == {
        rule for one in manifest.vectors for rule in one.rules
    }
    assert len(small.vectors) <= len(ALL_RULES) < len(manifest.vectors)


def test_the_command_names_the_digest_and_refuses_a_folder_with_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["vectors", "export", str(tmp_path / "out"), "--size", "small"]) == 0
    digest = json.loads((tmp_path / "out/manifest.json").read_text())["digest"]
    assert digest in capsys.readouterr().out
    assert run_command(["vectors", "export", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"kvspec: {tmp_path / 'out'}: the folder to export to is not empty\n"
