"""What the law found in a trace, told so that it can be understood without knowing kvspec."""

import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from kvconform.findings.wording import origin, printable
from kvconform.memory.judge import Group, Judged
from kvconform.memory.shrink import Cut
from kvspec.memory_rules import MEMORY_RULES

TOLD = 20
"""Groups that are told whole at most, each with its shortest part of the trace; of further ones one line."""

_LISTED = 60
"""Events of a part that are printed at most: the last ones."""

_WIDE = 240
"""Characters of an event that are printed."""


def show_judged(
    console: Console, path: Path, judged: Judged, shortest: Callable[[Sequence[Group]], list[Cut | None]]
) -> None:
    """Print what was judged, and each group of findings once: causes whole, what may follow from them in a line."""
    total = judged.events.total()
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in judged.events.most_common())
    console.print(Text(printable(f"{path}: {total:,} events: {kinds or 'none'}.")), soft_wrap=True)
    if judged.unjudged:
        silent = ", ".join(f"{rule} ({count:,} times)" for rule, count in sorted(judged.unjudged.items()))
        console.print(Text(f"Not told, and so not judged: {silent}."), soft_wrap=True)
    numbers = {id(group): number for number, group in enumerate(judged.groups, start=1)}
    told = [group for group in judged.groups if group.cause is None][:TOLD]
    cuts = {id(group): cut for group, cut in zip(told, shortest(told), strict=True)}
    for number, group in enumerate(judged.groups, start=1):
        console.print()
        console.print(_headline(path, number, group), soft_wrap=True)
        if group.cause is not None:
            console.print(f"  It may follow from {numbers[id(group.cause)]}.")
        elif group.finding.cause not in (None, group.finding.event):
            console.print(f"  It may follow from what was found at event {group.finding.cause} and is accepted.")
        if id(group) in cuts:
            _show_group(console, group, cuts[id(group)])
        else:
            console.print(Text(f"  {printable(group.finding.what)}"), soft_wrap=True)
    if judged.groups:
        console.print()
    if judged.beyond:
        console.print(f"{judged.beyond:,} further findings are of still other kinds.")


def _headline(path: Path, number: int, group: Group) -> Text:
    finding = group.finding
    where = f" at {path}:{group.line}, event {finding.event}: {group.kind}"
    site = "" if finding.at is None else f" ({finding.at})"
    often = "" if group.count == 1 else f", {group.count:,} times"
    return Text.assemble((f"{number}. {finding.rule} is broken", "bold red"), (printable(where + site) + often, "bold"))


def _show_group(console: Console, group: Group, cut: Cut | None) -> None:
    finding = group.finding
    rule = MEMORY_RULES[finding.rule]
    facts = [("rule", rule.statement), ("why", rule.reason), ("origin", origin(rule)), ("finding", finding.what)]
    if finding.earlier is not None:
        facts.append(("earlier", f"the other use comes from {finding.earlier}"))
    for name, text in facts:
        filled = textwrap.fill(
            printable(text),
            max(console.width, 60),
            initial_indent=f"  {name:<9}",
            subsequent_indent=" " * 11,
            break_long_words=False,
            break_on_hyphens=False,
        )
        console.print(Text(filled), soft_wrap=True)
    if cut is None:
        console.print("  No part of the trace was found that shows it by itself.")
        return
    size = f"{len(cut.steps):,} of {cut.total:,} events"
    console.print(
        f"  The shortest part that shows it, with line numbers ({size}):"
        if cut.complete
        else f"  A part that shows it, with line numbers ({size}; the search was stopped):"
    )
    if len(cut.steps) > _LISTED:
        console.print(f"    ... {len(cut.steps) - _LISTED:,} events before these ...")
    shown = cut.steps[-_LISTED:]
    width = len(str(shown[-1].line))
    for step in shown:
        event = json.dumps(msgspec.to_builtins(step.event, str_keys=True), ensure_ascii=False)
        event = event if len(event) <= _WIDE else f"{event[:_WIDE]} ..."
        style = "bold red" if step is shown[-1] else ""
        console.print(Text(f"    {step.line:>{width}}  {printable(event)}", style), soft_wrap=True)
