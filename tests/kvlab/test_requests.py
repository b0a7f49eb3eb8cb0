"""Defects that are injected in an engine, and the findings of the vectors on them through its adapter."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kvattach.patches import Patches
from kvcli.main import run_command
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_file
from kvlab import vector_trial as requests
from kvlab.injection import Defect, NotInjected, inject_fault
from kvlab.vector_trial import Injected, show, tried
from kvref.manager import Manager
from kvref.req_to_token_pool import ReqToTokenPool
from tests.kvlab.checkout import release_of

ROW_KEPT = Defect("row kept", "a row is not freed", ((ReqToTokenPool, "free", "self._free.append(row)", "pass"),))
NOTHING = Defect("nothing", "the same", ((ReqToTokenPool, "free", "self._free.append(row)", "self._free += [row]"),))


@pytest.fixture(autouse=True)
def few_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [read_vector(vector_file(name)) for name in ("a_name_is_used_again", "overshoot_plain")]
    monkeypatch.setattr(requests, "read_vectors", lambda: few)


def test_vectors_find_injected_defects_and_nothing_without() -> None:
    kept, nothing = tried(Manager, [ROW_KEPT, NOTHING])
    assert kept.fail == 2
    assert kept.first.startswith("a_name_is_used_again: ")
    assert nothing.fail == 0
    assert nothing.operations > kept.operations > 0


def test_a_vector_that_fails_no_sooner_than_without_finds_nothing() -> None:
    patches = Patches()
    inject_fault(ROW_KEPT, patches)
    try:
        assert tried(Manager, [ROW_KEPT._replace(places=())])[0].fail == 0
    finally:
        patches.undo()


def test_a_defect_for_other_lines_is_not_injected_in_part() -> None:
    free = ReqToTokenPool.free
    with pytest.raises(NotInjected):
        tried(Manager, [ROW_KEPT._replace(places=(*ROW_KEPT.places, (ReqToTokenPool, "begin_read", "no such", "")))])
    assert ReqToTokenPool.free is free


def test_it_says_whether_all_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(Console(), "it", [Injected("a", 1, "v: PAGE-1", 7)]) == 0
    assert show(Console(), "it", [Injected("a", 1, "v: PAGE-1", 7), Injected("b", 0, "", 9)]) == 1
    assert "vectors find 1 of 2 injected faults" in capsys.readouterr().out


def test_an_engine_without_an_adapter_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["engines", "inject", "vllm", str(tmp_path), "--level", "request"]) == 2
    assert "vllm has no adapter: give sglang or sglang-jax" in capsys.readouterr().err
    assert run_command(["engines", "inject", "vllm", "0.0.0"]) == 2
    assert "there is no release 0.0.0 of vllm" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.long
def test_vectors_find_injected_defects_in_sglang() -> None:
    release = str(release_of("0.5.23"))
    command = [sys.executable, "-m", "kvcli", "engines", "inject", "sglang", release, "--level", "request"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "vectors find 11 of 11 injected faults" in done.stdout, done.stdout + done.stderr
