"""Mutants of which no test can see anything, each with the reason: they are counted apart.

They are listed in `equivalent.txt`.
"""

from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("equivalent.txt")


class Equivalent(NamedTuple):
    """A changed line of a function, named `package.module.function` or `package.module.Class.function`."""

    function: str
    was: str
    becomes: str
    why: str


def read() -> list[Equivalent]:
    """All that are listed."""
    found: list[Equivalent] = []
    why = function = was = before = ""
    for line in FILE.read_text().splitlines():
        if line.startswith("==="):
            why = before
        elif line.startswith("- "):
            function, was = before, line[2:]
        elif line.startswith("+ "):
            found.append(Equivalent(function, was, line[2:], why))
        before = line
    return found


KNOWN = read()
_WHY = {(one.function, one.was, one.becomes): one.why for one in KNOWN}


def known(function: str, difference: list[str]) -> str:
    """Why a mutant of a function, named as mutmut does, changes nothing; empty where it is not known to."""
    module, _, mangled = function.rpartition(".")
    name = mangled[1:].strip("ǁ").replace("ǁ", ".") if "ǁ" in mangled else mangled.removeprefix("x_")
    was, becomes = ([line[1:].strip() for line in difference if line[0] == sign] for sign in "-+")
    if len(was) != 1 or len(becomes) != 1:
        return ""
    why = _WHY.get((f"{module}.{name}", was[0], becomes[0]))
    return f"known to change nothing: {why}" if why else ""
