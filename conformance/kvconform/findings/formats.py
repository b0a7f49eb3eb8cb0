"""A report in the formats of other tools: JSON, JUnit's XML, SARIF."""

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
from rich.console import Console

from kvconform.findings.finding import Finding, Moment, Place
from kvconform.findings.outcome import Case, Report
from kvconform.findings.page import page_of_report
from kvconform.findings.text import show_finding
from kvspec.rules import CODES
from kvtrace.header import VERSION, encode

WIDTH = 100
"""The columns of a finding's text within another format."""


def write(
    report: Report,
    *,
    junit: Path | None = None,
    sarif: Path | None = None,
    html: Path | None = None,
    out: Path | None = None,
) -> None:
    """Write the requested files.

    Raises:
        OSError: a file cannot be written.
    """
    for path, form in ((junit, to_junit), (sarif, to_sarif), (html, page_of_report)):
        if path is not None:
            path.write_text(form(report), encoding="utf-8")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for number, finding in enumerate(report.findings, start=1):
            if finding.trace.moments and len(finding.trace.moments) == finding.trace.total:
                name = f"{number}-{finding.rule.id if finding.rule else finding.kind}.jsonl"
                (out / name).write_bytes(to_trace(finding))


def to_trace(finding: Finding) -> bytes:
    """The trace of a finding as a file; the finding must have all events of it."""
    trace = finding.trace
    sizes = "config" if trace.level == "request" else "pools"
    header = {"kvspec": VERSION, "level": trace.level, "producer": f"what shows {finding.place}", sizes: trace.sizes}
    answers = ({"obs": one.answer, "refused": one.refused} for one in trace.moments)
    lines = (
        one.event | {name: value for name, value in answer.items() if value is not None}
        for one, answer in zip(trace.moments, answers, strict=True)
    )
    return b"".join(encode(line) + b"\n" for line in (header, *lines))


def to_json(report: Report) -> str:
    """The report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report)).decode()


def to_junit(report: Report) -> str:
    """The report as JUnit's XML: a case is a test, and its findings are the failure."""
    suite = ElementTree.Element(
        "testsuite",
        name=f"kvspec {report.command} {report.subject}",
        tests=str(len(report.cases)),
        failures=str(sum(case.verdict == "fails" for case in report.cases)),
        errors=str(sum(case.verdict == "unusable" for case in report.cases)),
        skipped=str(sum(case.verdict == "not supported" for case in report.cases)),
    )
    for case in report.cases:
        suite.append(_test(report, case))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test(report: Report, case: Case) -> ElementTree.Element:
    test = ElementTree.Element("testcase", classname=f"kvspec.{report.subject}", name=case.name, file=case.file)
    match case.verdict:
        case "not supported":
            ElementTree.SubElement(test, "skipped", message=_xml(case.reason))
        case "unusable":
            ElementTree.SubElement(test, "error", message=_xml(case.reason))
        case "fails":
            # Each test has one failure: most readers of the format show no more.
            findings = [one for one in report.findings if any(_stands_in(place, case) for place in _places(one))]
            message = "; ".join(f"{one.title}: {one.what}" for one in findings) or case.reason
            failure = ElementTree.SubElement(test, "failure", message=_xml(message))
            failure.text = _xml("\n".join(map(as_text, findings)) or case.reason)
    return test


def _places(finding: Finding) -> list[Place]:
    return [finding.place, *finding.also]


def _stands_in(place: Place, case: Case) -> bool:
    return place.file == case.file or (not case.file and place.file in case.reason)


def _xml(text: str) -> str:
    """Text without the characters that XML forbids."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def as_text(finding: Finding) -> str:
    """A finding as it is printed, without colours."""
    text = io.StringIO()
    show_finding(Console(file=text, width=WIDTH, color_system=None), finding)
    return text.getvalue()


def to_sarif(report: Report) -> str:
    """The report as SARIF 2.1.0: results with their places, and the steps that lead to each as its code flow."""
    rules = {_rule_id(one): _sarif_rule(one) for one in report.findings}
    driver = {"name": "kvspec", "version": report.version, "rules": list(rules.values())}
    run = {
        "tool": {"driver": driver},
        "results": [_result(one, list(rules)) for one in report.findings],
        "properties": {"subject": report.subject, "command": report.command},
    }
    log = {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return msgspec.json.format(msgspec.json.encode(log)).decode() + "\n"


def _rule_id(finding: Finding) -> str:
    return finding.code or (finding.rule.id if finding.rule else finding.kind)


def _sarif_rule(finding: Finding) -> dict[str, Any]:
    if finding.rule is None:
        return {"id": finding.kind, "shortDescription": {"text": f"{finding.title}."}}
    rule = finding.rule
    return {
        "id": _rule_id(finding),
        "name": rule.name,
        "shortDescription": {"text": CODES.get(finding.code, rule.statement)},
        "fullDescription": {"text": f"{rule.statement} {rule.reason}"},
        "help": {"text": f"{rule.reason} Origin: {rule.origin}. kvspec rules {rule.id} says the same."},
    }


def _result(finding: Finding, rules: list[str]) -> dict[str, Any]:
    steps = list(_flow(finding))
    compared = f" Expected: {finding.expected}. Observed: {finding.observed}." if finding.compared else ""
    operation = finding.place.operation
    message = f"{finding.title}{f' at {operation}' if operation else ''}: {finding.what}.{compared}"
    return {
        "ruleId": _rule_id(finding),
        "ruleIndex": rules.index(_rule_id(finding)),
        "level": "error",
        "message": {"text": message},
        "locations": [_location(finding.method or _stored(finding, finding.place.line))],
        "relatedLocations": [one | {"id": number} for number, one in enumerate(_related(finding), start=1)],
        "partialFingerprints": {"kvspec/v2": _fingerprint(finding)},
        **({"codeFlows": [{"threadFlows": [{"locations": steps}]}]} if steps else {}),
        "occurrenceCount": finding.count,
    }


def _related(finding: Finding) -> Iterator[dict[str, Any]]:
    """The place in a trace if the location is an adapter's method; further places, and the ledger's entries."""
    if finding.method is not None:
        yield _location(finding.place)
    yield from map(_location, finding.also)
    for one in finding.ledger:
        stands = finding.trace.level == "memory" or any(moment.line for moment in finding.trace.moments)
        place = _stored(finding, one.line if stands else finding.place.line)
        yield _location(place) | {"message": {"text": f"{one.sign} {one.says}{f' ({one.site})' if one.site else ''}"}}


def _fingerprint(finding: Finding) -> str:
    """A fingerprint, which is the same for the same defect in another run."""
    return hashlib.sha256("\0".join(finding.kin).encode()).hexdigest()[:32]


def _location(place: Place) -> dict[str, Any]:
    region = {"region": {"startLine": place.line}} if place.line else {}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(place.file)}, **region}}


def _uri(file: str) -> str:
    """The URI of a file, relative to the working folder if it is below that, as forges need it."""
    path = Path(file).resolve()
    below = path.is_relative_to(Path.cwd().resolve())
    # A relative file URI is a part of the absolute one.
    return path.as_uri().removeprefix(f"{Path.cwd().resolve().as_uri()}/") if below else path.as_uri()


def _flow(finding: Finding) -> Iterator[dict[str, Any]]:
    for moment in finding.trace.moments:
        yield {
            "location": {**_location(_at(finding, moment)), "message": {"text": f"{moment.number}. {moment.says}"}},
            "executionOrder": moment.step,
            "importance": "essential" if moment.breaks else "important",
        }


def _at(finding: Finding, moment: Moment) -> Place:
    """The place of a step in the input, if it is known, or else that of the finding."""
    return _stored(finding, moment.line or finding.place.line)


def _stored(finding: Finding, line: int) -> Place:
    """The place of a line of the input; for a merged trace its place in the original file."""
    return finding.origins.get(line) or Place(finding.place.file, line)
