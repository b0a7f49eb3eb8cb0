"""Checks a trace of operations to its end, and makes its findings."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.text import Text

from kvconform.console import Described, complain
from kvconform.findings.finding import Finding
from kvconform.findings.summary import show_check
from kvconform.findings.text import show_finding
from kvconform.findings.wording import printable
from kvconform.levels.level import Check, Checked
from kvconform.levels.minimising import Effort
from kvconform.levels.requests.minimise import SECONDS, UNITS, Shortest, effort_for, shortest_of_trace
from kvconform.levels.requests.recovery import Found, Whole, check_later, check_whole
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.signals import forgive
from kvconform.traces.codec import TraceReader
from kvconform.vectors.runner import check_again
from kvspec.events import Config, Operation

DESCRIBED = 20
"""The most kinds of findings that are described in full. Each further one gets a line."""


def check(path: Path, trace: TraceReader, how: Check) -> Checked:
    """Check one trace and print its findings.

    Raises:
        InputError: a line is invalid, and nothing was found before it.
    """
    config, consoles = trace.header.config, how.consoles
    out = consoles.details
    whole = check_whole(config, trace, how.baseline, how.progress, first_only=how.first)
    if how.follow:
        forgive()  # only an interrupt ends it
    if whole.problem is not None:
        if not whole.found:
            raise whole.problem
        complain(str(whole.problem))
    show_check(out, path, whole.evidence, consoles.verbose)
    effort, findings = effort_for(path), []
    for one in whole.found[:DESCRIBED]:
        findings.append(_finding(path, config, whole, one, consoles.described, effort.part(UNITS // 2, SECONDS)))
        show_finding(out, findings[-1])
    for one in whole.found[DESCRIBED:]:
        out.print(Text(printable(f"{one.finding} at {path}:{one.line}, {one.count:,} times.")), soft_wrap=True)
    if whole.lost is not None:
        out.print(Text(printable(f"{path}: checking ends at {whole.lost}.")), soft_wrap=True)
    checked, unchecked, reason = whole.evidence.checked, whole.evidence.unchecked, whole.problem or whole.lost
    return Checked(whole.operations, findings, checked, unchecked, bool(whole.found), str(reason or ""))


def _finding(path: Path, config: Config, whole: Whole, one: Found, described: Described, effort: Effort) -> Finding:
    first = one.finding is whole.first
    place = place_of(one.finding, path, one.line)
    if described == "none":
        return finding_of(one.finding, config, place, Shortest(None, ""), [(one.line, one.finding.op)])
    check = check_again if first else partial(check_later, said={str(other.finding) for other in whole.found})
    shortest = shortest_of_trace(path, one.finding.step, effort, check)
    finding = finding_of(one.finding, config, place, shortest, _original(path, one))
    finding.count = one.count
    if not first:
        finding.follows = "It may follow from the first finding: the model went on with what it expected there."
    return finding


def _original(path: Path, one: Found) -> Iterator[tuple[int, Operation[Any]]]:
    """The trace up to a finding; if it cannot be read a second time, only the operation with the finding."""
    if not path.is_file():
        yield one.line, one.finding.op
        return
    with TraceReader(path) as trace:
        yield from islice(trace, one.finding.step)
