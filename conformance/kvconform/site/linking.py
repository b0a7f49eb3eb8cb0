"""Completes a chapter: drawings, the generated tables below each rule and operation, and links."""

import re
from pathlib import Path

from kvconform.gallery.mutants import BUGS
from kvconform.site.evidence import executable_forms
from kvconform.site.figures import FIGURES
from kvconform.site.pages import code_link, operation_table, rule_link, rule_table
from kvconform.site.prose import FIGURE, RULE_ID, sections, vector_names
from kvspec import __version__
from kvspec.rules import ALL_RULES

VERSION = "<!-- version -->"
"""The mark that the version replaces."""
_SPAN = re.compile(r"(?<![\[`])`([A-Za-z_][\w.-]*)`(?!\])")
_PLAIN_RULE = re.compile(rf"(?<![\[`#\w]){RULE_ID.pattern}(?![\]`])")


def completed(chapter: Path) -> str:
    """A chapter in its form for the site."""
    markdown = chapter.read_text(encoding="utf-8")
    below: dict[int, str] = {}
    for section in sections(chapter, markdown):
        name = section.title.strip("`")
        if name in ALL_RULES:
            below[section.end] = rule_table(name)
        elif name in executable_forms() and name != section.title:
            below[section.start + 1] = operation_table(name)
    lines = [*markdown.splitlines(), ""]
    text = "\n".join(
        f"{below.get(number, '')}\n{line}" if number in below else line for number, line in enumerate(lines)
    )
    text = text.replace(VERSION, __version__)
    return linked(FIGURE.sub(lambda found: f'<figure markdown="0">{FIGURES[found[1]]()}</figure>', text))


def linked(text: str) -> str:
    """Rule ids, and dotted names, vectors and defects in backquotes, become links; headings and code stay."""
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not (fenced or line.startswith(("#", "    ", "```"))):
            spans = _SPAN.sub(lambda found: _link_of_span(found[1]) or found[0], line)
            lines.append(_PLAIN_RULE.sub(_linked_rule, spans))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _linked_rule(found: re.Match[str]) -> str:
    return rule_link(found[0]) if found[0] in ALL_RULES else found[0]


def _link_of_span(span: str) -> str | None:
    if span in vector_names():
        return f"[{span}](vectors/{span}.md)"
    if span in BUGS:
        return f"[{span}](defects/{span}.md)"
    return code_link(span) if "." in span else None
