"""The table of behaviours: each of its links leads somewhere, and to what the row says."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

from kvconform.gallery.finders import find_by_vectors
from kvconform.gallery.mutants import BUGS
from kvconform.site import CHAPTERS
from kvconform.site.prose import RULE_ID, qualified
from kvconform.traces.codec import Vector, read_vector
from kvconform.vectors.files import vector_file
from kvconform.vectors.runner import run_vector
from kvref.manager import Manager
from kvspec.rules import RULES

CHAPTER = CHAPTERS / "behaviours.md"
TRAFFIC = "Traffic:"
"""Begins the cell of a vector where only traffic through the scheduler can show the behaviour."""
REASONS = ("Policy:", "No bookkeeping:", "Out:")
"""The beginning of the reason of a statement without a rule."""


class Behaviour(NamedTuple):
    """A row of a table of behaviours."""

    where: str
    says: str
    rules: list[str]
    code: str
    """The dotted name of a function."""
    vector: str
    mutant: str


def cells() -> Iterator[list[str]]:
    """The rows of all tables below a heading, without the lines at the top of each."""
    tables = re.findall(r"(?:^\|.*\n)+", CHAPTER.read_text(encoding="utf-8"), re.MULTILINE)
    for table in tables:
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def behaviours() -> list[Behaviour]:
    """The statements with rules."""
    found = []
    for row in cells():
        if len(row) == len(Behaviour._fields):
            where, says, rules, code, vector, mutant = row
            found.append(
                Behaviour(where, says, rules.split(", "), *(name.strip("`") for name in (code, vector, mutant)))
            )
    return found


ROWS = behaviours()
SHOWN = [row for row in ROWS if not row.vector.startswith(TRAFFIC)]
"""The rows with a vector."""


def function(name: str) -> Any:
    """The function of a dotted name."""
    full = qualified(name)
    assert full is not None and full.startswith(("kvspec.", "kvref.")), name
    parts = full.split(".")
    module = next(".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules)
    thing: Any = importlib.import_module(module)
    for part in full.removeprefix(f"{module}.").split("."):
        thing = inspect.getattr_static(thing, part)
    return inspect.unwrap(thing)


@cache
def vector_named(name: str) -> Vector:
    return read_vector(vector_file(name))


@cache
def run_by(name: str) -> frozenset[CodeType]:
    """All functions that run while the reference, and the model beside it, carry a vector out."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        assert run_vector(vector_named(name), Manager).finding is None
    finally:
        sys.setprofile(before)
    return frozenset(called)


def test_each_row_is_whole_and_says_something_else() -> None:
    assert all(all(row) for row in cells())
    assert len({row.says for row in ROWS}) == len(ROWS)
    assert all(says.endswith(".") for says in (row.says for row in ROWS))


def test_each_rule_is_in_a_row_or_among_those_that_no_row_names() -> None:
    named = {rule for row in ROWS for rule in row.rules}
    last = CHAPTER.read_text(encoding="utf-8").partition("## Rules that no line names")[2]
    assert sorted(RULES.keys() - named) == sorted(RULE_ID.findall(last))


def test_each_statement_without_a_rule_has_its_reason() -> None:
    reasons = [row[2] for row in cells() if len(row) == 3 and row[0] != "where"]
    assert reasons and all(reason.startswith(REASONS) and reason.endswith(".") for reason in reasons)


def test_a_row_without_a_vector_is_of_the_scheduler() -> None:
    assert [row.mutant for row in ROWS if row not in SHOWN and not BUGS[row.mutant].is_of_scheduler] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_the_rules_the_code_and_the_mutant_of_a_row_exist(row: Behaviour) -> None:
    assert row.rules and set(row.rules) <= RULES.keys()
    assert inspect.isfunction(function(row.code))
    assert set(BUGS[row.mutant].rules) & set(row.rules)


@pytest.mark.slow
@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.says)
def test_the_vector_of_a_row_is_about_its_rules_and_runs_its_code(row: Behaviour) -> None:
    assert set(vector_named(row.vector).header.rules) & set(row.rules)
    assert function(row.code).__code__ in run_by(row.vector)


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.says)
def test_the_vector_of_a_row_finds_its_mutant_and_blames_it_rightly(row: Behaviour) -> None:
    bug = BUGS[row.mutant]
    (found,) = find_by_vectors(bug, [vector_named(row.vector)])
    assert found.rule in bug.rules
