"""The source documents: pull requests of engines, and the page that links each to its rules, defects and vectors."""

from collections import defaultdict

from kvconform.gallery.mutants import BUGS
from kvconform.site.pages import Page, named, pull_request, rule_link
from kvconform.vectors.files import read_vectors
from kvspec.rules import ALL_RULES


def sources_page() -> Page:
    """Every pull request that a rule, a defect or a vector comes from, each under its heading."""
    known: defaultdict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for rule in ALL_RULES.values():
        for number in rule.origin.split(", "):
            known[number]["rules"].append(rule_link(rule.id))
    for bug in BUGS.values():
        for number in bug.source:
            known[number]["defects"].append(f"[{bug.name}](defects/{bug.name}.md)")
    for vector in read_vectors():
        for number in (vector.header.source or "").split(", "):
            known[number]["vectors"].append(f"[{vector.name}](vectors/{vector.name}.md)")
    lines = ["# Sources", "", "The pull requests that rules, defects and vectors come from."]
    for number in sorted(filter(None, known), key=int):
        lines += ["", f"## {named(number)}", "", pull_request(number), ""]
        lines += [f"- {kind}: {', '.join(what)}" for kind, what in known[number].items()]
    return Page("sources.md", "Sources", "\n".join(lines) + "\n")
