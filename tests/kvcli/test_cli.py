"""The output of the commands, and how they end."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer

import kvspec as kvspec_package
from kvcli import main
from kvcli.main import run_command
from kvconform.vectors.files import vector_files
from kvspec.rules import ALL_RULES, RULES
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, write

BROKEN = "tests.conformance.helpers"


@pytest.fixture
def vector(tmp_path: Path) -> str:
    noise = {"op": "open_session", "session": "s"}
    return str(write(tmp_path / "life.jsonl", VECTOR, noise, *LIFE))


def test_a_vector_that_conforms_ends_with_0(vector: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", vector, "-v"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"PAGE-1 +[1-9]\d* +life\b", out)
    assert re.search(r"life +conforms +7\b", out)
    assert out.endswith("reference: 1 passed; 7 operations checked.\n")


@pytest.mark.slow
def test_all_embedded_vectors_conform(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run"]) == 0
    count = len(vector_files())
    assert f"reference: {count} passed;" in capsys.readouterr().out


def test_an_implementation_that_reports_nothing_is_not_said_to_conform(capsys: pytest.CaptureFixture[str]) -> None:
    silent = ["--impl", "tests.conformance.vectors.silent:Silent"]
    assert run_command(["run", "logit_reserve", *silent]) == 1
    reported = "0 passed, 1 passed in part (STORE-4 not checked)"
    assert reported in capsys.readouterr().out
    assert run_command(["run", "context_limit", *silent]) == 0
    assert "silent:Silent: 1 passed;" in capsys.readouterr().out


def test_a_broken_rule_is_explained_whole(vector: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", vector, "--impl", f"{BROKEN}:KeepsPages"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    rule = RULES["PAGE-1"]
    for part in (
        f"PAGE-1 is broken at {vector}:8, finish",
        f"rule {rule.statement}",
        f"why {rule.reason}",
        "rule from SGLang pull request 22862, sglang-jax pull request 994",
        "In a memory of 16 pages of 4 tokens, 2 rows:",
        'operation {"op": "finish", "req": "r"}',
        'answer {"freed": []}',
        "expected [2] observed []",
        "state request r: protected 0, committed 6, allocated 6, row 0, pages 1..2",
        "The shortest operations that still show it (5 of 7).",
        "2 . . . Request r comes, with 6 tokens: 1, 2, 3, 4, 5, 6.",
        "6 A !A! A r is finished; nothing is freed.",
        "A request r",
        "history Page 2 belongs to request r, since line 4.",
        "1 failed, 0 passed",
    ):
        assert part in out


def test_a_failing_implementation_is_blamed_and_its_line_is_shown(
    vector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", vector, "--impl", f"{BROKEN}:Raises"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"The implementation failed against OP-1 at {vector}:8, finish" in out
    assert "finding raised KeyError: 'lost r'" in out
    assert re.search(r"at \S+helpers\.py:\d+ in finish: raise KeyError", out)
    assert "Traceback" not in out
    assert run_command(["run", vector, "--impl", f"{BROKEN}:CannotBeMade"]) == 1
    assert f"The implementation failed at {vector}:1, while it was made" in capsys.readouterr().out


def test_an_expectation_that_fails_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = write(tmp_path / "v.jsonl", VECTOR, *LIFE, {"op": "expect", "answer": {"freed": 2}})
    assert run_command(["run", str(vector)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"Not what the vector expects at {vector}:7, finish" in out
    assert "finding the number of pages freed" in out


def test_what_is_recorded_passes_the_check(vector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces" / "of today"
    assert run_command(["run", vector, "--record", str(traces)]) == 0
    trace = traces / "life.jsonl"
    assert '"producer":"reference"' in trace.read_text()
    capsys.readouterr()
    assert run_command(["check", str(trace), "--verbose"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"PAGE-1 +[1-9]", out)
    assert f"{trace}: conforms, 14 operations checked." in out
    assert "On the way: prefix published (1)." in out

    trace.write_text(trace.read_text().replace('"freed":[2]', '"freed":[1]'))
    assert run_command(["check", str(trace)]) == 1
    assert f"{trace}: does not conform, 14 operations checked." in capsys.readouterr().out


def test_a_wrong_answer_is_recorded_too(vector: str, tmp_path: Path) -> None:
    assert run_command(["run", vector, "--record", str(tmp_path / "t"), "--impl", f"{BROKEN}:KeepsPages"]) == 1
    assert run_command(["check", str(tmp_path / "t" / "life.jsonl")]) == 1


def test_rules_with_too_little_reported_to_check_them_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "t.jsonl", HEADER, *RECORDED[:5], RECORDED[5] | {"obs": {}})
    assert run_command(["check", str(trace)]) == 0
    assert "Not reported, so not checked: freed (PAGE-1, 1 time)." in capsys.readouterr().out


def test_rules_are_printed_with_reason_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["rules"]) == 0
    everything = capsys.readouterr().out
    for rule in RULES.values():
        assert f"{rule.id} {rule.name} {rule.statement} Why: {rule.reason} Origin: " in " ".join(everything.split())
    assert run_command(["rules", "TAIL-1"]) == 0
    one = capsys.readouterr().out
    assert one in everything
    assert one.startswith("TAIL-1 resume-frees-the-tail\n") and one.endswith("Origin: SGLang pull request 22862\n")


def kvspec(*arguments: str) -> subprocess.Popen[bytes]:
    code = "from kvcli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_command_ends_with_its_status(tmp_path: Path) -> None:
    with kvspec("check", str(tmp_path / "none.jsonl")) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert err.count(b"\n") == 1


def test_a_reader_who_has_seen_enough_ends_it_quietly() -> None:
    with kvspec("schema") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_interrupting_ends_with_130(monkeypatch: pytest.MonkeyPatch, vector: str) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvconform.runs.vectors.load", interrupted)
    assert run_command(["run", vector]) == 130


def test_a_fault_of_kvspec_is_neither_a_broken_rule_nor_bad_input(
    monkeypatch: pytest.MonkeyPatch, vector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(name: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvconform.runs.vectors.load", faulty)
    assert run_command(["run", vector]) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command, example in (
        ("run", "kvspec run --impl my_engine:Adapter"),
        ("check", "kvspec check engine.jsonl"),
        ("rules", "kvspec rules TAIL-1"),
        ("schema", "kvspec schema > kvspec.schema.json"),
    ):
        assert run_command([command, "--help"]) == 0
        assert example in capsys.readouterr().out


HEAVY = ("hypothesis", "z3", "crosshair", "torch", "icontract", "kvref", "kvcuda", "kvspec.model", "msgspec", "numpy")
"""Modules that take long to import, and that only a command that is carried out needs."""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rules"], ["soak", "--help"], []], ids=" ".join)
def test_commands_that_only_print_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from kvcli.main import run_command\n"
        f"run_command({arguments!r})\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.split() == []


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"kvspec {kvspec_package.__version__}\n"


def test_a_shell_completes_commands() -> None:
    environment = {**os.environ, "_KVSPEC_COMPLETE": "complete_bash", "COMP_WORDS": "kvspec ma", "COMP_CWORD": "1"}
    program = "from kvcli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["matrix"]


def test_kvspecs_own_vectors_go_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "tail_freed_after_retract_p1", "wrong_double_free", "--impl", "bug:retract-tail-orphaned"]
    assert run_command(command) == 1
    out = capsys.readouterr().out
    assert "TAIL-1 is broken at tail_freed_after_retract_p1:22, match_prefix" in out
    assert "the memory checker: 1 passed;" in out
    assert run_command(["run", "no_such_vector"]) == 2
    assert "no_such_vector: no such file" in capsys.readouterr().err


def test_no_word_is_broken_in_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["rules"]) == 0
    reported = capsys.readouterr().out
    assert max(map(len, reported.splitlines())) <= 80
    for rule in ALL_RULES.values():
        assert f"{rule.statement} Why: {rule.reason}" in " ".join(reported.split())


def test_no_metavar_is_the_name_of_its_option() -> None:
    """Typer 0.27 takes such a metavar for the option's name: `--PYTHON`."""
    commands = [typer.main.get_command(main.app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        assert not [option for option in command.params if f"--{str(option.metavar).lower()}" in option.opts]


HELPFUL = ["run", "check", "show", "fuzz", "bugs", "matrix", "explore", "rules", "replay mooncake"]


@pytest.mark.parametrize("name", HELPFUL)
def test_help_flows_and_has_its_examples_under_a_heading(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command([*name.split(), "--help"]) == 0
    prose = capsys.readouterr().out.partition("╭")[0]
    paragraphs = [paragraph.split("\n") for paragraph in re.split(r"\n *\n", prose.strip())]
    *flows, examples = paragraphs
    assert examples[0].strip() == "Examples:" and examples[1].strip().startswith("kvspec ")
    assert sum(line.strip().startswith("kvspec ") for flow in flows for line in flow) == 0
    for line, following in (pair for flow in flows for pair in pairwise(flow)):
        # A line ends only where the next word does not fit.
        assert len(f"{line.rstrip()} {following.split()[0]}") >= 79


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["rules", "TIAL-1"], "did you mean 'TAIL-1'?"),
        (["run", "tail_frede_after_retract_p1"], "did you mean 'tail_freed_after_retract_p1'?"),
        (["run", "--impl", "bug:stale-row-indx"], "did you mean"),
        (["chekc"], "Did you mean 'check'?"),
    ],
)
def test_a_name_that_is_like_another_is_asked_for(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert meant in line


def test_a_rule_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["rules", "evict-unlocked-states"]) == 0
    assert capsys.readouterr().out.startswith("MAMBA-5 evict-unlocked-states\n")
    some = [str(path) for path in vector_files() if path.stem.startswith("state")]
    assert run_command(["run", "-q", "-k", "evict-unlocked-states", *some]) == 0
    by_name = capsys.readouterr().out
    assert run_command(["run", "-q", "-k", "mamba-5", *some]) == 0
    assert by_name == capsys.readouterr().out


@pytest.mark.parametrize(
    ("event", "meant"),
    [
        ('{"op":"take","holdr":"a","pool":"kv","pages":[1]}', "did you mean 'holder'?"),
        ('{"op":"tkae","holder":"a","pool":"kv","pages":[1]}', "unknown operation 'tkae'; did you mean 'take'?"),
    ],
)
def test_a_field_that_is_like_another_is_asked_for(
    event: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    header = '{"kvspec":2,"level":"memory","producer":"t","pools":{"kv":{"num_pages":8}}}'
    trace.write_text(f"{header}\n{event}\n")
    assert run_command(["check", str(trace)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvspec: {trace}:2: ") and meant in line
