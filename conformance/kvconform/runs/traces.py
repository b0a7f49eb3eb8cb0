"""`kvspec check`: recorded traces of both levels, each checked to its end."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, UNUSABLE, Consoles, Described, Forms, complain, progress_bar
from kvconform.errors import InputError
from kvconform.findings.baseline import Baseline, read_baseline
from kvconform.findings.formats import to_json, write
from kvconform.findings.outcome import Case, Report, Verdict
from kvconform.findings.summary import merged, show_baseline, show_kin
from kvconform.findings.text import show_finding
from kvconform.findings.wording import counted, printable
from kvconform.levels.both import LEVELS
from kvconform.levels.level import Check, Met
from kvconform.runs.side_by_side import side_by_side
from kvconform.signals import caught, forgive
from kvconform.traces.codec import TraceReader
from kvconform.traces.lines import Ended
from kvconform.traces.memory import open_trace
from kvconform.traces.merging import AnyReader, MergedReader, Parts, Source
from kvconform.traces.routers import Events, RouterReader

Made = Callable[[Path], Source]
"""Makes a trace of a file."""


def check_traces(
    out: Console,
    traces: Sequence[Path],
    baseline_file: Path | None,
    forms: Forms,
    *,
    follow: bool = False,
    first: bool = False,
    jobs: int = 1,
    merge: bool = False,
    kv_events: bool = False,
) -> int:
    """Check traces of both levels and report the outcome; the exit status.

    `follow` waits for more events at the end of a trace. `first` stops at the first finding. `jobs` traces are checked
    at a time. `merge` checks them as one trace. `kv_events`: the files hold recorded KV events.

    Raises:
        InputError: the baseline file cannot be used.
        OSError: a file cannot be written.
    """
    baseline = read_baseline(baseline_file)
    report = Report("check", ", ".join(map(str, traces)))
    consoles = _consoles(out, forms)
    details = consoles.details
    sources: Sequence[Source] = [Parts(tuple(traces))] if merge else [*map(Events, traces)] if kv_events else traces
    if len(sources) > 1:  # the findings of all traces are printed after all verdicts
        consoles = consoles._replace(details=Console(quiet=True))
    path: Source
    if jobs > 1 and len(sources) > 1:
        made: Made = Events if kv_events else Path
        path = _check_many(consoles, traces, made, baseline, report, jobs, first=first)
    else:
        for path in sources:
            _check_one(consoles, path, baseline, report, follow=_never if follow else None, first=first)
            if (first and report.findings) or caught():
                break
    if follow:
        forgive()
    elif caught():
        complain(f"interrupted: {path} and the traces after it are not checked to the end")
    if len(sources) > 1:
        report.findings = merged(report.findings)
        for number, finding in enumerate(report.findings, start=1):
            show_finding(details, finding, number)
    show_kin(details, report.findings, len(sources))
    show_baseline(details, baseline)
    write(report, junit=forms.junit, sarif=forms.sarif, html=forms.html, out=forms.out)
    if forms.json:
        out.print(to_json(report), markup=False, highlight=False, soft_wrap=True)
    verdicts = {case.verdict for case in report.cases}
    return BROKEN if "fails" in verdicts else UNUSABLE if "unusable" in verdicts else CONFORMS


def _consoles(out: Console, forms: Forms) -> Consoles:
    silent = Console(quiet=True)
    details = silent if forms.json or forms.quiet else out
    return Consoles(silent if forms.json else out, details, forms.verbose, forms.described)


def _check_many(
    consoles: Consoles,
    traces: Sequence[Path],
    made: Made,
    baseline: Baseline,
    report: Report,
    jobs: int,
    *,
    first: bool,
) -> Path:
    """Check several traces at a time and report them in order. Returns the first one not checked to its end."""

    def work(out: Console, path: Path, known: Baseline, one: Report) -> None:
        _check_one(consoles._replace(verdict=out), made(path), known, one, first=first)

    left = list(traces)
    with closing(side_by_side(work, traces, jobs, consoles.verdict, baseline)) as checked:
        for one in checked:
            if one.fault:
                raise RuntimeError(f"{one.path}: {one.fault}")
            if one.whole:
                left.remove(one.path)
            sys.stderr.write(one.complained)
            consoles.verdict.out(one.printed, end="", highlight=False)
            baseline.count += one.baseline
            report.cases += one.report.cases
            report.findings += one.report.findings
            report.checked = dict(Counter(report.checked) + Counter(one.report.checked))
            report.unchecked = dict(Counter(report.unchecked) + Counter(one.report.unchecked))
            if first and report.findings:
                break
    return next(iter(left), traces[-1])


def _never() -> bool:
    """Never true: the reader of an arbitrary file cannot see that its writer has ended."""
    return False


def check_growing(out: Console, path: Path, met: Met, ended: Ended) -> Report:
    """Check one trace as it grows, until its writer has ended, and print the outcome.

    `met` receives the first finding of each kind when it occurs.
    """
    report = Report("check", str(path))
    _check_one(Consoles(out, out), path, Baseline(), report, first=False, follow=ended, met=met)
    return report


def report_of(path: Path, baseline: Baseline, described: Described) -> Report:
    """Check one trace without printing anything but an error about an unusable trace."""
    report = Report("check", str(path))
    silent = Console(quiet=True)
    _check_one(Consoles(silent, silent, described=described), path, baseline, report, first=False)
    return report


def _opened(source: Source, follow: Ended | None) -> TraceReader | AnyReader:
    if isinstance(source, Parts):
        return MergedReader(source)
    return RouterReader(source, follow=follow) if isinstance(source, Events) else open_trace(source, follow=follow)


def _check_one(
    consoles: Consoles,
    path: Source,
    baseline: Baseline,
    report: Report,
    *,
    first: bool,
    follow: Ended | None = None,
    met: Met | None = None,
) -> None:
    try:
        opened = _opened(path, follow)
        with opened as trace, progress_bar() as progress:
            files = trace.files if isinstance(trace, MergedReader) else [trace.lines]
            task = progress.add_task(path.name, total=sum(file.size() for file in files) or None)

            begun = time.monotonic()

            def advance(events: int) -> None:
                rate = events / max(time.monotonic() - begun, 0.001)
                text = f"{path.name}: {events:,} events, {rate:,.0f} a second"
                progress.update(task, completed=sum(file.bytes_read() for file in files), description=text)

            level = LEVELS[trace.level]
            checked = level.check(path, trace, Check(consoles, baseline, advance, bool(follow), first, met))
    except InputError as error:
        report.cases.append(Case(path.name, "unusable", str(path), reason=str(error)))
        complain(str(error))
        return
    report.findings += checked.findings
    verdict: Verdict = "fails" if checked.broken else "conforms"
    report.cases.append(Case(path.name, verdict, str(path), level.name, checked.events, checked.reason))
    report.checked = dict(Counter(report.checked) + checked.checked)
    report.unchecked = dict(Counter(report.unchecked) + checked.unchecked)
    words = "does not conform" if checked.broken else "conforms"
    line = f"{path}: {words}, {counted(checked.events, level.unit)} checked."
    consoles.verdict.print(Text(printable(line)), soft_wrap=True)
