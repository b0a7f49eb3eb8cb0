"""The results of a run and of a check in the formats of other tools."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from sarif_pydantic import Sarif

from kvcli.main import run_command
from kvconform.console import FAULTY
from kvconform.findings.finding import Finding, Place, Rule, Trace
from kvconform.findings.formats import to_sarif
from kvconform.findings.outcome import Report, schema
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, write

KEEPS = ["--impl", "tests.conformance.helpers:KeepsPages"]
TWICE: list[dict[str, Any]] = [
    {"op": "take", "holder": "r", "pool": "kv", "pages": [1]},
    {"op": "release", "holder": "r", "pool": "kv", "pages": [1]},
    {"op": "release", "holder": "r", "pool": "kv", "pages": [1]},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two vectors that show the same, one that does not, and traces of both levels."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write(tmp_path / f"{name}.jsonl", VECTOR, *LIFE)
    write(tmp_path / "three.jsonl", VECTOR | {"rules": ["SESS-1"]}, {"op": "open_session", "session": "s"})
    write(tmp_path / "left.jsonl", HEADER, *RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}})
    memory = {"kvspec": 2, "level": "memory", "producer": "test", "pools": {"kv": {"num_pages": 4}}}
    write(tmp_path / "twice.jsonl", memory, *TWICE)
    return tmp_path


RUN = ["run", "one.jsonl", "two.jsonl", "three.jsonl", *KEEPS]
CHECK = ["check", "left.jsonl", "twice.jsonl"]


@pytest.mark.parametrize(("command", "cases"), [(RUN, 3), (CHECK, 2)], ids=["run", "check"])
def test_json_is_what_its_schema_says(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str], cases: int
) -> None:
    assert run_command([*command, "--json"]) == 1
    printed = capsys.readouterr().out
    report = json.loads(printed)
    Draft202012Validator(schema()).validate(report)
    read = msgspec.json.decode(printed, type=Report)
    assert len(read.cases) == cases and not read.conforms
    assert json.loads(msgspec.json.encode(read)) == report


@pytest.mark.parametrize(
    ("command", "written"),
    [(RUN, {"1-PAGE-1.jsonl": 6}), (CHECK, {"1-PAGE-1.jsonl": 6, "2-MEM-RELEASE.jsonl": 4})],
    ids=["run", "check"],
)
def test_what_shows_each_finding_is_written_as_a_trace_that_shows_it(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str], written: dict[str, int]
) -> None:
    assert run_command([*command, "-q", "--out", "shown"]) == 1
    paths = sorted((folder / "shown").iterdir())
    assert {path.name: len(path.read_bytes().splitlines()) for path in paths} == written
    for path in paths:
        capsys.readouterr()
        assert run_command(["check", str(path)]) == 1
        assert capsys.readouterr().out.count(f"{path.stem[2:]} is broken at {path}:") == 1


def test_the_schema_is_printed_and_refuses_what_is_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["schema", "report"]) == 0
    validator = Draft202012Validator(json.loads(capsys.readouterr().out))
    Draft202012Validator.check_schema(validator.schema)
    assert not validator.is_valid({"command": "run"})
    assert not validator.is_valid({"command": "run", "subject": "x", "cases": [{"name": "y", "verdict": "maybe"}]})


def test_the_same_finding_of_two_vectors_is_reported_once_with_both_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(RUN) == 1
    out = capsys.readouterr().out
    assert out.count("PAGE-1 is broken") == 1 and "met in 2   one.jsonl:7, two.jsonl:7" in out
    assert out.endswith("2 failed, 1 passed; 13 operations checked.\n")


def test_junit_has_a_test_for_each_case_with_what_was_found(folder: Path) -> None:
    assert run_command([*RUN, "-q", "--junit", "run.xml"]) == 1
    suite = ElementTree.parse(folder / "run.xml").getroot()[0]
    assert suite.attrib | {"tests": "3", "failures": "2", "errors": "0", "skipped": "0"} == suite.attrib
    failed = {test.get("name"): test.find("failure") for test in suite}
    assert [name for name, failure in failed.items() if failure is None] == ["three"]
    for name in ("one", "two"):
        failure = failed[name]
        assert failure is not None and failure.text is not None
        assert failure.get("message") == "PAGE-1 is broken: page(s) 2 were not freed and have no holder"
        assert "6   A !A!   A    r is finished; nothing is freed." in failure.text


def test_a_trace_that_cannot_be_read_is_an_error_in_junit(folder: Path) -> None:
    (folder / "bad.jsonl").write_text("{")
    assert run_command(["check", "bad.jsonl", "--junit", "check.xml"]) == 2
    (test,) = ElementTree.parse(folder / "check.xml").getroot()[0]
    error = test.find("error")
    assert error is not None and "truncated" in str(error.get("message"))


def unknown(model: BaseModel) -> list[str]:
    """The fields of a file that SARIF does not know."""
    found = list(model.model_extra or ())
    for name in type(model).model_fields:
        value = getattr(model, name)
        for one in value if isinstance(value, list) else [value]:
            found += unknown(one) if isinstance(one, BaseModel) else []
    return found


@pytest.mark.parametrize(("command", "results"), [(RUN, 1), (CHECK, 2)], ids=["run", "check"])
def test_sarif_is_sarif(folder: Path, command: list[str], results: int) -> None:
    assert run_command([*command, "--sarif", "out.sarif"]) == 1
    text = (folder / "out.sarif").read_text()
    log = Sarif.model_validate_json(text)
    # The standard has it, and these models do not.
    assert set(unknown(log)) <= {"occurrenceCount"}
    (run,) = json.loads(text)["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len(run["results"]) == results
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        if command is RUN:  # a code host shows the adapter's method; the trace is beside it
            method = result["locations"][0]["physicalLocation"]
            source = Path(method["artifactLocation"]["uri"].removeprefix("file://")).read_text().splitlines()
            assert "def finish(" in source[method["region"]["startLine"] - 1]
        place = result["relatedLocations" if command is RUN else "locations"][0]["physicalLocation"]
        assert (folder / place["artifactLocation"]["uri"]).is_file()
        lines = (folder / place["artifactLocation"]["uri"]).read_text().splitlines()
        assert 1 < place["region"]["startLine"] <= len(lines)
        steps = result["codeFlows"][0]["threadFlows"][0]["locations"]
        assert [step["executionOrder"] for step in steps] == list(range(1, len(steps) + 1))
        assert [step["importance"] for step in steps][-1] == "essential"
        assert len(result["partialFingerprints"]["kvspec/v2"]) == 32


def test_a_fingerprint_is_of_code_and_place_and_not_of_words() -> None:
    place, trace = Place("a.jsonl", 3, 2, "take", site="alloc"), Trace("memory", {}, "", 2, [])
    rule = Rule("MEM-TAKE", "only-free-pages-are-handed-out", "Only a free page is handed out.", "", "")
    finding = Finding("rule", "page 1 is handed out", place, trace, "", rule=rule, code="MEM-TAKE/held")
    failure = Finding("failure", "raised KeyError: 7", place, trace, "")

    def fingerprint(one: Finding, **changes: Any) -> str:
        report = Report("check", "t", findings=[msgspec.structs.replace(one, **changes)])
        (result,) = json.loads(to_sarif(report))["runs"][0]["results"]
        return str(result["partialFingerprints"]["kvspec/v2"])

    assert fingerprint(finding, what="in other words", count=3) == fingerprint(finding)
    assert fingerprint(failure, what="raised KeyError: 12") == fingerprint(failure)
    elsewhere = msgspec.structs.replace(place, site="free")
    others = {"code": "MEM-TAKE/cached", "pool": "kv", "place": elsewhere}
    found = {fingerprint(finding, **{name: value}) for name, value in others.items()}
    found |= {fingerprint(finding), fingerprint(failure), fingerprint(failure, what="raised ValueError: 7")}
    assert len(found) == 6


def test_a_place_outside_the_working_folder_is_a_whole_uri(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert run_command(["check", "../left.jsonl", "--sarif", "out.sarif"]) == 1
    (run,) = json.loads((inner / "out.sarif").read_text())["runs"]
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri.startswith("file:///") and uri.endswith("left.jsonl")


def test_quiet_prints_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*RUN, "-q"]) == 1
    assert (
        capsys.readouterr().out == "tests.conformance.helpers:KeepsPages: 2 failed, 1 passed; 13 operations checked.\n"
    )
    assert run_command([*CHECK, "-q"]) == 1
    assert capsys.readouterr().out == (
        "left.jsonl: does not conform, 6 operations checked.\ntwice.jsonl: does not conform, 3 events checked.\n"
    )


def test_details_that_no_report_shows_are_not_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvconform.levels.requests.checking.shortest_of_trace", lambda *_: 1 / 0)
    assert run_command(["check", "left.jsonl", "-q"]) == 1
    assert run_command(["check", "left.jsonl", "-q", "--junit", "out.xml"]) == FAULTY, "here a report is read"


def test_x_stops_at_the_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*RUN, "-x"]) == 1
    assert "1 failed, 0 passed" in capsys.readouterr().out
    more = [*RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}}, {"op": "open_session", "session": "s", "obs": {}}]
    write(folder / "left.jsonl", HEADER, *more)
    assert run_command([*CHECK, "-x"]) == 1
    out = capsys.readouterr().out
    assert "left.jsonl: does not conform, 6 operations checked." in out and "twice.jsonl" not in out
    assert run_command(["check", "twice.jsonl", "-q"]) == 1


def test_k_chooses_by_name_and_rule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*RUN, "-q", "-k", "THREE"]) == 0
    assert "1 passed" in capsys.readouterr().out
    assert run_command([*RUN, "-q", "-k", "page-1"]) == 1
    assert "2 failed, 1 passed" in capsys.readouterr().out
    assert run_command([*RUN, "-k", "nothing"]) == 2
    assert capsys.readouterr().err == "kvspec: there is no vector about 'nothing'\n"
