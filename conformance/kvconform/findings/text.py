"""Findings and traces as text, for a terminal of 80 columns or more: sentences, with the holders beside them."""

import json
import shlex
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.text import Text

from kvconform.findings.finding import Finding, Moment, in_words
from kvconform.findings.map import show_trace
from kvconform.findings.wording import filled, printable

LISTED = 40
"""The most events that are printed of the trace that shows a finding: the last ones."""
_LONG = 16
"""The most elements of a list that are written out. Of a longer list only the beginning and the end are."""


def show_finding(console: Console, finding: Finding, number: int = 0) -> None:
    """Print one finding in full: the rule, the trace that shows it, expected against observed.

    With a `number` it is one of several, which can be referred to by number.
    """
    console.print(_headline(finding, number), soft_wrap=True)
    facts = [("finding", finding.what)]
    if finding.rule is not None and finding.note:
        facts += [("rule", finding.rule.statement), ("why", finding.rule.reason), ("rule from", finding.rule.origin)]
    _show_facts(console, facts[:1])
    _show_ledger(console, finding)
    _show_facts(console, facts[1:])
    if finding.also:
        names = dict.fromkeys(map(str, (finding.place, *finding.also)))
        _show_facts(console, [(f"met in {len(names)}", ", ".join(names))])
    if finding.note:
        _show_shown(console, finding)
    if finding.follows:
        console.print(Text(printable(f"  {finding.follows}")), soft_wrap=True)
    console.print()


def _show_shown(console: Console, finding: Finding) -> None:
    """Print the trace that shows it, and the comparison at its last event."""
    console.print()
    console.print(Text(filled(f"{finding.note} In a memory of {finding.trace.memory}:", console.width)))
    console.print()
    show_trace(console, finding.trace, LISTED)
    _show_facts(console, _details(finding))
    holders = [entry.holder for entry in finding.ledger if entry.holder]
    if holders and finding.trace.level == "memory":  # on one line, to be pasted
        file = "merged.jsonl" if finding.parts else finding.place.file
        command = f"kvspec show {shlex.quote(file)} --request {shlex.quote(holders[-1])}"
        if finding.parts:
            command = f"kvspec merge {shlex.join(finding.parts)} -o {file} && {command}"
        console.print(Text(printable(f"  more       {command}")), soft_wrap=True)


def _headline(finding: Finding, number: int) -> Text:
    place = finding.place
    during = place.during if place.operation else "while it was made"
    during += f" ({place.site})" if place.site else ""
    often = "" if finding.count == 1 else f", {finding.count:,} times"
    what = f"{number}. {finding.title}" if number else finding.title
    return Text.assemble((what, "bold red"), (printable(f" at {place}, {during}") + often, "bold"))


def _details(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.last is not None:
        yield "operation", value(finding.last.event)
        if finding.trace.level == "request":
            yield "answer", answer(finding.last)
    if finding.compared:
        yield "expected", value(finding.expected)
        yield "observed", value(finding.observed)
    for frame in finding.raised:
        yield "at", frame
    for holder in finding.before:
        yield "state", holder
    for fact in finding.known:
        yield "history", fact


def _show_ledger(console: Console, finding: Finding) -> None:
    """Print the events that may be its cause, one a line."""
    lines = in_words(finding.ledger) + [finding.sequences] * bool(finding.sequences)
    _show_facts(console, zip_longest(["ledger"], lines, fillvalue="") if lines else [])


def _show_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    for name, text in facts:
        first = f"  {name:<10} "
        console.print(Text(filled(printable(text), console.width, first, " " * 13)), soft_wrap=True)


def answer(moment: Moment) -> str:
    """The answer as JSON, or the reason of the refusal."""
    if moment.refused is not None:
        rule, reason = moment.refused.get("rule"), moment.refused.get("reason")
        return printable(f"refused by {rule or 'no rule named'}: {reason or 'no reason given'}")
    return "none" if moment.answer is None else value(moment.answer)


def value(given: object) -> str:
    """A value as JSON with long lists shortened; text unchanged."""
    if given is None:
        return "none"
    return printable(given) if isinstance(given, str) else json.dumps(_short(given), ensure_ascii=False)


def _short(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: _short(item) for key, item in given.items()}
    if isinstance(given, list):
        items = [_short(item) for item in given]
        return items if len(items) <= _LONG else [*items[:6], f"... {len(items) - 8} more ...", *items[-2:]]
    return given
