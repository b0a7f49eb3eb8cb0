"""What `kvspec matrix` found, for other tools."""

import json
from pathlib import Path
from xml.etree import ElementTree

from sarif_pydantic import Sarif

from kvconform.attach.matrix.report import DrivenReport, Group
from kvconform.engines.matrix.findings import Findings, ReleaseReport
from kvconform.findings.formats import to_junit, to_sarif
from kvconform.gallery.finders import find_by_vectors, shorten
from kvconform.gallery.mutants import BUGS
from kvconform.judging.releases import report_of
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_file

BUG = BUGS["retract-tail-orphaned"]


def test_a_release_is_a_case_and_what_is_not_explained_a_finding(tmp_path: Path) -> None:
    (found,) = find_by_vectors(BUG, [read_vector(vector_file("tail_freed_after_retract_p1"))])
    shown = shorten(BUG, found)
    assert shown is not None
    findings = Findings("9.9")
    findings.add(shown.demonstration, shown.config, "vector tail_freed_after_retract_p1")
    written = findings.write(tmp_path)
    written[0].explanation = None
    requests = ReleaseReport("9.9", [], [], ["tail"], {}, 0, 17, {}, {}, written)
    group = Group("MEM-RACE", "kv", "load", 3, 7, "operation 2 writes page 1", 0)
    driven = [
        DrivenReport("sglang", "9.9", runs=1, events=100, unexplained=[group]),
        DrivenReport("sglang", "1.0", not_supported="too old"),
    ]
    report = report_of("sglang", [requests], driven)
    assert [case.verdict for case in report.cases] == ["fails", "fails", "not supported"]
    assert [one.rule and one.rule.id for one in report.findings] == ["TAIL-1", "MEM-RACE"]
    assert report.findings[0].trace.total == shown.events

    suite = ElementTree.fromstring(to_junit(report))[0]
    messages = [test[0].get("message") for test in suite]
    assert messages[0] is not None and messages[0].startswith("TAIL-1 is broken")
    assert messages[1] == "MEM-RACE is broken: operation 2 writes page 1" and messages[2] == "too old"

    text = to_sarif(report)
    Sarif.model_validate_json(text)
    results = json.loads(text)["runs"][0]["results"]
    assert [(result["ruleId"], result["occurrenceCount"]) for result in results] == [("TAIL-1", 1), ("MEM-RACE", 3)]
    assert written[0].file.startswith(str(tmp_path)) and Path(written[0].file).with_suffix(".txt").is_file()
