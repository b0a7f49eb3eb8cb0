"""The canary on engines: the switch, and the hooks on what the engines' own model runners prepare for a step."""

import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvattach.canary.switch import CanarySwitchError, Setting, setting
from kvattach.hooks import RuleBroken
from kvconform.findings.text import show_finding
from kvspec.memory import Pool
from kvspec.memory.events import Begin, Release, Take, Use
from kvtrace.writer import TraceWriter
from tests.kvlab.checkout import release_of

ROOT = Path(__file__).parents[2]

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    importlib.import_module("kvcuda.backend")  # before another file's tests import triton, which decides it for all

needs_torch = pytest.mark.skipif(not HAS_TRITON, reason="needs torch and triton")


def test_nothing_is_on_unless_it_is_switched_on() -> None:
    assert setting({}) is None
    assert setting({"KVSPEC_CANARY": ""}) is None


def test_the_variable_says_how_much_is_looked_at() -> None:
    assert setting({"KVSPEC_CANARY": "log"}) == Setting(False)
    assert setting({"KVSPEC_CANARY": "raise,share=8,bytes=all"}) == Setting(True, 8, "all")
    assert setting({"KVSPEC_CANARY": "log,bytes,perturb=stale"}) == Setting(False, 1, "first", "stale")


@pytest.mark.parametrize("said", ["on", "log,share=0", "log,share=x", "raise,bytes=some", "log,perturb=all", "log,"])
def test_nonsense_is_refused_in_one_line(said: str) -> None:
    with pytest.raises(CanarySwitchError, match="KVSPEC_CANARY=") as refused:
        setting({"KVSPEC_CANARY": said})
    assert "\n" not in str(refused.value)


def driven(engine: str, version: str, *arguments: str) -> dict[str, Any]:
    """The output of a drive of an engine's model runner, in a process of its own."""
    folder = release_of(version, engine)
    command = [sys.executable, "-m", f"tests.kvattach.canary_on_{engine}", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert not done.returncode, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["problem"] is None
    return said


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize(("seed", "runner"), [("2", "2"), ("1", "1")], ids=["V2 with a window", "V1"])
def test_steps_that_vllm_prepares_are_silent(seed: str, runner: str) -> None:
    said = driven("vllm", "0.33.0", seed, "", runner)
    assert said["found"] == []
    assert said["launches"] > 25


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize(("fault", "runner"), [("mapping", "2"), ("swap", "1")], ids=["V2", "V1"])
def test_what_is_put_into_a_step_of_vllm_is_found(fault: str, runner: str) -> None:
    said = driven("vllm", "0.33.0", "1", fault, runner)
    assert said["injected"]
    assert said["found"]
    launches = {int(one.split()[1]) for one in said["found"]}
    assert min(launches) <= said["injected"] + 1


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("version", ["0.5.12", "0.5.16"])
def test_passes_that_sglang_prepares_are_silent_and_what_is_put_in_is_found(version: str) -> None:
    said = driven("sglang", version)
    assert said["found"] == []
    assert said["launches"] > 40
    for fault in ("swap", "stale"):
        said = driven("sglang", version, fault)
        assert f"launch {said['injected']} reads" in " ".join(said["found"])


@needs_torch
def test_violation_is_reported_with_the_trace_of_its_page(tmp_path: Path) -> None:
    """The page's former holder, the operation that handed it on, and the unordered operations."""
    from kvattach.canary.finding import finding_of, recorded
    from kvcuda.canary import Held, Violation, ViolationKind

    writer = TraceWriter(tmp_path / "trace-7.jsonl")
    writer.header("an engine", {"kv": Pool(page_size=4, num_pages=8)})
    for event in (
        Take("p", "kv", [2]),
        Take("q", "kv", [3]),
        Begin(1, "gpu", [], [Use(pool="kv", pages=[2], stop=4)]),
        Release("p", "kv", [2]),
        Take("q", "kv", [2]),
        Begin(2, "copies", [], [Use(pool="kv", pages=[2], stop=4)]),
    ):
        writer.emit(event)
    writer.close()
    trace = recorded({"KVSPEC": f"record:{tmp_path / 'trace.jsonl'}"})
    assert trace is not None and recorded({"KVSPEC": "check"}) is None
    held = Held(1, 17, "p", 1)
    one = Violation(ViolationKind.OTHER, 2, "kv", "q", 5, 9, 1, 2, held, 1)
    finding = finding_of(one, "an engine", 4, trace)
    assert finding.what == "launch 2 reads position 5 of request q from slot 9 of kv, but it holds position 1 of " + (
        "request p, written at launch 1"
    )
    assert finding.rule is not None and finding.rule.id == "MEM-CONTENT"
    assert [moment.event["op"] for moment in finding.trace.moments] == ["take", "begin", "release", "take", "begin"]
    assert [said.split(" at ")[0] for said in finding.known] == ["MEM-RACE"]
    console = Console(width=120, file=io.StringIO(), color_system=None)
    show_finding(console, finding)
    assert "MEM-RACE" in console.file.getvalue()  # type: ignore[attr-defined]


@needs_torch
def test_what_is_found_is_logged_once_or_stops_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    from kvattach.canary.watch import Watch
    from kvcuda.canary import Pool as Slots
    from tests.cuda_impl.canary_engine import Engine

    for stops in (False, True):
        engine = Engine(Slots("kv", 128))
        engine.give("a", range(10, 40))
        watch = Watch("an engine", Setting(stops), [engine.pool], requests=8, passes=1)
        engine.canary = watch.canary
        engine.run(("a", 0, range(1, 10)))
        engine.give("a", [99], 3)
        caplog.clear()
        for length in (9, 10):
            engine.launch(("a", length, [5]))
            if stops:
                with pytest.raises(RuleBroken, match="canary: an engine: launch 2 reads position 3"):
                    watch.look()
                break
            watch.look()
        assert [record.getMessage().count("position 3 of request a") for record in caplog.records] == [1]
        assert len(watch.found) == 1


@pytest.mark.slow
def test_without_a_gpu_the_canary_stays_off_and_says_so() -> None:
    """In a process of its own: what waits for a model runner waits for good."""
    code = """
import importlib.machinery, logging, sys, types
logging.basicConfig(format="%(message)s")
from kvattach.live import CANARIES, wait_for_model_runners
wait_for_model_runners()
wait_for_model_runners()
print(sum(getattr(finder, "names", None) is CANARIES for finder in sys.meta_path))
sys.path.insert(0, sys.argv[1])
import sglang.srt.model_executor.model_runner as runner
print(runner.ModelRunner.forward())
"""
    for said, waits in (("log", 1), ("", 0), ("yes", 0)):
        with tempfile.TemporaryDirectory() as folder:
            module = Path(folder) / "sglang" / "srt" / "model_executor" / "model_runner.py"
            module.parent.mkdir(parents=True)
            module.write_text("class ModelRunner:\n    forward = staticmethod(lambda: 7)\nclass ForwardBatch: pass\n")
            done = subprocess.run(
                [sys.executable, "-c", code, folder],
                env={**os.environ, "KVSPEC_CANARY": said, "CUDA_VISIBLE_DEVICES": ""},
                capture_output=True,
                text=True,
                check=True,
            )
        assert done.stdout.split() == [str(waits), "7"]
        if said:
            assert ("there is no GPU" if waits else "it begins with log or raise") in done.stderr
        else:
            assert done.stderr == ""


def test_engines_find_the_canary_by_their_entry_points() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        module, _, function = project["entry-points"][group]["kvspec"].partition(":")
        assert callable(getattr(importlib.import_module(module), function))
