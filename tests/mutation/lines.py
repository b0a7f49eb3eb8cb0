"""The line of a mutant: which lines lead there, which of them a test runs, and whether anything can be noticed.

Lines are counted from the one with `def`, and a set of lines is a number: its bits.
"""

import ast
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

ALL = -1
"""Every line."""
PATIENCE = 60
"""After so many calls that ran no new line of it a function is not looked at any more: noting lines takes long."""

UNREAD = {"cast": 0} | {f"lengths.{name}": 2 for name in ("begin", "extend", "decode", "verify", "resume")}
"""The arguments that functions leave to the type checker, or to their contracts."""


@contextmanager
def traced(codes: Iterable[CodeType]) -> Iterator[dict[CodeType, int]]:
    """The lines of these functions that are run in the meantime; a function that is not called is not there.

    One that was not looked at to its end may have run any: `ALL`.
    """
    run: dict[CodeType, int] = {}
    missing = {code: set(_lines_of(code)) for code in codes}
    in_vain = dict.fromkeys(missing, 0)

    def enter(frame: FrameType, event: str, _: object) -> Callable[[FrameType, str, Any], Any] | None:
        code = frame.f_code
        if code not in missing:
            return None
        run.setdefault(code, 0)
        in_vain[code] += 1
        return step if missing[code] and in_vain[code] <= PATIENCE else None

    def step(frame: FrameType, event: str, _: object) -> Callable[[FrameType, str, Any], Any] | None:
        code, line = frame.f_code, frame.f_lineno
        if event == "line" and line in missing[code]:
            missing[code].discard(line)
            in_vain[code] = 0
            run[code] |= 1 << (line - start(code))
        return step

    sys.settrace(enter)
    try:
        yield run
    finally:
        sys.settrace(None)
        run |= {code: ALL for code in run if missing[code] and in_vain[code] > PATIENCE}


@cache
def _lines_of(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line is not None and line > start(code))


@cache
def start(code: CodeType) -> int:
    """The number of the line that has `def`; decorators stand above it."""
    lines, first = inspect.getsourcelines(code)
    return first + next(index for index, line in enumerate(lines) if line.lstrip().startswith("def "))


def leading_to(original: CodeType, mutant: CodeType) -> int:
    """The lines of the original of which one is run on every way to the mutant."""
    changed = _first_change(original, mutant)
    around = _around(original, changed)
    if not around:
        return ALL
    last = around[-1]
    return _bits(last.lineno, _head_end(last) if changed <= _head_end(last) else last.end_lineno or last.lineno)


def unchecked(original: CodeType, mutant: CodeType) -> str:
    """Why it makes no difference for any test whether the original or the mutant runs; empty where it may."""
    around = _around(original, _first_change(original, mutant))
    if around and isinstance(around[-1], ast.Assert):
        return "an assertion that cannot be false, which is there for the type checker"
    if _as_it_runs(_text(original)) == _as_it_runs(_text(mutant)):
        return "strict=, said of lists that have the same length, or what a contract or the type checker alone reads"
    return ""


def difference(original: CodeType, mutant: CodeType) -> list[str]:
    """The lines that a mutant changes, as they were and as they are."""
    compared = difflib.unified_diff(_text(original).splitlines(), _text(mutant).splitlines(), n=0, lineterm="")
    return [line for line in compared if not line.startswith(("---", "+++", "@@"))]


def _first_change(original: CodeType, mutant: CodeType) -> int:
    """The number of the first line that differs, counted from 1."""
    pairs = zip(_text(original).splitlines(), _text(mutant).splitlines(), strict=False)
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 1)


def _around(original: CodeType, line: int) -> list[ast.stmt]:
    """The statements of a function that a line is in, from the outermost to the innermost; none for its head."""
    (function,) = ast.parse(_text(original)).body
    assert isinstance(function, ast.FunctionDef)
    around: list[ast.stmt] = []
    inside: list[ast.stmt] = function.body
    while inside:
        one = next((one for one in inside if one.lineno <= line <= (one.end_lineno or 0)), None)
        if one is None:
            break
        around.append(one)
        parts = () if isinstance(one, ast.FunctionDef) else ("body", "orelse", "finalbody")
        inside = [inner for part in parts for inner in getattr(one, part, ())]
    return around


def _head_end(statement: ast.stmt) -> int:
    """The last line of a statement before those inside it."""
    body = getattr(statement, "body", None)
    return body[0].lineno - 1 if body else statement.end_lineno or statement.lineno


def _as_it_runs(text: str) -> str:
    """A function without what it says of `strict`, and without arguments that nothing reads while contracts are off."""
    tree = ast.parse(text)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            call.keywords = [keyword for keyword in call.keywords if keyword.arg != "strict"]
            unread = UNREAD.get(ast.unparse(call.func), len(call.args))
            call.args[unread : unread + 1] = [ast.Constant(None) for _ in call.args[unread : unread + 1]]
    return ast.dump(tree)


def _bits(first: int, last: int) -> int:
    """Lines `first` to `last`, which are counted from 1."""
    return (1 << last) - (1 << (first - 1))


@cache
def _text(code: CodeType) -> str:
    lines, _ = inspect.getsourcelines(code)
    lines = lines[next(index for index, line in enumerate(lines) if line.lstrip().startswith("def ")) :]
    return re.sub(r"def [^\s(]+\(", "def f(", textwrap.dedent("".join(lines)), count=1)
