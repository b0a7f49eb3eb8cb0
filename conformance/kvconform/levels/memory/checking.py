"""Checks a trace of memory events to its end, and reports its findings."""

from collections import Counter
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from kvcheck import Checker, Malformed
from kvcheck.state import State
from kvcheck.words import describe
from kvconform.console import complain
from kvconform.errors import InputError
from kvconform.findings.text import show_finding
from kvconform.findings.wording import counted, filled, printable
from kvconform.levels.level import Check, Checked
from kvconform.levels.memory.grouping import Group, Grouped, Grouping
from kvconform.levels.memory.ledger import keep_ledgers
from kvconform.levels.memory.rendering import findings_of_groups, pool_to_name
from kvconform.signals import Interrupted, forgive
from kvconform.traces.memory import HostReader
from kvconform.traces.merging import AnyReader, Source
from kvspec.rules import MEMORY_RULES

SECONDS = 60.0
"""The most seconds, on a slow machine, to find the shortest part of a trace for one group of findings."""


_NAMED = 4
"""The most holders with pages at the end that are named."""


def check(path: Source, trace: AnyReader, how: Check) -> Checked:
    """Check one trace and print its findings.

    `follow` prints the first finding of each kind at once and passes it to `met`.

    Raises:
        InputError: a line is invalid, and nothing was found before it.
    """
    consoles, baseline = how.consoles, how.baseline
    console = consoles.details

    def show(group: Group) -> None:
        pool = pool_to_name(group.finding, len(trace.header.pools))
        where = f" in pool {pool}" if pool else ""
        what = f"{path}:{group.line}: {group.finding.code}{where}: {describe(group.finding)}"
        if how.met is not None:
            how.met(group, len(trace.header.pools))
        console.print(Text(printable(what)), soft_wrap=True)

    checker = Checker(trace.header.pools)
    grouping = Grouping(checker, baseline, show if how.follow else None)
    problem: InputError | None = None
    try:
        _read(trace, grouping, how.progress, first=how.first)
    except InputError as error:
        problem = error
    except Interrupted:
        if how.follow:
            forgive()  # only an interrupt ends it
    outcome = grouping.outcome()
    outcome = outcome._replace(groups=keep_ledgers(path, outcome.groups, baseline))
    if problem is not None:
        if not outcome.groups:
            raise problem
        complain(str(problem))

    _show_counts(console, path, outcome, checker.state)
    if isinstance(trace, HostReader) and trace.left_out:
        line = f"Not checked in this file alone: the memory of other hosts, in {counted(trace.left_out, 'operation')}."
        console.print(Text(filled(line, console.width, "", "  ")), soft_wrap=True)
    findings = findings_of_groups(path, trace.header.pools, outcome, grouping.identities, SECONDS, consoles.described)
    for number, finding in enumerate(findings, start=1):
        show_finding(console, finding, number)
    if outcome.beyond:
        console.print(f"{outcome.beyond:,} further findings are of still other kinds.")
    unchecked = sum(outcome.unchecked.values(), Counter[str]())
    reason = "" if problem is None else str(problem)
    return Checked(outcome.events.total(), findings, outcome.checked, unchecked, bool(outcome.groups), reason)


def _show_counts(console: Console, path: Source, outcome: Grouped, state: State) -> None:
    """Print which rules were checked and which were not, and the holders at the end if no `idle` event checks them."""
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in outcome.events.most_common())
    text = f"{path}: {counted(outcome.events.total(), 'event')}: {kinds or 'none'}."
    console.print(Text(filled(printable(text), console.width, "", "  ")), soft_wrap=True)
    counts = ", ".join(f"{rule} ({outcome.checked[rule]:,})" for rule in MEMORY_RULES if outcome.checked[rule])
    never = ", ".join(rule for rule in MEMORY_RULES if not outcome.checked[rule])
    line = f"Checked: {counts or 'nothing'}. No event to check: {never or 'none'}."
    console.print(Text(filled(line, console.width, "", "  ")), soft_wrap=True)
    if outcome.unchecked:
        silent = [(rule, pool, count) for pool, counts in outcome.unchecked.items() for rule, count in counts.items()]
        several = len(state.pools) > 1
        each = [f"{rule}{f' in {pool}' * several}, {counted(count, 'time')}" for rule, pool, count in sorted(silent)]
        line = f"Not reported, so not checked: labels ({'; '.join(each)})."
        console.print(Text(filled(printable(line), console.width, "", "  ")), soft_wrap=True)
    holders = [holder for holder, pages in state.holdings.items() if any(pages.values())]
    if holders and not outcome.events["idle"]:
        more = [f"{len(holders) - _NAMED:,} more"] if len(holders) > _NAMED else []
        line = f"Still with pages at the end, which no idle event checks: {', '.join([*holders[:_NAMED], *more])}."
        console.print(Text(filled(line, console.width, "", "  ")), soft_wrap=True)
    if outcome.groups:
        console.print()


def _read(trace: AnyReader, grouping: Grouping, progress: Callable[[int], object], *, first: bool) -> None:
    for number, (line, event) in enumerate(trace, start=1):
        try:
            grouping.step(line, event)
            if first and grouping.has_found:
                return
        except Malformed as error:
            raise InputError(*trace.place(line), str(error)) from error
        if number % 1000 == 0:
            progress(number)
