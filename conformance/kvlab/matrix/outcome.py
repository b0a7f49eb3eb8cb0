"""`kvspec matrix` as a report: a case for each release and level, and the findings that nothing explains."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kvconform.findings.baseline import Accepted
from kvconform.findings.finding import Finding, Place, Rule, Trace
from kvconform.findings.outcome import Case, Report
from kvconform.findings.wording import counted, origin
from kvconform.runs.traces import report_of as report_of_trace
from kvlab.matrix.memory.report import DrivenReport, Group
from kvlab.matrix.requests.findings import ReleaseReport
from kvspec.rules import MEMORY_RULES


def report_of(
    engine: str, checked: Iterable[ReleaseReport], driven: Iterable[DrivenReport], unchecked: Mapping[str, str]
) -> Report:
    """What came out of releases, at both levels. `unchecked`: release -> why it cannot be had behind the protocol."""
    report = Report("matrix", engine)
    for requests in checked:
        found = [one.finding for one in requests.found if one.explanation is None and one.finding is not None]
        known = f"{counted(len(requests.found), 'finding')}, all explained" if requests.found and not found else ""
        case = Case(f"{engine} {requests.release}, requests", "conforms", events=requests.operations)
        _add(report, case, found, known)
    for release, reason in unchecked.items():
        report.cases.append(Case(f"{engine} {release}, requests", "not supported", reason=reason))
    for run in driven:
        case = Case(f"{engine} {run.release}, as it runs", "conforms", level="memory", events=run.events)
        if run.not_supported is not None:
            case.verdict, case.reason = "not supported", run.not_supported
            report.cases.append(case)
            continue
        has = [f"{name} ({shown.rule})" for name, shown in run.known.items() if shown is not None]
        known = f"known defects: {', '.join(has)}" if has else ""
        _add(report, case, [_told(run, group) for group in run.unexplained], known)
    return report


def _add(report: Report, case: Case, found: list[Finding], known: str) -> None:
    """A case with its findings; it is named by the traces of these, which stand in files of their own."""
    case.verdict = "fails" if found else "accepted" if known else "conforms"
    case.reason = "; ".join(str(one.place) for one in found) or known
    report.cases.append(case)
    report.findings += found


def _told(run: DrivenReport, group: Group) -> Finding:
    """What was found as the engine runs, by the trace that was written of it; without one its rule and its words."""
    if group.file:
        told = report_of_trace(Path(group.file), Accepted(), "causes").findings
        same = [one for one in told if one.rule is not None and one.rule.id == group.rule]
        if same:
            return msgspec.structs.replace(same[-1], count=group.times)
    rule = MEMORY_RULES[group.rule]
    return Finding(
        kind="rule",
        what=group.what,
        place=Place(group.file or f"{run.engine} {run.release}", 0, group.event, site=group.at),
        trace=Trace("memory", {}, "", group.event, []),
        note="",
        rule=Rule(rule.id, rule.statement, rule.reason, origin(rule)),
        count=group.times,
    )
