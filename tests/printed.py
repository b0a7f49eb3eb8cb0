"""Examples in the documents: below `$ command` stands what the command prints, to the letter.

    PYTHONPATH=. .venv/bin/python -m tests.printed      prints them again and writes them into the documents

An example is an indented block that begins with a command; the commands of one document run one after the other in one
folder. A line `...` stands for lines left out. `<!-- not run: REASON -->` before a block says why it is left alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 80
"""Columns of the terminal that the documents show."""

INDENT = "    "
PROMPT = f"{INDENT}$ "
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
LEFT_OUT = "..."

IN_THE_REPOSITORY = ("README.md", "conformance/docs/any-language.md")
"""Documents that are written for the repository, and run there."""
DOCUMENTS = (*IN_THE_REPOSITORY, "conformance/README.md", "spec/docs/index.md")
"""The others are run with the built wheel, in an empty folder."""


@dataclass(frozen=True)
class Example:
    """A command and what is shown below it."""

    line: int
    """Where its output begins in the document, from 0."""
    command: str
    shown: list[str]


def examples(text: str) -> Iterator[Example]:
    """The examples of a document that can be run, in order."""
    lines = text.splitlines()
    index, alone = 0, False
    while index < len(lines):
        line = lines[index]
        index += 1
        if line and not line.startswith(INDENT):
            alone = NOT_RUN.fullmatch(line) is not None
        if not line.startswith(PROMPT):
            continue
        begin = index
        while index < len(lines) and (not lines[index] or lines[index].startswith(INDENT)):
            if lines[index].startswith(PROMPT):
                break
            index += 1
        shown = [shown.removeprefix(INDENT) for shown in lines[begin:index]]
        while shown and not shown[-1]:
            shown.pop()
        if not alone:
            yield Example(begin, line.removeprefix(PROMPT), shown)


def agrees(shown: list[str], printed: list[str]) -> bool:
    """Whether this is what was printed, with lines left out only where the document says so."""
    pattern = "".join("(?:.*\n)*?" if line == LEFT_OUT else re.escape(line + "\n") for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


class Shell:
    """Runs the commands of one document, each where the one before left off."""

    def __init__(self, folder: Path, packages: list[Path], scripts: Path) -> None:
        """Begin in `folder`; `kvspec` is what stands in `packages`, and is put into `scripts`."""
        command = scripts / "kvspec"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvcli "$@"\n')
        command.chmod(0o755)
        self._folder = folder
        self._environment = os.environ | {
            "PATH": os.pathsep.join([str(scripts), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "COLUMNS": str(WIDTH),
        }

    def run(self, command: str) -> list[str]:
        """The output of a command, line by line, without spaces at the ends of lines."""
        if match := re.fullmatch(r"cd (\S+)", command):
            self._folder = self._folder / match[1]
            return []
        done = subprocess.run(
            command,
            shell=True,
            check=False,
            cwd=self._folder,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        while printed and not printed[-1]:
            printed.pop()
        return printed


def built_wheel(folder: Path) -> Path:
    """Build the wheel and unpack it: the content of an installation, and nothing else of the repository."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def shell_for(document: str, folder: Path) -> Shell:
    """The shell that a document is written for; `folder` is empty."""
    scripts, empty = folder / "bin", folder / "work"
    scripts.mkdir()
    empty.mkdir()
    if document in IN_THE_REPOSITORY:
        return Shell(ROOT, [ROOT / part for part in ("spec", "reference", "cuda_impl", "conformance")], scripts)
    return Shell(empty, [built_wheel(folder)], scripts)


def printed_again(document: str, text: str, folder: Path) -> str:
    """The document with what its commands print now, except where lines are left out and the rest agrees."""
    lines, shell, moved = text.splitlines(), shell_for(document, folder), 0
    for example in examples(text):
        printed = shell.run(example.command)
        if not agrees(example.shown, printed):
            begin = example.line + moved
            lines[begin : begin + len(example.shown)] = [f"{INDENT}{line}".rstrip() for line in printed]
            moved += len(printed) - len(example.shown)
            print(f"{document}: {example.command}: printed again")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name in DOCUMENTS:
        place = Path(tempfile.mkdtemp())
        path = ROOT / name
        path.write_text(printed_again(name, path.read_text(encoding="utf-8"), place), encoding="utf-8")
        shutil.rmtree(place)
