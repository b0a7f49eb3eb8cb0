"""Generated parts beside the prose: links, tables of rules and operations, and the pages that list them."""

import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import kvcheck
import kvconform
import kvref
import kvspec
from kvconform import oracle
from kvconform.gallery.mutants import BUGS
from kvconform.site import CHAPTERS
from kvconform.site.evidence import dotted, events_reported, evidence, executable_forms
from kvconform.site.prose import ORDER, RULE_ID, operation_sections, qualified, rule_sections, slug
from kvconform.vectors.files import read_vectors
from kvref.manager import Manager
from kvspec.events import Operation
from kvspec.memory import proofs
from kvspec.rules import ALL_RULES

COMMON = ("OP-1", "CAP-1")
"""Rules of nearly every operation: their defects are not listed below each."""
CLOSEST = 6
"""Number of vectors named below an operation: those that exercise most of its rules."""
OF_SGLANG_JAX = ("994",)
"""Pull requests of sglang-jax; all others are SGLang's."""
SEEN = 12
"""The most links that are shown unfolded."""
INTERFACE = (
    "oracle",
    "protocol",
    "proxy",
    "features",
    "traces.codec",
    "traces.expect",
    "traces.schema",
    "vectors.runner",
    "levels.requests.minimise",
    "fuzzing.machine",
    "gallery.finders",
    "gallery.replaying",
)
"""The modules of kvconform that the reference pages show, besides those that a rule points to."""


class Page(NamedTuple):
    """A page of the site."""

    place: str
    """Its file, below the site's folder."""
    title: str
    text: str
    """Markdown."""
    chapter: str = ""
    """The title of its chapter or package; empty for chapters and lists of pages."""


def named(number: str) -> str:
    """The name of a source document."""
    return f"{'sglang-jax' if number in OF_SGLANG_JAX else 'SGLang'} #{number}"


def pull_request(number: str) -> str:
    """A link to a source document."""
    repository = "sglang-jax" if number in OF_SGLANG_JAX else "sglang"
    return f"[{named(number)}](https://github.com/sgl-project/{repository}/pull/{number})"


def pull_requests(numbers: str) -> str:
    """Links to several source documents."""
    return ", ".join(map(pull_request, numbers.split(", ")))


def folded(links: Sequence[str], what: str) -> str:
    """Links with commas between them; many are folded below their number."""
    joined = ", ".join(links)
    return joined if len(links) <= SEEN else f"<details><summary>{len(links)} {what}</summary>{joined}</details>"


def chapter_of(rule: str) -> Path:
    """The chapter of a rule."""
    return rule_sections()[rule][0].chapter


def grouped(pages: Iterable[Page]) -> dict[str, list[Page]]:
    """Pages by chapter or package: first the chapters in their order, then the packages."""
    found: dict[str, list[Page]] = {title_of(CHAPTERS / name): [] for name in ORDER}
    for page in pages:
        found.setdefault(page.chapter, []).append(page)
    return {title: pages for title, pages in found.items() if pages}


def api(name: str) -> str:
    """A link from a chapter to the page of a function, module or class, by its dotted name.

    Private names have no page: their module is linked.
    """
    shown = f"`{name.removeprefix('kvspec.')}`"
    if "._" not in name:
        return f"[{shown}][{name}]"
    module = max((module for module in documented() if name.startswith(f"{module}.")), key=len)
    return f"[{shown}](api/{module}.md)"


def rule_link(rule: str, up: str = "") -> str:
    """A link to the section of a rule, from `up` folders below the chapters."""
    found = rule_sections()[rule]
    return f"[{rule}]({up}{found[0].chapter.name}#{slug(rule)})" if found else rule


def rule_table(rule: str) -> str:
    """The table below the prose of a rule."""
    known, one = evidence()[rule], ALL_RULES[rule]
    code = [f"{api(name)}" for name in known.step_checks]
    lines = [
        ("reason", one.reason),
        ("origin", pull_requests(one.origin)),
        ("check in every state", api(known.state_check) if known.state_check else ""),
        ("check at each step", ", ".join(code)),
        ("check over a run", ", ".join(map(api, known.run_checks))),
        ("contracts, proved", ", ".join(map(api, known.contracts))),
        ("proved for any size", _clauses(known.clauses)),
        ("vectors", folded([f"[{name}](vectors/{name}.md)" for name in known.vectors], "vectors")),
        ("mutants", folded([f"[{name}](defects/{name}.md)" for name in known.mutants], "mutants")),
    ]
    rows = "".join(f"| {name} | {text} |\n" for name, text in lines if text)
    return f"\n| {rule} | {one.statement} |\n| --- | --- |\n{rows}"


def _clauses(clauses: list[str]) -> str:
    if not clauses:
        return ""
    return f"{'; '.join(clauses)} ([`proofs`](api/{proofs.__name__}.md))"


def operation_table(op: str) -> str:
    """The table below the heading of an operation: its types and code, vectors and defects."""
    (section,) = operation_sections()[op]
    prose = "\n".join(section.chapter.read_text(encoding="utf-8").splitlines()[section.start : section.end])
    rules = sorted(set(RULE_ID.findall(prose)) & ALL_RULES.keys(), key=list(ALL_RULES).index)
    vectors = [vector for vector in read_vectors() if any(_is(step.op, op) for step in vector.steps)]
    closest = sorted(vectors, key=lambda vector: (-len(set(vector.header.rules) & set(rules)), len(vector.steps)))
    shown = ", ".join(f"[{vector.name}](vectors/{vector.name}.md)" for vector in closest[:CLOSEST])
    defects = [bug.name for bug in BUGS.values() if bug.rule in rules and bug.rule not in COMMON]
    kind = "".join(word.capitalize() for word in op.split("_"))
    lines = [
        ("arguments and answer", api(f"kvspec.events.{kind}")),
        ("executable form", api(executable_forms()[op])),
        ("reference", api(dotted(getattr(Manager, op)))),
        ("rules", ", ".join(map(rule_link, rules))),
        ("vectors", f"{len(vectors)}, closest: {shown}"),
        ("defects", ", ".join(f"[{name}](defects/{name}.md)" for name in defects)),
        ("[memory events](memory-model.md#events)", ", ".join(events_reported()[op]) or "none"),
    ]
    rows = "".join(f"| {name} | {text} |\n" for name, text in lines if text)
    return f"\n| `{op}` | |\n| --- | --- |\n{rows}"


def _is(operation: Operation[Any], op: str) -> bool:
    return bool(operation.__struct_config__.tag == op)


def rules_page() -> Page:
    """All rules on one page."""
    lines = [
        "# Rules",
        "",
        "| rule | name | statement | checks | proofs | vectors | mutants |",
        "| --- | --- | --- | --: | --: | --: | --: |",
    ]
    for rule, known in evidence().items():
        checks = len(known.step_checks) + len(known.run_checks) + bool(known.state_check)
        proofs = len(known.contracts) + len(known.clauses)
        lines.append(
            f"| {rule_link(rule)} | {ALL_RULES[rule].name} | {ALL_RULES[rule].statement} | {checks} | {proofs} "
            f"| {len(known.vectors)} | {len(known.mutants)} |"
        )
    lines += ["", "## Operations", "", "| operation | chapter | executable form |", "| --- | --- | --- |"]
    for op, form in executable_forms().items():
        (section, *_) = operation_sections()[op]
        lines.append(f"| [`{op}`]({section.chapter.name}#{slug(op)}) | {title_of(section.chapter)} | {api(form)} |")
    return Page("rules.md", "Rules", "\n".join(lines) + "\n")


def title_of(path: Path) -> str:
    """The title of a chapter."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


@cache
def documented() -> tuple[str, ...]:
    """The modules with a page: specification, reference, fast checker, oracle; of kvconform those for adapters."""
    names = [
        info.name
        for package in (kvspec, kvref, kvcheck, oracle)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    names += [f"{kvconform.__name__}.{name}" for name in INTERFACE]
    pointed = {name for one in evidence().values() for name in one.run_checks}
    names += sorted(
        {module for name in pointed for module in sys.modules if name.startswith(f"{module}.")}
        - {"kvref", "kvconform", *names}
    )
    return tuple(names)


def interface_pages() -> Iterator[Page]:
    """A page for each documented module."""
    for name in documented():
        yield Page(f"api/{name}.md", name, f"# {name}\n\n::: {name}\n", name.partition(".")[0])


def code_link(span: str) -> str | None:
    """A link to the page of a dotted name in prose, if it has one."""
    full = qualified(span)
    if full is None:
        return None
    if full in documented():
        return f"[`{span}`](api/{full}.md)"
    module, _, member = full.rpartition(".")
    return f"[`{span}`][{full}]" if {module, module.rpartition(".")[0]} & set(documented()) and member else None
