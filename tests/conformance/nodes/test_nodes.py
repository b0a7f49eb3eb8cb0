"""Implementations in other processes: `--impl exec:COMMAND`."""

import gc
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.errors import NodeFault
from kvconform.node import SECONDS, NodeFactory
from kvconform.subprocesses import python
from kvconform.vectors.files import vector_files
from kvspec.events import Config, Refusal
from tests.conformance.helpers import LIFE, VECTOR, write
from tests.conformance.traffic import synthetic

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow
pytest_plugins = ["pytester"]
REFERENCE = f"exec:{shlex.join([sys.executable, str(HERE / 'reference.py')])}"


def bad(habit: str, pids: Path) -> str:
    return f"exec:{shlex.join([sys.executable, str(HERE / 'bad.py'), habit, str(pids)])}"


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and is not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def none_left(pids: Path) -> bool:
    """Whether all processes that were noted have ended."""
    deadline = time.monotonic() + 5
    noted = [int(pid) for pid in pids.read_text().split()]
    while any(map(alive, noted)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(noted) and not any(map(alive, noted))


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    return write(tmp_path / "life.jsonl", VECTOR, *LIFE)


NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@NEEDS_PROC
@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        ("closes", "no answer to extend in time (KVSPEC_ANSWER_SECONDS); is it flushed?"),
        ("forks and hangs", "no answer to extend in time (KVSPEC_ANSWER_SECONDS); is it flushed?"),
        ("out of order", "extend is answered by an answer to match_prefix; the operation before it is hello"),
        ("long", "the answer to extend is longer than 8,388,608 bytes"),
        ("endless", "the answer to extend is longer than 8,388,608 bytes"),
        ("dies", "the node ended (exit status 3) instead of an answer to extend"),
        ("half", "the node ended (exit status 0) instead of an answer to extend"),
        ("crashes", "the node ended (SIGSEGV) instead of an answer to extend"),
        ("", "the answer to extend cannot be used: Input data was truncated"),
        ("{", "the answer to extend cannot be used: Input data was truncated"),
        ("[" * 100_000, "the answer to extend cannot be used: Expected `object`, got `array`"),
        ("\udcff", "the answer to extend cannot be used: JSON is malformed: invalid character (byte 0)"),
        ('{"op": "extend"}', "the answer to extend has neither obs nor refused"),
        ('{"op": "extend", "obs": {}, "refused": {}}', "the answer to extend has both obs and refused"),
        ('{"op": "extend", "obs": {"rows": 1}}', "the answer to extend cannot be used: Expected `object | null`"),
        ('{"op": "extend", "obs": {"row": {}}}', "the answer to extend cannot be used: Object contains unknown field"),
        ('{"op": "extend", "obs": {"rows": {"r": 9}}}', "the answer to extend cannot be used: row 9 is not in 0..1"),
        ('{"op": "extend", "refused": {"rule": "X"}}', "the answer to extend cannot be used: unknown rule 'X'"),
    ],
)
def test_a_bad_answer_ends_the_node_and_names_the_operation(
    habit: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:surrogateescape")
    factory = NodeFactory(bad(habit, tmp_path / "pids"))
    factory.seconds = 1
    manager, begun = factory(Config(4, 16, 2, 64)), time.monotonic()
    with pytest.raises(NodeFault) as caught:
        manager.extend([("r", 1)])
    assert time.monotonic() - begun < 10
    assert str(caught.value).startswith(reason)
    assert caught.value.stderr == ["about to misbehave"]
    assert none_left(tmp_path / "pids")


@NEEDS_PROC
@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        ("late", "no answer to extend in time (KVSPEC_ANSWER_SECONDS); is it flushed?"),
        ("deaf", "no answer to extend in time (KVSPEC_ANSWER_SECONDS); is it flushed?"),
        ("closes", "no answer to extend in time (KVSPEC_ANSWER_SECONDS); is it flushed?"),
        ("twice", "extend is answered by 2 lines"),
        ("out of order", "extend is answered by an answer to match_prefix; the operation before it is report"),
        ("long", "the answer to extend is longer than 8,388,608 bytes"),
        ("forks", "the node ended (exit status 0) instead of an answer to extend"),
        ("forks and hangs", "no answer to extend in time (KVSPEC_ANSWER_SECONDS); is it flushed?"),
        ("dies", "the node ended (exit status 3) instead of an answer to extend"),
    ],
)
def test_a_bad_answer_is_a_finding(
    habit: str, reason: str, vector: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECONDS, "1")
    pids, begun = vector.with_name("pids"), time.monotonic()
    assert run_command(["run", str(vector), "--impl", bad(habit, pids)]) == 1
    assert time.monotonic() - begun < 20
    gc.collect()  # a finding has its traceback, and that the node
    assert none_left(pids)
    out, err = capfd.readouterr()
    printed = " ".join(out.split())
    assert f":4, extend finding {reason} " in printed
    assert "its standard error: about to misbehave" in printed
    assert err == ""


@pytest.mark.parametrize("arguments", [["run"], ["fuzz", "--operations", "20", "--seed", "2"]])
def test_standard_error_is_shown_at_a_broken_rule_too(
    arguments: list[str], vector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses = bad('{"op": "extend", "refused": {}}', vector.with_name("pids"))
    out = ["--out", str(vector.with_name("failure.jsonl"))] if arguments[0] == "fuzz" else [str(vector)]
    assert run_command([*arguments, *out, "--impl", refuses]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "nothing stands in its way" in printed
    assert "its standard error: about to misbehave" in printed


def test_a_second_answer_that_comes_later_is_found_at_the_next_operation(tmp_path: Path) -> None:
    factory = NodeFactory(bad("twice, later", tmp_path / "pids"))
    manager = factory(Config(4, 16, 2, 64))
    manager.extend([("r", 1)])
    with pytest.raises(
        NodeFault, match=r"extend is answered twice|answer to extend; the operation before it is extend"
    ):
        for _ in range(2):
            time.sleep(0.5)
            manager.snapshot()
    assert none_left(tmp_path / "pids")


def test_standard_error_without_end_does_not_stop_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "2")
    manager = NodeFactory(bad("chatters", tmp_path / "pids"))(Config(4, 16, 2, 64))
    manager.extend([("r", 1)])
    with pytest.raises(NodeFault, match="no answer to snapshot in time") as caught:
        manager.snapshot()
    assert len(caught.value.stderr) == 5
    assert max(map(len, caught.value.stderr)) < 400


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "implementation 'exec:' names no command"),
        ("'a", 'implementation "exec:\'a": No closing quotation'),
        ("/no/such/node", "implementation 'exec:/no/such/node' cannot be started: No such file or directory"),
        ("/", "implementation 'exec:/' cannot be started: Permission denied"),
        ("false", "implementation 'exec:false' cannot be started: the node ended (exit status 1) instead of an"),
        ("cat", "implementation 'exec:cat' cannot be started: no answer to hello in time"),
        ("echo x", "implementation 'exec:echo x' cannot be started: its first line is no hello: JSON is malformed"),
        ("echo {}", "implementation 'exec:echo {}' cannot be started: its first line is no hello: Object missing"),
        (
            """echo '{"kvspec": 2, "name": "n", "unsupported": ["x"]}'""",
            """: no feature 'x'; there are rows, rowless, larger_pages,""",
        ),
        (
            """echo '{"kvspec": 2, "name": "n", "policies": {"x": []}}'""",
            """: no policy 'x'; there are rows_read,""",
        ),
        (
            """echo '{"kvspec": 2, "name": "n", "policies": {"room": ["x"]}}'""",
            """: room is ('x',), not some of: exact, estimated""",
        ),
        ("""echo '{"kvspec": 3, "name": "n"}'""", "it speaks version 3 of the format; versions 1 to 2 are known"),
    ],
)
def test_a_node_that_cannot_be_started_is_a_wrong_call(
    command: str, reason: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECONDS, "0.5")
    assert run_command(["run", "--impl", f"exec:{command}"]) == 2
    printed = capfd.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_time_limit_that_is_no_number_is_a_wrong_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECONDS, "soon")
    assert run_command(["run", "--impl", "exec:cat"]) == 2
    assert "KVSPEC_ANSWER_SECONDS is 'soon', no number" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["fuzz", "--operations", "300", "--seed", "3"],
        ["soak", "--operations", "300"],
    ],
)
def test_the_reference_as_a_node_conforms_under_every_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*arguments, "--impl", REFERENCE]) == 0
    assert arguments != ["run"] or f": {len(vector_files())} passed; " in capsys.readouterr().out


def test_a_node_serves_replayed_traffic(tmp_path: Path) -> None:
    trace = synthetic.write(tmp_path / "trace.jsonl", synthetic.conversations(20, 1))
    replay = [
        "replay",
        "mooncake",
        str(trace),
        "--sessions",
        "--overlap",
        "--num-pages",
        "200",
        "--snapshot-every",
        "1",
    ]
    assert run_command([*replay, "--impl", REFERENCE]) == 0


def test_traffic_that_a_node_does_not_support_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = synthetic.write(tmp_path / "trace.jsonl", synthetic.conversations(2, 1))
    node = """exec:echo '{"kvspec": 2, "name": "n", "unsupported": ["sessions", "speculative_overlap"]}'"""
    assert run_command(["replay", "mooncake", str(trace), "--sessions", "--impl", node]) == 2
    assert "cannot run this: no streaming sessions: memory" in capsys.readouterr().err
    assert run_command(["replay", "mooncake", str(trace), "--overlap", "--drafts", "1", "--impl", node]) == 2
    assert "cannot run this: no overlapped speculative steps: " in capsys.readouterr().err


def test_a_node_is_tested_by_the_plugin_and_by_a_machine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from hypothesis import settings\n"
        "from kvconform.fuzzing.machine import machine\n"
        "from kvconform.implementations import load\n"
        f"TestNode = machine(load({REFERENCE!r})).TestCase\n"
        "TestNode.settings = settings(TestNode.settings, max_examples=3, deadline=None)\n"
    )
    write(pytester.path / "life.jsonl", VECTOR, *LIFE)
    arguments = "--kvspec-impl", REFERENCE, "--kvspec-vectors", "life.jsonl"
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=2)
    dies = "--kvspec-impl", bad("dies", pytester.path / "pids"), "--kvspec-vectors", "life.jsonl", "-k", "life"
    failed = pytester.runpytest_subprocess(*dies)
    failed.assert_outcomes(failed=1, deselected=1)
    failed.stdout.fnmatch_lines(["*the node ended (exit status 3) instead of an answer to extend"])
    assert none_left(pytester.path / "pids")


@pytest.mark.thorough
def test_a_node_is_explored_in_every_state(tmp_path: Path) -> None:
    left_out = "abort", "cache_unfinished", "close_session", "evict", "give_back", "preempt", "retract"
    explore = ["explore", "--scope", "tiny", *(part for one in left_out for part in ("--without", one)), "--impl"]
    assert run_command([*explore, REFERENCE]) == 0
    assert run_command([*explore, bad("dies", tmp_path / "pids")]) == 1
    assert none_left(tmp_path / "pids")


def test_a_restarted_node_begins_anew() -> None:
    factory = NodeFactory(REFERENCE)
    factory.hello.reset = False
    first = factory(Config(4, 16, 2, 64))
    first.submit("r", [1], None)
    second = factory(Config(4, 16, 2, 64))
    second.submit("r", [1], None)
    with pytest.raises(Refusal):
        second.submit("r", [1], None)
    with pytest.raises(NodeFault, match="the node was ended before report"):
        first.report("busy")


@NEEDS_PROC
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_does_not_answer_ends_with_the_command(number: int, tmp_path: Path, vector: Path) -> None:
    pids = tmp_path / "pids"
    command = [*python("kvcli"), "run", str(vector), "--impl", bad("deaf", pids)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not pids.exists() or not pids.read_text():
            time.sleep(0.05)
        time.sleep(1)
        os.kill(process.pid, number)
        assert process.wait(10) != 0
    assert none_left(pids)
