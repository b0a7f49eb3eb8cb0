"""The findings of `kvspec matrix`, for other tools."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from sarif_pydantic import Sarif

from kvcli.main import run_command
from kvconform.findings.formats import to_json, to_junit, to_sarif
from kvconform.findings.outcome import schema
from kvconform.gallery.finders import find_by_vectors, shorten
from kvconform.gallery.mutants import BUGS
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_file
from kvlab.matrix.findings import Findings
from kvlab.matrix.outcome import report_of
from kvlab.matrix.report import AnyReport, Group, MemoryReport, RequestReport, Shown
from kvspec.rules import CODES, RULES
from tests.conformance.helpers import write

BUG = BUGS["retract-tail-orphaned"]


def test_a_release_is_a_case_and_what_is_not_explained_a_finding(tmp_path: Path) -> None:
    (found,) = find_by_vectors(BUG, [read_vector(vector_file("tail_freed_after_retract_p1"))])
    shown = shorten(BUG, found)
    assert shown is not None
    findings = Findings("9.9")
    findings.add(shown.counterexample, shown.config, "vector tail_freed_after_retract_p1")
    written = findings.write(tmp_path)
    written[0].explanation = None
    requests = RequestReport("sglang", "9.9", fail=["tail"], operations=17, found=written)
    group = Group("MEM-RACE/write", "kv", "load", 3, 7, "operation 2 writes page 1", 0)
    reports: list[AnyReport] = [
        requests,
        RequestReport("sglang", "0.1", "not there"),
        MemoryReport("sglang", "9.9", runs=1, events=100, unexplained=[group]),
        MemoryReport("sglang", "1.0", not_supported="too old"),
    ]
    report = report_of("sglang", reports)
    assert [case.verdict for case in report.cases] == ["fails", "not supported", "fails", "not supported"]
    assert [one.rule and one.rule.id for one in report.findings] == ["TAIL-1", "MEM-RACE"]
    assert report.findings[0].trace.total == shown.events

    suite = ElementTree.fromstring(to_junit(report))[0]
    messages = [test[0].get("message") for test in suite]
    assert messages[0] is not None and messages[0].startswith("TAIL-1 is broken")
    assert messages[1:] == ["not there", "MEM-RACE is broken: operation 2 writes page 1", "too old"]
    Draft202012Validator(schema()).validate(json.loads(to_json(report)))

    text = to_sarif(report)
    Sarif.model_validate_json(text)
    run = json.loads(text)["runs"][0]
    results = [(result["ruleId"], result["occurrenceCount"]) for result in run["results"]]
    assert results == [("TAIL-1", 1), ("MEM-RACE/write", 3)]
    says = [rule["shortDescription"]["text"] for rule in run["tool"]["driver"]["rules"]]
    assert says == [RULES["TAIL-1"].statement, CODES["MEM-RACE/write"]]
    assert written[0].file.startswith(str(tmp_path)) and Path(written[0].file).with_suffix(".txt").is_file()


def test_an_unexplained_finding_is_shown_by_its_trace(tmp_path: Path) -> None:
    header = {"kvspec": 2, "level": "memory", "producer": "engine 9.9", "pools": {"kv": {"num_pages": 4}}}
    release = {"op": "release", "holder": "r", "pool": "kv", "pages": [1]}
    trace = write(tmp_path / "MEM-RELEASE-1.jsonl", header, release | {"op": "take"}, release, release)
    group = Group("MEM-RELEASE/not-held", "kv", "free", 5, 900, "page 812 is released twice", 0, str(trace))
    known: dict[str, Shown | None] = {"leak": Shown("MEM-LEAK/ended", 4, "it leaks"), "gone": None}
    runs: list[AnyReport] = [MemoryReport("e", "9.9", unexplained=[group]), MemoryReport("e", "9.8", known=known)]
    report = report_of("e", runs)
    assert [(case.verdict, case.reason) for case in report.cases] == [
        ("fails", f"{trace}:4"),
        ("known", "known defects: leak (MEM-LEAK/ended)"),
    ]
    (finding,) = report.findings
    assert [moment.says for moment in finding.trace.moments][-1] == "r gives back a reference to page 1 of kv."
    assert finding.what == finding.trace.moments[-1].breaks.removeprefix("MEM-RELEASE: ") and finding.count == 5


def test_the_command_prints_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["matrix", "nano-vllm", str(tmp_path / "none"), "--out", str(tmp_path / "out"), "--json"]
    assert run_command([*asked, "--html", str(tmp_path / "page.html")]) == 2
    report = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema()).validate(report)
    assert [(case["verdict"], case["reason"]) for case in report["cases"]] == [
        ("not supported", f"there is no folder {tmp_path / 'none'}")
    ]
    assert "nano-vllm" in (tmp_path / "page.html").read_text()
