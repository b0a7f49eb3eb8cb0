"""The words of code and prose: the field's term for each thing, and no word that was dropped for one."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
ROOMS = sorted(
    str(room.relative_to(ROOT))
    for pattern in (
        *("spec/kvspec/*", "reference/kvref", "cuda_impl/kvcuda", "conformance/kv*/*", "conformance/examples"),
        *("tests/*", "benchmarks"),
    )
    for room in ROOT.glob(pattern)
    if room.suffix == ".py" or (room.is_dir() and room.name != "__pycache__")
    if room != Path(__file__).resolve()  # which quotes the words
)
"""Packages, tests and benchmarks, and the folders and modules within those of `spec/`, `conformance/` and `tests/`."""
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pages in (
        "*.md",
        *(f"{part}/**/*.md" for part in ("spec", "reference", "cuda_impl", "conformance", "benchmarks", "tests")),
    )
    for page in ROOT.glob(pages)
)
"""All documents."""

DROPPED = {
    r"tell|tells|told|telling|teller|untold": "expected, configured, observed, reported, recorded, described, rendered",
    r"judge|judges|judged|judging|unjudged": "check, checked, not checked",
    r"law|laws|lawful|lawfully": "memory model, memory checker",
    r"lane|lanes": "stream",
    r"alike": "the same; a page group",
    r"spoilt|worthless": "tainted",
    r"mended|mending": "fixed, resync",
    r"planted|planting": "injected",
    r"story|stories": "description, scenario",
    r"breach|breaches": "failure, violation",
    r"demonstration|demonstrations": "counterexample",
    r"standin|standins": "stub",
    r"nobody|somebody|anybody|everybody|whoever": "the caller, the engine, no holder: the thing that acts",
}
"""A word that was dropped, and the field's word for it."""

BEGINNING = re.compile(r"(?:^|(?<=[.!?] )|(?<=\n\n))(?:What|Who|Whoever)\b")
"""A sentence whose subject is no thing of the domain."""
PATTERN = re.compile(rf"\b(?:{'|'.join(DROPPED)})\b", re.IGNORECASE)


def prose(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The strings and comments in a module, each with its line. Comments on successive lines are one text."""
    patterns = {id(part) for node in ast.walk(tree) for part in pattern_of(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in patterns:
            yield node.lineno, re.sub(r"(?<!\n)\n[ ]*(?!\n)", " ", inspect.cleandoc(node.value))
    begin, end, said = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != end + 1:
                yield begin, said
                begin, said = token.start[0], ""
            end, said = token.start[0], f"{said} {token.string.lstrip('#! ')}".strip()
    yield begin, said


def pattern_of(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a regular expression that a call of the module `re` is given."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and is_name(node.func.value, "re")
        and node.args
    ):
        yield from ast.walk(node.args[0])


def is_name(node: ast.AST, name: str) -> bool:
    """Whether a node is this name and nothing more."""
    return isinstance(node, ast.Name) and node.id == name


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """The paragraphs, list items and table cells of a Markdown text, each with its line; without code and addresses."""
    text = re.sub(r"^( *)```.*?^\1```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n|\n)+", lambda code: "\n" * code[0].count("\n"), text)
    text = re.sub(r"`[^`]*`", lambda code: "`x`" + "\n" * code[0].count("\n"), text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for part in re.finditer(r"(?:(?!\n\n|\n *(?:[-*|#]|\d+\.) ).)+", text, re.DOTALL):
        line = text.count("\n", 0, part.start() + len(part[0]) - len(part[0].lstrip())) + 1
        for cell in part[0].split("|"):
            yield line, " ".join(cell.split()).lstrip("-*#0123456789. ")


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names that a module defines, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_name(node.value, "self"):
            yield node.lineno, node.attr


def field_word(dropped: str) -> str:
    """The field's word for one that was dropped."""
    return next(word for pattern, word in DROPPED.items() if re.fullmatch(pattern, dropped, re.IGNORECASE))


def complaints_of(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The dropped words and beginnings in texts, each with its line and the word to use."""
    for line, said in texts:
        for found in BEGINNING.finditer(said):
            yield line, f"a sentence begins with {said[found.start() : found.start() + 40]!r}: name the thing"
        for found in PATTERN.finditer(said):
            yield line, f"{found[0]!r}: say {field_word(found[0])}"


def complaints(text: str) -> Iterator[tuple[int, str]]:
    """The dropped words in the prose and names of a module."""
    tree = ast.parse(text)
    yield from complaints_of(prose(text, tree))
    for line, name in names(tree):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)
        for found in PATTERN.finditer(words):
            yield line, f"{name}: call it {field_word(found[0])}"


@cache
def complaints_about(room: str) -> list[str]:
    """The complaints about all modules of a room."""
    path = ROOT / room
    return [
        f"{file.relative_to(ROOT)}:{line}: {complaint}"
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
        for line, complaint in complaints(file.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_speaks_in_the_fields_words(room: str) -> None:
    assert not complaints_about(room), "\n".join(complaints_about(room))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_speaks_in_the_fields_words(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [f"{page}:{line}: {complaint}" for line, complaint in complaints_of(paragraphs(text))]
    assert not found, "\n".join(found)


def test_the_rules_speak_in_the_fields_words() -> None:
    lines = (ROOT / "spec/kvspec/rules.json").read_text(encoding="utf-8").splitlines()
    texts = ((number, line.partition('": "')[2]) for number, line in enumerate(lines, 1))
    assert not [*complaints_of((number, text.replace("-", " ")) for number, text in texts)]


def test_the_makefile_speaks_in_the_fields_words() -> None:
    lines = enumerate((ROOT / "Makefile").read_text(encoding="utf-8").splitlines(), 1)
    assert not [*complaints_of((number, line.partition("#")[2].lstrip("# ")) for number, line in lines)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('"""What is told."""', "name the thing"),
        ('x = "it was told"', "'told': say expected"),
        ('"""Pages. Who takes one counts."""', "name the thing"),
        ("# A page that\n# nobody holds.", "the thing that acts"),
        ("x = 1\n'''It was judged.'''", "checked"),
        ('def f():\n    """A page.\n\n    Nobody has it."""', "the thing that acts"),
        ('Option(help="Pages. Nobody has it.")', "the thing that acts"),
        ("def told(): ...", "expected"),
        ("class MemoryLaw: ...", "memory checker"),
        ("self.by_lane = {}", "stream"),
        ("def f(story): ...", "description"),
    ],
)
def test_a_dropped_word_is_found(text: str, word: str) -> None:
    assert any(word in complaint for _, complaint in complaints(text))


@pytest.mark.parametrize(
    "text",
    [
        '"""The rule that says what is free."""',
        're.search("what was told", x)',
        "state.told()",
        "def execute(lawn, planets): ...",
        "# Whole pages, and their history.",
    ],
)
def test_other_words_are_left_alone(text: str) -> None:
    assert not [*complaints(text)]
