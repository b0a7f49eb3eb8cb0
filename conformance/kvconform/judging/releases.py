"""`kvspec matrix` as a report: a case for each release and level, and the findings that nothing explains."""

from collections.abc import Iterable, Iterator

from kvconform.attach.matrix.report import DrivenReport
from kvconform.engines.matrix.findings import ReleaseReport
from kvconform.findings.finding import Finding, Place, Rule, Trace
from kvconform.findings.outcome import Case, Report
from kvconform.findings.wording import origin
from kvspec.memory_rules import MEMORY_RULES


def report_of(engine: str, checked: Iterable[ReleaseReport], driven: Iterable[DrivenReport]) -> Report:
    """What came out of releases, at both levels."""
    report = Report("matrix", engine)
    for requests in checked:
        found = [one.finding for one in requests.found if one.explanation is None and one.finding is not None]
        known = f"{len(requests.found)} findings, all explained" if requests.found and not found else ""
        name = f"{engine} {requests.release}, requests"
        report.cases.append(
            Case(
                name,
                "fails" if found else "accepted" if known else "conforms",
                events=requests.operations,
                reason=known,
            )
        )
        report.findings += found
        _file(report.cases[-1], found)
    for run in driven:
        name, memory = f"{engine} {run.release}, as it runs", list(_memory_findings(run))
        if run.not_supported is not None:
            report.cases.append(Case(name, "not supported", level="memory", reason=run.not_supported))
            continue
        report.cases.append(Case(name, "fails" if memory else "conforms", level="memory", events=run.events))
        report.findings += memory
        _file(report.cases[-1], memory)
    return report


def _file(case: Case, findings: list[Finding]) -> None:
    """The case is named by the traces of its findings; without one by itself."""
    case.reason = case.reason or "; ".join(str(one.place) for one in findings)


def _memory_findings(run: DrivenReport) -> Iterator[Finding]:
    """What was found as the engine runs, without its trace: that is in a file of its own, for `kvspec show`."""
    for group in run.unexplained:
        rule = MEMORY_RULES[group.rule]
        place = Place(group.file or f"{run.engine} {run.release}", 0, group.event, site=group.at)
        yield Finding(
            kind="rule",
            what=group.what,
            place=place,
            trace=Trace("memory", {}, "", group.event, []),
            note="",
            rule=Rule(rule.id, rule.statement, rule.reason, origin(rule)),
            count=group.times,
        )
