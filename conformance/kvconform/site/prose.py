"""The chapters as text: the rules and operations that they explain, and unknown names in them."""

import ast
import importlib
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import kvcheck
import kvconform
import kvref
import kvspec
import kvspec.model
import kvtrace
from kvconform.gallery.mutants import BUGS
from kvconform.site import CHAPTERS, ROOT
from kvconform.site.evidence import executable_forms
from kvconform.site.figures import FIGURES
from kvconform.vectors.files import vector_files
from kvspec.rules import ALL_RULES

RULE_ID = re.compile(r"\b(?:(?!UTF-)[A-Z]{2,}-[0-9]+|MEM-[A-Z]+)\b")
FIGURE = re.compile(r"^<!-- figure: ([\w-]+) -->$", re.MULTILINE)
"""The mark that a drawing replaces."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_FILE = re.compile(r"[\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|jsonl|toml)|Makefile")
_COMMAND = re.compile(r"(kvspec|make) ([a-z]+)\b")

WORDS = frozenset(
    ("P", "a", "b", "c", "i", "floor", "ceil", "min", "max", "offset", "true", "false", "null", "gz", "zst")
)
"""Names in formulas and formats, which need not exist in code."""

TOOLS = frozenset(("kvconform", "kvattach", "kvlab", "kvtrace", "kvcli"))
"""Packages that the chapters may only name as far as `SPOKEN` lists them."""

SPOKEN = (
    "kvconform.oracle.meaning",
    "kvconform.protocol",
    "kvconform.traces.codec",
    "kvconform.traces.expect",
    "kvconform.traces.memory",
    "kvconform.fuzzing.machine",
    "kvconform.findings.baseline",
    "kvcli.checking",
    "kvtrace.header",
    "kvtrace.operations",
)
"""The modules of conformance that the chapters may name, besides those of kvspec, kvref and kvcheck."""


ORDER = (
    "index.md",
    "overview.md",
    "what-to-do-when.md",
    "memory-model.md",
    "slots-and-pages.md",
    "lengths-and-tails.md",
    "prefix-store.md",
    "sessions.md",
    "prefill.md",
    "retract-and-abort.md",
    "speculative-decoding.md",
    "overlap-and-races.md",
    "hybrid-pools.md",
    "accounting.md",
    "trace-format.md",
    "interpreting-the-vectors.md",
    "how-to-conform.md",
    "behaviours.md",
)
"""The chapters in reading order."""


class Section(NamedTuple):
    """A heading and its text, up to the next heading of its rank or above."""

    chapter: Path
    title: str
    start: int
    """The line of the heading, from 0."""
    end: int
    """The line after the last one."""


def chapters() -> list[Path]:
    """The chapters, by name."""
    return sorted(CHAPTERS.glob("*.md"))


def sections(path: Path, text: str) -> Iterator[Section]:
    """All sections of a chapter."""
    found: list[tuple[int, int, str]] = []
    fenced = False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        heading = None if fenced else _HEADING.match(line)
        if heading:
            found.append((number, len(heading[1]), heading[2]))
    for place, (number, rank, title) in enumerate(found):
        end = next((start for start, other, _ in found[place + 1 :] if other <= rank), len(lines))
        yield Section(path, title, number, end)


@cache
def _sections() -> list[Section]:
    return [section for path in chapters() for section in sections(path, path.read_text(encoding="utf-8"))]


def rule_sections() -> dict[str, list[Section]]:
    """Rule -> the sections under its id."""
    return {rule: [section for section in _sections() if section.title == rule] for rule in ALL_RULES}


def operation_sections() -> dict[str, list[Section]]:
    """Operation -> the sections under its name."""
    return {op: [section for section in _sections() if section.title == f"`{op}`"] for op in executable_forms()}


def unknown_names(text: str, folder: Path = CHAPTERS) -> list[str]:
    """The names in a chapter of `folder` that do not exist."""
    prose = _FENCE.sub("", text)
    unknown = [rule for rule in RULE_ID.findall(text) if rule not in ALL_RULES]
    unknown += [name for name in FIGURE.findall(prose) if name not in FIGURES]
    for span in _SPAN.findall(prose):
        unknown += _unknown_in_span(span)
    for block in _FENCE.findall(text):
        unknown += [f"{word} {name}" for word, name in _COMMAND.findall(block[1]) if not _is_command(word, name)]
    for target in _LINK.findall(prose):
        if not target.startswith(("https://", "#")) and not _leads_somewhere(target, folder):
            unknown.append(target)
    return unknown


def _leads_somewhere(target: str, folder: Path) -> bool:
    page, _, anchor = target.partition("#")
    path = folder / page
    if not path.is_file():
        return bool(
            re.match(r"(defects|vectors|api)/|(rules|sources|any-language|engines|attach|hosts)\.md$", page)
        )  # generated: the build looks
    titles = {section.title for section in sections(path, path.read_text(encoding="utf-8"))}
    return not anchor or anchor in {slug(title) for title in titles}


def slug(title: str) -> str:
    """The anchor of a heading, as Markdown makes it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _unknown_in_span(span: str) -> list[str]:
    if span in BUGS or span in vector_names():
        return []
    command = _COMMAND.match(span)
    if command:
        return [] if _is_command(command[1], command[2]) else [span]
    if _FILE.fullmatch(span):
        return [] if (ROOT / span).exists() else [span]
    unquoted = re.sub(r'"[^"]*"', "", span)
    return [name for name in _NAME.findall(unquoted) if not is_known(name)]


@cache
def vector_names() -> frozenset[str]:
    """The names of all vectors."""
    return frozenset(path.stem for path in vector_files())


def is_known(name: str) -> bool:
    """Whether a name, dotted or not, exists in the code."""
    if "." in name:
        return qualified(name) is not None
    return name in WORDS or name in ALL_RULES or name in _identifiers() or RULE_ID.fullmatch(name) is not None


@cache
def qualified(name: str) -> str | None:
    """The full dotted name of the object that `name`, the end of a dotted name, stands for; `None` if there is none."""
    for prefix in ("", "kvspec.", "kvspec.model.", "kvref.", "kvconform."):
        full = f"{prefix}{name}"
        for module, path in _modules().items():
            if full == module:
                return full
            if full.startswith(f"{module}.") and full.removeprefix(f"{module}.") in _members(path):
                return full
    return None


@cache
def _modules() -> dict[str, Path]:
    """Module that prose may name -> its file."""
    found = {}
    for package in (kvspec, kvref, kvcheck, kvtrace, kvconform, importlib.import_module("kvcli")):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def _members(path: Path) -> frozenset[str]:
    """The names that a module defines, and those of its classes, as `Class.member`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names.update(_defined(node))
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                names.update(f"{node.name}.{name}" for name in _defined(member))
    return frozenset(names)


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


@cache
def _identifiers() -> frozenset[str]:
    """The vocabulary: every name and every short string of the specification, the reference, and the formats."""
    names = set(executable_forms())
    spoken = [path for module, path in _modules().items() if module.split(".")[0] not in TOOLS]
    spoken += [_modules()[module] for module in SPOKEN]
    for path in spoken:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.arg(arg=name) | ast.Attribute(attr=name):
                    names.add(name)
                case ast.Constant(value=str(value)) if value.isidentifier():
                    names.add(value)
    return frozenset(names) | frozenset(_modules()) | frozenset(keyword.kwlist)


@cache
def _is_command(program: str, name: str) -> bool:
    if program == "make":
        return f"\n{name}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    app = importlib.import_module("kvcli.main").app
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    return name in commands or name in [group.name for group in app.registered_groups]
