"""The checked rules, skipped vectors and repeated findings of a command, as tables and lines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvconform.features import lacked, why_not
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding
from kvconform.findings.wording import counted, filled, printable
from kvconform.traces.codec import Vector
from kvconform.vectors.runner import Evidence, Outcome, unchecked_rules
from kvspec.rules import RULES


def show_run(
    console: Console,
    results: Sequence[tuple[Vector, Outcome]],
    unsupported: Sequence[tuple[Vector, frozenset[str]]] = (),
) -> None:
    """Print the vectors by rule, with the result of each vector."""
    evidence = Evidence.together(outcome.evidence for _, outcome in results)
    by_rule = Table("rule", "checked", "vectors that exercise it", title="Vectors by rule", box=box.SIMPLE_HEAD)
    for rule in RULES:
        names = [_marked(vector, outcome) for vector, outcome in results if rule in vector.header.rules]
        if names:
            by_rule.add_row(rule, f"{evidence.checked[rule]:,}", Text(", ").join(names))
    console.print(by_rule)
    by_vector = Table("vector", "result", "operations", title="Vectors", box=box.SIMPLE_HEAD)
    for vector, outcome in results:
        silent = unchecked_rules(vector, outcome)
        right = Text(f"no {', '.join(silent)}", "yellow") if silent else Text("conforms", "green")
        result = right if outcome.finding is None else Text("FAILS", "bold red")
        by_vector.add_row(_marked(vector, outcome), result, str(outcome.operations))
    for vector, _ in unsupported:
        by_vector.add_row(Text(printable(vector.name)), Text("not supported"), "")
    console.print(by_vector)


def show_gaps(
    console: Console,
    results: Sequence[tuple[Vector, Outcome]],
    unsupported: Sequence[tuple[Vector, frozenset[str]]],
    *,
    verbose: bool,
) -> None:
    """Print the features that skipped vectors need, and the fields that answers left out."""
    if verbose:
        for reason, count in Counter(why_not(missing) for _, missing in unsupported).most_common():
            console.print(Text(f"Not supported, {counted(count, 'vector')}: {reason}."), soft_wrap=True)
    elif unsupported:
        needed = Counter(feature for _, missing in unsupported for feature in missing)
        reasons = ", ".join(
            f"{lacked(feature)} ({count})" for feature, count in sorted(needed.items(), key=_most_first)
        )
        line = f"Not supported, {counted(len(unsupported), 'vector')}: {reasons}; -v says more."
        console.print(Text(filled(line, console.width, "", "  ")), soft_wrap=True)
    _show_silence(console, Evidence.together(outcome.evidence for _, outcome in results))


def _most_first(needed: tuple[str, int]) -> tuple[int, str]:
    feature, count = needed
    return -count, feature


def _marked(vector: Vector, outcome: Outcome) -> Text:
    return Text(printable(vector.name), "" if outcome.finding is None else "bold red")


def show_check(console: Console, path: Path, evidence: Evidence, verbose: bool) -> None:
    """Print the rules that were checked in one trace; `verbose` adds the table of rules."""
    checked, unchecked = evidence.checked, evidence.unchecked
    table = Table("rule", "checked", "not reported", title=printable(str(path)), box=box.SIMPLE_HEAD)
    for rule in RULES:
        if checked[rule] or unchecked[rule]:
            table.add_row(rule, f"{checked[rule]:,}", f"{unchecked[rule]:,}" if unchecked[rule] else "")
    if verbose:
        console.print(table)
    _show_silence(console, evidence)
    reached = ", ".join(f"{what} ({count:,})" for what, count in sorted(evidence.reached.items()))
    line = f"On the way: {reached or 'nothing'}."
    console.print(Text(filled(line, console.width, "", "  ")), soft_wrap=True)


def _show_silence(console: Console, evidence: Evidence) -> None:
    """Name the fields that answers left out, and the rules that need them."""
    if evidence.unchecked:
        silent = [rule for rule in RULES if evidence.unchecked[rule]]
        fields_for = evidence.fields_for
        fields = "; ".join(
            f"{', '.join(fields_for(rule))} ({rule}, {counted(evidence.unchecked[rule], 'time')})" for rule in silent
        )
        line = f"Not reported, so not checked: {fields}."
        console.print(Text(filled(line, console.width, "", "  ")), soft_wrap=True)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of several traces, those with most places first; those with one code and place are merged."""
    found: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        first = found.setdefault(finding.kin, finding)
        if first is not finding:
            first.also += [finding.place, *finding.also]
            first.count += finding.count
    return sorted(found.values(), key=lambda one: -len(one.also))


def show_kin(console: Console, findings: Sequence[Finding], traces: int) -> None:
    """Print the number of traces in which each finding was met."""
    for finding in findings if traces > 1 else ():
        place = finding.place
        site = f" ({place.site})" if place.site else ""
        files = len({one.file for one in (place, *finding.also)})
        what = f"{finding.title} at {place.operation}{site} in {files:,} of {traces:,} traces"
        what += f", {counted(finding.count, 'time')}; first at {place}."
        console.print(Text(filled(printable(what), console.width, "", "  ")), soft_wrap=True)


def show_baseline(console: Console, baseline: Baseline) -> None:
    """Print the known findings with their counts, and those that no longer occur."""
    for entry in baseline.entries:
        count = baseline.count[entry]
        link = f" ({entry.link})" if entry.link else ""
        often = counted(count, "time") if count else "never, so it can go from the file"
        console.print(Text(printable(f"Known: {entry}: {often}. {entry.reason}{link}")), soft_wrap=True)
