"""`kvspec vectors export`: the vectors of both levels as files for players in any language, with their answer keys."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from kvconform.errors import InputError
from kvconform.exploring.covering import COVERS, Cover, walks_of
from kvconform.exploring.scope import scope_named
from kvconform.features import FEATURES, needs
from kvconform.implementations import load
from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import OracleProxy
from kvconform.traces.codec import Vector, VectorStep, read_vector
from kvconform.traces.expect import Expect, ExpectedAnswer
from kvconform.traces.memory import read_memory_vector
from kvconform.vectors.files import MEMORY, memory_vector_files, vector_files
from kvconform.vectors.runner import carry_out, unanswered
from kvspec import __version__
from kvspec.events import Operation
from kvspec.model import looking
from kvspec.pages import count
from kvspec.rules import RULES
from kvtrace.header import VERSION, encode
from kvtrace.operations import Header

Size = Literal["small", "standard", "full"]
"""Small: for each rule the shortest vector that exercises it. Standard: all. Full: walks through small systems, too."""

WALKS = "walks"
"""The chapter of walks among the vectors of the request level."""
REPORTED_EVERY = 500
"""Walks between two calls of `Progress`."""

Progress = Callable[[str], object]


class Listed(msgspec.Struct):
    """A vector in the manifest."""

    name: str
    level: Literal["request", "memory"]
    file: str
    """The vector, below the folder."""
    answers: str
    """Its answer key, below the folder: the same vector with an `expect` line after every operation. For walks and the
    memory level it is the vector itself."""
    description: str
    rules: list[str]
    """The rules that it exercises."""
    needs: list[str]
    """The features that an implementation needs to run it."""
    pools: list[str]
    operations: int


class Manifest(msgspec.Struct):
    """`manifest.json`."""

    kvspec: str
    """The version of the specification."""
    format: int
    """The version of the file format."""
    size: Size
    digest: str
    """SHA-256 over the name and the bytes of each file in order of name, each followed by a zero byte."""
    features: dict[str, str]
    """An explanation of each feature that a vector may need."""
    vectors: list[Listed]


def export(folder: Path, size: Size, progress: Progress = lambda _: None) -> Manifest:
    """Write vectors, answer keys and `manifest.json` to a new or empty folder; the same bytes each time.

    `progress` is called with a line about the walks of the full size every few hundred walks.

    Raises:
        InputError: the folder is not empty. OSError: a file cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(folder, 0, "the folder to export to is not empty")
    exported = [_request(path) for path in vector_files()] + [_memory(path) for path in memory_vector_files()]
    if size == "small":
        exported = _smallest(exported)
    if size == "full":
        for cover in COVERS:
            exported += _walks(cover, progress)
    files = {name: text for _, written in exported for name, text in written.items()}
    digest = sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name] + b"\0")
    listed = [listed for listed, _ in exported]
    manifest = Manifest(__version__, VERSION, size, digest.hexdigest(), FEATURES, listed)
    files["manifest.json"] = msgspec.json.format(encode(manifest), indent=2) + b"\n"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return manifest


Exported = tuple[Listed, dict[str, bytes]]
"""A vector in the manifest, and its files."""


def _request(path: Path) -> Exported:
    vector = read_vector(path)
    name = f"{path.parent.name}/{vector.name}.jsonl"
    header, (key, _) = replace(vector.header, needs=sorted(needs(vector))), _answer_key(vector)
    files = {
        f"request/{name}": _lines(header, (part for step in vector.steps for part in (step.op, step.expect))),
        f"answers/{name}": _with_answers(header, vector, key),
    }
    return _listed(header, vector, *files), files


def _walks(cover: Cover, progress: Progress) -> Iterator[Exported]:
    """The walks of a cover: vectors that are their own answer keys."""
    progress(f"{cover.name}: looking for walks")
    config, found = scope_named(cover.scope, cover.without).config, walks_of(cover)
    for number, operations in enumerate(found, start=1):
        if number % REPORTED_EVERY == 0:
            progress(f"{cover.name}: {number:,} of {len(found):,} walks done")
        file = f"request/{WALKS}/{cover.name}_{number:04}.jsonl"
        steps = [VectorStep(line, unanswered(op), None) for line, op in enumerate(operations, start=2)]
        vector = Vector(Path(file), Header(VERSION, "kvspec", config), steps)
        key, checked = _answer_key(vector)
        header = replace(
            vector.header,
            description=f"Walk {number:,} of {len(found):,} that cover {cover.what}.",
            rules=[rule for rule in RULES if checked[rule]],
            needs=sorted(needs(vector)),
        )
        yield _listed(header, vector, file, file), {file: _with_answers(header, vector, key)}


def _listed(header: Header, vector: Vector, file: str, answers: str) -> Listed:
    config = header.config
    has = {"rows": config.num_rows, "window": config.num_window_pages, "states": config.num_states}
    return Listed(
        vector.name,
        "request",
        file,
        answers,
        header.description or "",
        header.rules,
        header.needs,
        ["pages", *(pool for pool, numbers in has.items() if numbers)],
        len(vector.steps),
    )


def _lines(header: msgspec.Struct, parts: Iterable[msgspec.Struct | None]) -> bytes:
    return b"".join(encode(part) + b"\n" for part in (header, *parts) if part not in (None, Expect()))


def _with_answers(header: Header, vector: Vector, key: list[Expect]) -> bytes:
    return _lines(header, (part for step, expect in zip(vector.steps, key, strict=True) for part in (step.op, expect)))


def _memory(path: Path) -> Exported:
    vector = read_memory_vector(path)
    header, file = vector.header, f"{MEMORY}/{path.name}"
    listed = Listed(
        vector.name,
        "memory",
        file,
        file,
        header.description or "",
        header.rules,
        [],
        [*header.pools],
        len(vector.steps),
    )
    return listed, {file: path.read_bytes()}


def _smallest(exported: Sequence[Exported]) -> list[Exported]:
    """For each rule the vector with the fewest operations that exercises it, in the given order."""
    chosen: dict[str, Listed] = {}
    for listed, _ in exported:
        for rule in listed.rules:
            best = chosen.setdefault(rule, listed)
            chosen[rule] = min(best, listed, key=lambda one: one.operations)
    names = {listed.file for listed in chosen.values()}
    return [one for one in exported if one[0].file in names]


def _answer_key(vector: Vector) -> tuple[list[Expect], Mapping[str, int]]:
    """The answer key, an entry for each operation, and how often each rule was checked.

    An entry has the answer or refusal, the lengths of all holders, and the figures.
    """
    model = QuickModel(vector.header.config)
    proxy = OracleProxy(load("reference")(vector.header.config), model)
    key = []
    for step in vector.steps:
        op = unanswered(step.op)
        carry_out(proxy, op)
        names = dict.fromkeys((*model.state.requests, *model.state.sessions))
        rows = step.expect or Expect()
        expect = Expect(
            answer=_counted(op),
            lengths={name: model.lengths_of(name) for name in names},
            figures=looking.figures(model.state),
            same_row=rows.same_row,
            different_row=rows.different_row,
        )
        if op.refused is not None:
            expect.refused = op.refused.rule
            if op.refused.rule == "CAP-1":
                expect.pages_short, expect.rows_short = op.refused.pages_short, op.refused.rows_short
                expect.window_short, expect.states_short = op.refused.window_short, op.refused.states_short
        key.append(expect)
    return key, model.state.checked


_LISTS = ("freed", "evicted", "window_freed", "window_evicted", "states_freed", "states_evicted")
_LISTS_BY_REQUEST = ("pages", "window_pages", "states")
"""Parts of an answer that are compared only by numbers: the length of a list, or one for each request."""


def _counted(op: Operation[Any]) -> ExpectedAnswer | None:
    """The parts of an answer that do not depend on the implementation's choices."""
    answer: dict[str, Any] = {} if op.obs is None else asdict(op.obs)
    parts = {name: value for name, value in answer.items() if name in ExpectedAnswer.__struct_fields__}
    for name, value in parts.items():
        if value is not None and name in _LISTS:
            parts[name] = count(value)
        elif value is not None and name in _LISTS_BY_REQUEST:
            parts[name] = {req: count(runs) for req, runs in value.items()}
    return ExpectedAnswer(**parts) if any(value is not None for value in parts.values()) else None
