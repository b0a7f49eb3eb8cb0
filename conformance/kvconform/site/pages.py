"""The pages that are generated: rules, vectors, defects, the interface of the code."""

import ast
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kvconform
import kvref
import kvspec
from kvconform.findings.finding import Finding
from kvconform.findings.story import memory_in_words
from kvconform.findings.telling import Teller
from kvconform.findings.text import value
from kvconform.findings.timeline import MOST_STEPS, drawn
from kvconform.gallery.finders import REPLAY_RUNS, Shown, find_by_vectors, shorten
from kvconform.gallery.mutants import BUGS
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug
from kvconform.gallery.replaying import replay, shortest_loop
from kvconform.site import ROOT
from kvconform.site.evidence import evidence, executable_forms
from kvconform.site.prose import operation_sections, qualified, rule_sections, slug
from kvconform.traces.codec import Vector
from kvconform.vectors.files import read_vectors
from kvspec.memory import proofs
from kvspec.memory_rules import ALL_RULES

SHORTENED = 4
"""Vectors, of those that find a defect, whose finding is shortened."""
OF_SGLANG_JAX = ("994",)
"""Pull requests of sglang-jax; all others are SGLang's."""
INTERFACE = (
    "protocol",
    "checked",
    "features",
    "traces.codec",
    "traces.expect",
    "traces.schema",
    "vectors.runner",
    "findings.shrink",
    "fuzzing.machine",
    "gallery.finders",
    "gallery.replaying",
)
"""The modules of kvconform that the reference pages show, with the ones that a rule points to."""

Page = tuple[str, str, str]
"""Where it goes, its title, its Markdown."""


def pull_request(number: str) -> str:
    """A link to a source document."""
    if number in OF_SGLANG_JAX:
        return f"[sglang-jax #{number}](https://github.com/sgl-project/sglang-jax/pull/{number})"
    return f"[SGLang #{number}](https://github.com/sgl-project/sglang/pull/{number})"


def api(name: str, text: str = "") -> str:
    """A link from anywhere to the code of a function, module or class, by its dotted name."""
    return f"[`{text or name.removeprefix('kvspec.')}`][{name}]"


def rule_link(rule: str, up: str = "") -> str:
    """A link to the section of a rule, from `up` folders below the chapters."""
    found = rule_sections()[rule]
    return f"[{rule}]({up}{found[0].chapter.name}#{slug(rule)})" if found else rule


def rule_table(rule: str) -> str:
    """What stands below the prose of a rule."""
    known, one = evidence()[rule], ALL_RULES[rule]
    code = [f"{api(name)}" for name in known.step_checks]
    lines = [
        ("reason", one.reason),
        ("origin", ", ".join(map(pull_request, one.origin.split(", ")))),
        ("check in every state", api(known.state_check) if known.state_check else ""),
        ("check at each step", ", ".join(code)),
        ("check over a run", ", ".join(map(api, known.run_checks))),
        ("contracts, proved", ", ".join(map(api, known.contracts))),
        ("proved for any size", _clauses(known.clauses)),
        ("vectors", ", ".join(f"[{name}](vectors/{name}.md)" for name in known.vectors)),
        ("mutants", ", ".join(f"[{name}](defects/{name}.md)" for name in known.mutants)),
    ]
    rows = "".join(f"| {name} | {text} |\n" for name, text in lines if text)
    return f"\n| {rule} | {one.statement} |\n| --- | --- |\n{rows}"


def _clauses(clauses: list[str]) -> str:
    if not clauses:
        return ""
    return f"{'; '.join(clauses)} ([`proofs`](api/{proofs.__name__}.md))"


def operation_line(op: str) -> str:
    """What stands below the heading of an operation."""
    form = executable_forms()[op]
    kind = "".join(word.capitalize() for word in op.split("_"))
    return f"\nArguments and answer: {api(f'kvspec.events.{kind}')}. Executable form: {api(form)}.\n"


def rules_page() -> Page:
    """All rules on one page."""
    lines = [
        "# Rules",
        "",
        "| rule | statement | checks | proofs | vectors | mutants |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    for rule, known in evidence().items():
        checks = len(known.step_checks) + len(known.run_checks) + bool(known.state_check)
        proofs = len(known.contracts) + len(known.clauses)
        lines.append(
            f"| {rule_link(rule)} | {ALL_RULES[rule].statement} | {checks} | {proofs} | {len(known.vectors)} "
            f"| {len(known.mutants)} |"
        )
    lines += ["", "## Operations", "", "| operation | chapter | executable form |", "| --- | --- | --- |"]
    for op, form in executable_forms().items():
        (section, *_) = operation_sections()[op]
        lines.append(f"| [`{op}`]({section.chapter.name}#{slug(op)}) | {title_of(section.chapter)} | {api(form)} |")
    return "rules.md", "Rules", "\n".join(lines) + "\n"


def title_of(path: Path) -> str:
    """The title of a chapter."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def vector_pages() -> Iterator[Page]:
    """A page for each vector, and one that lists them."""
    vectors = read_vectors()
    lines = ["# Vectors", "", "| vector | what happens | rules |", "| --- | --- | --- |"]
    for vector in vectors:
        rules = ", ".join(rule_link(rule, "../") for rule in vector.header.rules)
        lines.append(f"| [{vector.name}]({vector.name}.md) | {vector.header.description} | {rules} |")
        yield f"vectors/{vector.name}.md", vector.name, _vector_page(vector, rules)
    yield "vectors/index.md", "Vectors", "\n".join(lines) + "\n"


def _vector_page(vector: Vector, rules: str) -> str:
    config, source = vector.header.config, vector.header.source
    teller = Teller(config)
    for step in vector.steps:
        teller.step(step.line, step.op)
    told = f"Source: {pull_request(source)}. " if source else ""
    lines = [
        f"# {vector.name}",
        "",
        vector.header.description or "",
        "",
        f"Rules: {rules}. {told}File: `{vector.path.relative_to(ROOT)}`.",
        "",
        f"{memory_in_words(config)}. The operations, by line "
        "of the file, with the answers that the model itself gives; an implementation may choose other pages and rows.",
        "",
        drawn(teller.trace()),
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
    vectors = read_vectors()
    lines = [
        "# The bug gallery",
        "",
        "Defects that engines really had, each as a small mutant of the reference implementation. A check that cannot "
        "fail shows nothing: vectors, fuzzing and replayed traffic each find every one of these to which they apply. "
        f"Rules that none of them breaks have a *synthetic* one: {SYNTHETIC}.",
        "",
        "| defect | what the code does | described in | rule | events |",
        "| --- | --- | --- | --- | --: |",
    ]
    for bug in BUGS.values():
        found = [] if bug.is_of_scheduler else find_by_vectors(bug, vectors)
        found.sort(key=lambda one: (one.rule != bug.rule, one.rule not in bug.rules, one.operations))
        shown = _of_traffic(bug) if bug.is_of_scheduler else _of_vectors(bug, found)
        events = str(shown.events) if shown else "-"
        described = "synthetic" if bug.synthetic else ", ".join(map(pull_request, bug.source))
        lines.append(
            f"| [{bug.name}]({bug.name}.md) | {bug.title} | {described} | {rule_link(bug.rule, '../')} | {events} |"
        )
        yield f"defects/{bug.name}.md", bug.name, defect_page(bug, shown, sorted(one.vector.name for one in found))
    yield "defects/index.md", "Defects", "\n".join(lines) + "\n"


def _of_vectors(bug: Bug, found: list[Any]) -> Shown | None:
    shortened = [shown for shown in (shorten(bug, one) for one in found[:SHORTENED]) if shown is not None]
    return min(shortened, key=lambda shown: (shown.rule != bug.rule, shown.events), default=None)


def _of_traffic(bug: Bug) -> Shown | None:
    replayed = replay(bug, REPLAY_RUNS, seed=0)
    shown = shortest_loop(bug, replayed.run) or replayed.shown
    return None if shown is None else Shown(replayed.run.config, shown, "replayed traffic")


def defect_page(bug: Bug, shown: Shown | None, vectors: list[str]) -> str:
    """The page of a defect: what it is, the vectors that find it, its shortest trace, and its code."""
    lines = [f"# {bug.name}", "", f"**{bug.title}**", "", bug.symptom, ""]
    lines += [f"| {rule_link(bug.rule, '../')} | {ALL_RULES[bug.rule].statement} |", "| --- | --- |"]
    if bug.also:
        lines.append(f"| or, with other operations | {', '.join(rule_link(rule, '../') for rule in bug.also)} |")
    documents = ", ".join(map(pull_request, bug.source))
    if bug.synthetic:
        lines += [f"| synthetic | {SYNTHETIC} |", f"| the rule comes from | {documents} |"]
    else:
        lines.append(f"| described in | {documents} |")
    if vectors:
        lines.append(f"| vectors that find it | {', '.join(f'[{name}](../vectors/{name}.md)' for name in vectors)} |")
    else:
        lines.append(
            "| vectors that find it | none: it is the scheduler's, and traffic through the scheduler shows it |"
        )
    lines += ["", "## The shortest trace", ""]
    if shown is None:
        return "\n".join([*lines, "Nothing has found it."]) + "\n"
    finding = shown.finding
    cut = f", the last {MOST_STEPS} of {finding.trace.total} operations" if finding.trace.total > MOST_STEPS else ""
    lines += [
        f"In a memory of {finding.trace.memory}{cut}.",
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
    """What the last answer says, what the rule says, and what is known since which step."""
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


@cache
def documented() -> tuple[str, ...]:
    """The modules that have a page: of the specification and the reference all, of kvconform what an adapter needs."""
    names = [
        info.name
        for package in (kvspec, kvref)
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
        yield f"api/{name}.md", name, f"# {name}\n\n::: {name}\n"


def code_link(span: str) -> str | None:
    """A link to what a dotted name in prose means, if that has a page."""
    full = qualified(span)
    if full is None:
        return None
    if full in documented():
        return f"[`{span}`](api/{full}.md)"
    module, _, member = full.rpartition(".")
    return f"[`{span}`][{full}]" if {module, module.rpartition(".")[0]} & set(documented()) and member else None
