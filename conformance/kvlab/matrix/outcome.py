"""`kvspec matrix` as a report: a case for each release and level, and the unexplained findings."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding, Place, Rule, Trace
from kvconform.findings.outcome import Case, Report
from kvconform.findings.wording import counted, origin
from kvconform.runs.traces import report_of as report_of_trace
from kvlab.matrix.report import AnyReport, Group, MemoryReport, RequestReport
from kvlab.tokens import RULE as TOKENS
from kvspec.rules import MEMORY_RULES, rule_of


def report_of(engine: str, reports: Iterable[AnyReport]) -> Report:
    """The results of releases, at both levels."""
    outcome = Report("matrix", engine)
    for report in reports:
        if isinstance(report, MemoryReport):
            case = Case(f"{engine} {report.release}, as it runs", "conforms", level="memory", events=report.events)
        else:
            case = Case(f"{engine} {report.release}, requests", "conforms", events=report.operations)
        if report.not_supported is not None:
            case.verdict, case.reason = "not supported", report.not_supported
            outcome.cases.append(case)
        elif isinstance(report, MemoryReport):
            has = [f"{name} ({shown.code})" for name, shown in report.known.items() if shown is not None]
            known = f"known defects: {', '.join(has)}" if has else ""
            _add(outcome, case, [_finding_of(report, group) for group in report.unexplained], known)
            if report.missed:
                case.verdict, case.reason = "fails", "; ".join(f"never reached: {goal}" for goal in report.missed)
        else:
            _add(outcome, case, *_of_requests(report))
    return outcome


def _of_requests(report: RequestReport) -> tuple[list[Finding], str]:
    """The unexplained findings, and a line about the others."""
    found = [one.finding for one in report.found if one.explanation is None and one.finding is not None]
    return found, f"{counted(len(report.found), 'finding')}, all explained" if report.found and not found else ""


def _add(report: Report, case: Case, found: list[Finding], known: str) -> None:
    """Add a case with its findings. The traces of these are in separate files, which name the case."""
    case.verdict = "fails" if found else "known" if known else "conforms"
    case.reason = "; ".join(str(one.place) for one in found) or known
    report.cases.append(case)
    report.findings += found


def _finding_of(run: MemoryReport, group: Group) -> Finding:
    """The finding of a drive, from the trace that was written for it, or else from its code and text."""
    if group.file:
        findings = report_of_trace(Path(group.file), Baseline(), "causes").findings
        same = [one for one in findings if one.code == group.code]
        if same:
            return msgspec.structs.replace(same[-1], count=group.times)
    rule = (MEMORY_RULES | {TOKENS.id: TOKENS})[rule_of(group.code)]
    return Finding(
        kind="rule",
        what=group.what,
        place=Place(group.file or f"{run.engine} {run.release}", 0, group.event, site=group.at),
        trace=Trace("memory", {}, "", group.event, []),
        note="",
        rule=Rule(rule.id, rule.name, rule.statement, rule.reason, origin(rule)),
        code=group.code,
        count=group.times,
    )
