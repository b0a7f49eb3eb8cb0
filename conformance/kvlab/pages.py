"""The pages of `conformance/found`, made from the tables of known issues.

python -m kvlab.pages FOLDER
"""

import re
import sys
from pathlib import Path

from kvlab.issues import Issue, Section, Table, issues_of

ENGINES = ("lmcache", "max", "mini-sglang", "sglang", "sglang-jax", "transformers", "vllm")
"""Engines with a table."""


def page_of(engine: str) -> str:
    """The page of an engine, in Markdown."""
    table = issues_of(engine)
    return "\n".join(part for section in table.page for part in _section(engine, table, section))


def _section(engine: str, table: Table, section: Section) -> list[str]:
    if not section.columns:
        return [section.text]
    issues = {issue.id: issue for issue in table.at(section.level)}
    rows = [
        [head for _, head in section.columns],
        ["---"] * len(section.columns),
        *(
            [_cell(engine, issues[name], section, field) for field, _ in section.columns]
            for name in section.issues or issues
        ),
    ]
    return [section.text, *("|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows), ""]


def _cell(engine: str, issue: Issue, section: Section, field: str) -> str:
    match field:
        case "id":
            seen = issue.seen if issue.seen and "seen" not in dict(section.columns) else ""
            return f"`{issue.id}`" + (f" ({seen})" if seen else "")
        case "traces":
            return ", ".join(f"[{_label(name)}]({engine}/{name})" for name in issue.traces) or issue.no_trace
        case "lines":
            return "; ".join(issue.lines)
        case "since":
            fixed = f" until {issue.fixed}" if issue.fixed else " on"
            return issue.since + fixed + (f" (pull request {issue.pull})" if issue.pull else "")
        case "kind":
            return "the engine is wrong" if issue.kind == "engine" else "the specification is stricter"
    return " ".join(str(getattr(issue, field)).split())


def _label(trace: str) -> str:
    """The release in the name of a trace, or else the name."""
    stem = trace.removesuffix(".jsonl")
    numbered = re.search(r"-(\d+\.\d+\.\d+)$", stem)
    return numbered[1] if numbered else f"`{stem}`"


if __name__ == "__main__":
    for name in ENGINES:
        (Path(sys.argv[1]) / f"{name}.md").write_text(page_of(name), encoding="utf-8")
