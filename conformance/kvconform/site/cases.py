"""The pages of vectors and defects, and the lists of them."""

import ast
import inspect
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from kvconform.findings.finding import Finding
from kvconform.findings.text import value
from kvconform.findings.timeline import MOST_STEPS, drawn
from kvconform.gallery.finders import REPLAY_RUNS, Shown, find_by_vectors, shorten
from kvconform.gallery.mutants import BUGS
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug
from kvconform.gallery.replaying import replay, shortest_loop
from kvconform.levels.requests.description import memory_in_words
from kvconform.levels.requests.rendering import Renderer, place_of
from kvconform.site import ROOT
from kvconform.site.pages import Page, chapter_of, grouped, pull_request, pull_requests, rule_link, title_of
from kvconform.traces.codec import Vector
from kvconform.vectors.files import read_vectors
from kvspec.rules import ALL_RULES

_vectors = cache(read_vectors)

SHORTENED = 2
"""The number of vectors whose finding of a defect is shortened."""


def vector_pages() -> Iterator[Page]:
    """A page for each vector, and one that lists them."""
    vectors = read_vectors()
    rows, pages = {}, []
    for vector in vectors:
        rules = ", ".join(rule_link(rule, "../") for rule in vector.header.rules)
        rows[vector.name] = f"| [{vector.name}]({vector.name}.md) | {vector.header.description} | {rules} |"
        chapter = title_of(chapter_of(vector.header.rules[0]))
        pages.append(Page(f"vectors/{vector.name}.md", vector.name, _vector_page(vector, rules), chapter))
    lines = ["# Vectors", "", "By the chapter of the rule that each one exercises first."]
    for chapter, those in grouped(pages).items():
        lines += ["", f"## {chapter}", "", '<details markdown="1">', f"<summary>{len(those)} vectors</summary>", ""]
        lines += ["| vector | what happens | rules |", "| --- | --- | --- |"]
        lines += [*(rows[page.title] for page in those), "", "</details>"]
    yield from pages
    yield Page("vectors/index.md", "Vectors", "\n".join(lines) + "\n")


def _vector_page(vector: Vector, rules: str) -> str:
    config, source = vector.header.config, vector.header.source
    renderer = Renderer(config)
    for step in vector.steps:
        renderer.step(step.line, step.op)
    origin = f"Source: {pull_requests(source)}. " if source else ""
    lines = [
        f"# {vector.name}",
        "",
        vector.header.description or "",
        "",
        f"Rules: {rules}. {origin}File: `{vector.path.relative_to(ROOT)}`.",
        "",
        f"{memory_in_words(config)}. The operations, by line "
        "of the file, with the answers that the model itself gives; an implementation may choose other pages and rows.",
        "",
        drawn(renderer.trace()),
        "",
        "## The file",
        "",
        "```json",
        vector.path.read_text(encoding="utf-8").rstrip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def defect_pages() -> Iterator[Page]:
    """A page for each defect, and one that lists them."""
    _vectors()
    lines = [
        "# The bug gallery",
        "",
        "Defects that engines really had, each as a small mutant of the reference implementation. A check that cannot "
        "fail shows nothing: vectors, fuzzing and replayed traffic each find every one of these to which they apply. "
        f"Rules that none of them breaks have a *synthetic* one: {SYNTHETIC}.",
    ]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:  # forked, they have read the vectors
        made = list(pool.map(_made, BUGS))
    rows, pages = {page.title: row for row, page in made}, [page for _, page in made]
    for chapter, those in grouped(pages).items():
        lines += ["", f"## {chapter}", ""]
        lines += ["| defect | what the code does | described in | rule | events |", "| --- | --- | --- | --- | --: |"]
        lines += [rows[page.title] for page in those]
    yield from pages
    yield Page("defects/index.md", "Defects", "\n".join(lines) + "\n")


def _made(name: str) -> tuple[str, Page]:
    """The line of a defect in the list, and its page."""
    bug = BUGS[name]
    of_its_rules = [vector for vector in _vectors() if {*bug.rules} & {*vector.header.rules}]
    found = [] if bug.is_of_scheduler else find_by_vectors(bug, of_its_rules)
    found.sort(key=lambda one: (one.rule != bug.rule, one.rule not in bug.rules, one.operations))
    shown = _of_traffic(bug) if bug.is_of_scheduler else _of_vectors(bug, found)
    events = str(shown.events) if shown else "-"
    described = "synthetic" if bug.synthetic else ", ".join(map(pull_request, bug.source))
    row = f"| [{name}]({name}.md) | {bug.title} | {described} | {rule_link(bug.rule, '../')} | {events} |"
    text = defect_page(bug, shown, sorted(one.vector.name for one in found))
    return row, Page(f"defects/{name}.md", name, text, title_of(chapter_of(bug.rule)))


def _of_vectors(bug: Bug, found: list[Any]) -> Shown | None:
    shortened = [shown for shown in (shorten(bug, one) for one in found[:SHORTENED]) if shown is not None]
    return min(shortened, key=lambda shown: (shown.rule != bug.rule, shown.events), default=None)


def _of_traffic(bug: Bug) -> Shown | None:
    replayed = replay(bug, REPLAY_RUNS, seed=0)
    shown = shortest_loop(bug, replayed.run) or replayed.shown
    return None if shown is None else Shown(replayed.run.config, shown, place_of(shown.finding, "replayed traffic"))


def defect_page(bug: Bug, shown: Shown | None, vectors: list[str]) -> str:
    """The page of a defect: its description, the vectors that find it, its shortest trace, and its code."""
    lines = [f"# {bug.name}", "", f"**{bug.title}**", "", bug.symptom, ""]
    lines += [f"| {rule_link(bug.rule, '../')} | {ALL_RULES[bug.rule].statement} |", "| --- | --- |"]
    if bug.also:
        lines.append(f"| or, with other operations | {', '.join(rule_link(rule, '../') for rule in bug.also)} |")
    documents = ", ".join(map(pull_request, bug.source))
    if bug.synthetic:
        lines += [f"| synthetic | {SYNTHETIC} |", f"| the rule comes from | {documents} |"]
    else:
        lines.append(f"| described in | {documents} |")
    links = ", ".join(f"[{name}](../vectors/{name}.md)" for name in vectors)
    none = "none: it is the scheduler's, and traffic through the scheduler shows it"
    lines.append(f"| vectors of its rules that find it | {links or none} |")
    lines += ["", "## The shortest trace", ""]
    if shown is None:
        return "\n".join([*lines, "Nothing has found it."]) + "\n"
    finding = shown.finding
    shortened = (
        f", the last {MOST_STEPS} of {finding.trace.total} operations" if finding.trace.total > MOST_STEPS else ""
    )
    lines += [
        f"In a memory of {finding.trace.memory}{shortened}.",
        "",
        drawn(finding.trace),
        "",
        "## Why this is a contradiction",
        "",
        *(f"- {line}" for line in contradiction(finding)),
        "",
        "## The mutant",
        "",
        "```python",
        source_of(bug),
        "```",
    ]
    return "\n".join(lines) + "\n"


def contradiction(finding: Finding) -> Iterator[str]:
    """The last answer, the rule, and the history of the values it contradicts."""
    yield f"Step {finding.trace.total}: {finding.what}."
    if finding.compared:
        yield f"Expected: {value(finding.expected)}. Observed: {value(finding.observed)}."
    if finding.rule is not None:
        yield f"{finding.rule.id}: {finding.rule.statement}"
        yield f"Why: {finding.rule.reason} ({finding.rule.origin})"
    yield from (f"Before it, {holder}." for holder in finding.before)
    yield from finding.known


def source_of(bug: Bug) -> str:
    """The classes that make a defect, from the module that it stands in."""
    made = bug.scheduler if bug.is_of_scheduler else bug.factory
    module = sys.modules[made.__module__]
    classes = {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)}
    wanted, known = [getattr(made, "__name__", "")], []
    while wanted:
        name = wanted.pop()
        if name in classes and name not in known:
            known.append(name)
            wanted += [node.id for node in ast.walk(classes[name]) if isinstance(node, ast.Name)]
    return "\n\n".join(inspect.getsource(getattr(module, name)) for name in classes if name in known).rstrip()
