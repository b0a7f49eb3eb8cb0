"""`kvspec check --ray`: traces by URL, one task a file, findings grouped over all of them by their cause."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import fsspec
from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, UNUSABLE, Consoles, Described, Forms, complain, progress_bar
from kvconform.errors import InputError
from kvconform.findings.baseline import Baseline, Entry, read_baseline
from kvconform.findings.finding import Finding, Place
from kvconform.findings.formats import to_json, write
from kvconform.findings.outcome import Case, Report
from kvconform.findings.summary import merged, show_baseline
from kvconform.findings.text import show_finding
from kvconform.fleet.cluster import Cluster
from kvconform.runs.traces import report_of


class Checked(NamedTuple):
    """The result of one trace."""

    url: str
    report: Report
    baseline: Counter[Entry]
    modified: datetime | None
    """When the file was last written; `None` if its storage does not report this."""


class Cause(NamedTuple):
    """Findings of several traces that are probably one defect."""

    finding: Finding
    """The first finding, with the places of all others."""
    since: datetime | None
    """When the oldest trace that shows it was written."""


def check_traces(out: Console, cluster: Cluster, urls: Sequence[str], baseline_file: Path | None, forms: Forms) -> int:
    """Check the traces that URLs name (`*` stands for any part of a name), and report the results.

    Raises:
        InputError: the baseline file is invalid, or a URL names no file. OSError: a file cannot be written.
    """
    baseline = read_baseline(baseline_file)
    names = [name for url in urls for name in files_of(url)]
    report = Report("check", ", ".join(urls))
    done: list[Checked] = []
    with progress_bar() as progress:
        task = progress.add_task(f"{len(names):,} traces", total=len(names))
        for one in cluster.as_done(partial(check_url, entries=baseline.entries, described=forms.described), names):
            done.append(one.result)
            progress.update(task, completed=len(done))
    done.sort(key=lambda one: one.url)
    for checked in done:
        _add(report, checked)
        baseline.count += checked.baseline
    causes = grouped(done)
    report.findings = [cause.finding for cause in causes]
    silent = Console(quiet=True)
    consoles = Consoles(silent if forms.json else out, silent if forms.json or forms.quiet else out, forms.verbose)
    for number, cause in enumerate(causes, start=1):
        show_finding(consoles.details, cause.finding, number)
        since = "" if cause.since is None else f", the oldest of {cause.since:%Y-%m-%d %H:%M} UTC"
        met = {place.file for place in (cause.finding.place, *cause.finding.also)}
        consoles.details.print(Text(f"{number}. is in {len(met):,} of {len(done):,} traces{since}."), soft_wrap=True)
        consoles.details.print()
    show_baseline(consoles.details, baseline)
    verdicts = Counter(case.verdict for case in report.cases)
    events = sum(case.events for case in report.cases)
    summary = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(verdicts.items()))
    consoles.verdict.print(Text(f"{len(done):,} traces: {summary}; {events:,} events checked."), soft_wrap=True)
    write(report, junit=forms.junit, sarif=forms.sarif, html=forms.html, out=forms.out)
    if forms.json:
        out.print(to_json(report), markup=False, highlight=False, soft_wrap=True)
    return BROKEN if verdicts["fails"] else UNUSABLE if verdicts["unusable"] else CONFORMS


def _add(report: Report, checked: Checked) -> None:
    for case in checked.report.cases:
        report.cases.append(case)
        if case.verdict == "unusable":
            complain(case.reason)
    report.checked = dict(Counter(report.checked) + Counter(checked.report.checked))
    report.unchecked = dict(Counter(report.unchecked) + Counter(checked.report.unchecked))


def files_of(url: str) -> list[str]:
    """The files that a URL names, in order.

    Raises:
        InputError: there is no such file, or its storage cannot be reached.
    """
    try:
        storage, path = fsspec.core.url_to_fs(url)
        found = sorted(storage.glob(path)) if set("*?[") & set(path) else [path]
        names = [str(storage.unstrip_protocol(one)) if "://" in url else str(one) for one in found]
    except (ImportError, OSError, ValueError) as error:
        raise InputError(Path(url), 0, str(error)) from error
    if not names:
        raise InputError(Path(url), 0, "names no trace")
    return names


def check_url(url: str, entries: list[Entry], described: Described) -> Checked:
    """Copy one trace to this machine, and check it. `described`: the findings to describe."""
    baseline = Baseline(entries)
    modified: datetime | None = None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / PurePosixPath(url).name
        try:
            storage, path = fsspec.core.url_to_fs(url)
            with storage.open(path, "rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target)
            modified = _modified(storage, path)
            report = report_of(copy, baseline, described)
        except (ImportError, OSError, ValueError) as error:
            report = Report("check", url, [Case(copy.name, "unusable", url, reason=f"{url}: {error}")])
        return Checked(url, _of_url(report, str(copy), url), baseline.count, modified)


def _modified(storage: fsspec.AbstractFileSystem, path: str) -> datetime | None:
    try:
        modified = storage.modified(path)
    except NotImplementedError:
        return None
    if not isinstance(modified, datetime):
        return None
    return modified.replace(tzinfo=UTC) if modified.tzinfo is None else modified


def _of_url(report: Report, copy: str, url: str) -> Report:
    """Turn the report of a copy into one of the original."""
    for case in report.cases:
        case.file, case.reason = url, case.reason.replace(copy, url)
    for finding in report.findings:
        finding.place = _moved(finding.place, url)
        finding.also = [_moved(place, url) for place in finding.also]
    return report


def _moved(place: Place, url: str) -> Place:
    return Place(url, place.line, place.step, place.operation, place.vector, place.site)


def grouped(checked: Sequence[Checked]) -> list[Cause]:
    """Findings grouped by rule, kind of event, place in the engine and pool, the most frequent first."""
    since: dict[tuple[str, ...], datetime] = {}
    for one in checked:
        if one.modified is not None:
            for finding in one.report.findings:
                since[finding.kin] = min(since.get(finding.kin, one.modified), one.modified)
    found = merged(finding for one in checked for finding in one.report.findings)
    return [Cause(finding, since.get(finding.kin)) for finding in found]
