"""The chapters, the rules and the code say the same, and nothing that they name is missing."""

import ast
import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeGuard, get_args

import msgspec
import pytest

from kvcheck import Checker
from kvconform.gallery.mutants import BUGS
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug
from kvconform.site.__main__ import ENGINES, EXAMPLES, engines_page, is_found
from kvconform.site.cases import defect_page
from kvconform.site.evidence import evidence, executable_forms
from kvconform.site.figures import FIGURES
from kvconform.site.linking import completed
from kvconform.site.pages import Page, api
from kvconform.site.prose import FIGURE, ORDER, RULE_ID, chapters, operation_sections, rule_sections, unknown_names
from kvconform.site.sources import SAYS, sources_page
from kvconform.traces.codec import TraceReader
from kvconform.traces.memory import open_trace
from kvspec import batch
from kvspec.memory import Pool
from kvspec.memory.events import MemoryEvent, Use
from kvspec.model import OPERATIONS, hybrid, leaving, looking, recurrent, running, state, waiting
from kvspec.rules import ALL_RULES, RULES
from tests.conformance.helpers import check_trace

SHORTEST_PROSE = 25
"""Words."""


@pytest.mark.parametrize("rule", ALL_RULES)
def test_every_rule_has_prose(rule: str) -> None:
    (section,) = rule_sections()[rule]
    lines = section.chapter.read_text(encoding="utf-8").splitlines()[section.start + 1 : section.end]
    assert len(" ".join(lines).split()) >= SHORTEST_PROSE


@pytest.mark.slow
@pytest.mark.parametrize("rule", ALL_RULES)
def test_every_rule_has_a_check(rule: str) -> None:
    assert evidence()[rule].is_checked


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_vector(rule: str) -> None:
    assert evidence()[rule].vectors


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_mutant(rule: str) -> None:
    assert any(BUGS[name].rule == rule for name in evidence()[rule].mutants)


@pytest.mark.parametrize("op", executable_forms())
def test_every_operation_has_prose(op: str) -> None:
    (section,) = operation_sections()[op]
    text = "\n".join(section.chapter.read_text(encoding="utf-8").splitlines()[section.start : section.end])
    assert "*Arguments*" in text
    assert "*Then*" in text


def test_the_chapters_are_those_of_the_navigation() -> None:
    assert sorted(ORDER) == [path.name for path in chapters()]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", ORDER)
def test_chapters_name_nothing_that_does_not_exist(chapter: str) -> None:
    (path,) = [path for path in chapters() if path.name == chapter]
    assert unknown_names(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("as TAIL-9 says", ["TAIL-9"]),
        ("see `lengths.tale`", ["lengths.tale"]),
        ("see `kvspec.length`", ["kvspec.length"]),
        ("the answer has `prefix_length`", ["prefix_length"]),
        ("an `expand_prefix`", ["expand_prefix"]),
        ("the vector `logit_reserves`", ["logit_reserves"]),
        ("in `spec/kvspec/page.py`", ["spec/kvspec/page.py"]),
        ("run `kvspec proof`", ["kvspec proof"]),
        ("```sh\nkvspec proof\n```", ["kvspec proof"]),
        ("run `make site`", ["make site"]),
        ("[here](session.md)", ["session.md"]),
        ("[here](sessions.md#sess-9)", ["sessions.md#sess-9"]),
        ("<!-- figure: a-column -->", ["a-column"]),
        ("PAGE-1, `lengths.tail`, `match_prefix`, `logit_reserve`, `kvspec check`, [here](sessions.md#sess-1)", []),
    ],
)
def test_what_does_not_exist_is_noticed(text: str, unknown: list[str]) -> None:
    assert unknown_names(text) == unknown


def test_every_drawing_is_in_a_chapter() -> None:
    called = [name for path in chapters() for name in FIGURE.findall(path.read_text(encoding="utf-8"))]
    assert sorted(called) == sorted(FIGURES)


@pytest.mark.parametrize("name", ENGINES)
def test_pages_about_engines_lead_to_pages_of_the_site(name: str) -> None:
    beside = {*ORDER, *ENGINES, "rules.md", "sources.md"}
    targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", engines_page(name).text)}
    strange = [target for target in targets - {""} if target not in beside and not target.startswith("https://")]
    strange = [target for target in strange if not re.match(r"(defects|vectors|api)/[\w.-]+\.md$", target)]
    examples = {f"examples/{path.relative_to(EXAMPLES)}" for path in EXAMPLES.rglob("*.*")}
    assert examples.issuperset(strange)


@pytest.mark.slow
@pytest.mark.parametrize("op", executable_forms())
def test_the_prose_refuses_what_the_model_refuses(op: str) -> None:
    """The rules in the table "refused if" are those of the refusals in the executable form, and of what it calls."""
    (section,) = operation_sections()[op]
    lines = section.chapter.read_text(encoding="utf-8").splitlines()[section.start : section.end]
    start = next((number for number, line in enumerate(lines) if line.startswith("| refused if")), len(lines))
    table = re.split(r"\n\n", "\n".join(lines[start:]))[0]
    (form,) = [form for operation, form in OPERATIONS.items() if operation.__struct_config__.tag == op]
    assert set(RULE_ID.findall(table)) == _refusals(form)


MODULES = (waiting, running, leaving, looking, hybrid, recurrent, batch, state)


@cache
def _functions() -> dict[str, ast.FunctionDef]:
    known: dict[str, ast.FunctionDef] = {}
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.FunctionDef):
                known[f"{module.__name__}.{node.name}"] = node
    return known


def _refusals(form: Callable[..., object]) -> set[str]:
    """The rules by which an executable form refuses, itself or in what it calls."""
    known, rules = _functions(), set[str]()
    left, seen = [f"{form.__module__}.{form.__name__}"], set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        for call in (node for node in ast.walk(known[name]) if isinstance(node, ast.Call)):
            called = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            if called == "Refusal" and isinstance(call.args[0], ast.Constant):
                rules.add(str(call.args[0].value))
            elif called == "broken_rule":
                rules |= {str(one.value) for one in ast.walk(known["kvspec.batch.broken_rule"]) if _is_rule(one)}
            elif isinstance(call.func, ast.Name):
                left += [full for module in MODULES if (full := f"{module.__name__}.{called}") in known.keys() - seen]
            elif isinstance(call.func, ast.Attribute):
                owner = {"state": state, "hybrid": hybrid}.get(getattr(call.func.value, "id", ""))
                full = "" if owner is None else f"{owner.__name__}.{called}"
                left += [full] if full in known.keys() - seen else []
    return rules


def _is_rule(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and node.value in RULES


@pytest.mark.parametrize("chapter", ORDER)
def test_traces_in_chapters_conform(chapter: str, tmp_path: Path) -> None:
    (path,) = [path for path in chapters() if path.name == chapter]
    for number, block in enumerate(re.findall(r"^```jsonl\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)):
        written = tmp_path / f"{number}.jsonl"
        written.write_text(block, encoding="utf-8")
        with open_trace(written) as trace:
            if isinstance(trace, TraceReader):
                assert check_trace(trace).finding is None
            else:
                checker = Checker(trace.header.pools)
                assert not [finding for _, event in trace for finding in checker.step(event)]


@pytest.mark.parametrize("kind", [*get_args(MemoryEvent), Use, Pool], ids=lambda kind: kind.__name__)
def test_each_argument_of_an_event_is_said(kind: type[msgspec.Struct]) -> None:
    (path,) = [path for path in chapters() if path.name == "trace-format.md"]
    text = path.read_text(encoding="utf-8").split("## Memory level")[1]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    said = "".join(rows) + text.split("\nA use has ")[1].split("\n\n")[0]
    assert [name for name in kind.__struct_fields__ if f"`{name}`" not in said] == []


completed_once = cache(completed)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_one_click_leads_from_a_rule_to_its_evidence(rule: str) -> None:
    known, (section,) = evidence()[rule], rule_sections()[rule]
    text = completed_once(section.chapter)
    below = text[text.index(f"\n| {rule} |" if f"\n| {rule} |" in text else f"\n| [{rule}](") :].split("\n\n")[0]
    functions = [*known.step_checks, *known.run_checks, *known.contracts]
    assert all(api(name) in below for name in [*functions, *filter(None, [known.state_check])])
    assert all(f"](vectors/{name}.md)" in below for name in known.vectors)
    assert all(f"](defects/{name}.md)" in below for name in known.mutants)


@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
def test_the_page_of_a_defect_says_whether_a_document_describes_it(bug: Bug) -> None:
    page = defect_page(bug, None, [])
    assert (f"| synthetic | {SYNTHETIC} |" in page) == bug.synthetic
    assert ("| described in | " in page) != bug.synthetic


def test_each_source_is_described_in_a_sentence_and_no_other() -> None:
    headings = re.findall(r"^## .*#(\d+)$", sources_page().text, re.MULTILINE)
    assert headings and set(headings) == SAYS.keys()


def test_a_search_finds_chapters_and_lists_and_no_single_vector() -> None:
    pages = ("sources.md", "memory-model.md", "vectors/index.md", "vectors/abort_plain.md", "api/kvspec.pages.md")
    assert [is_found(Page(place, "", "")) for place in pages] == [True, True, True, False, False]
