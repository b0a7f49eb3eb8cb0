"""Engines from a checkout or a wheel, if there are any: nothing is found but what is known, injected defects are.

Checkouts are in the folder that KVSPEC_CHECKOUTS names; `make engine-tests` installs the wheels.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.stubs import EngineError
from tests.kvlab.checkout import checkout_of, release_of

pytestmark = pytest.mark.slow


def folder(engine: str) -> Path:
    """Where the checkout of an engine is; without it the test is skipped, and says why."""
    try:
        return checkout_of(engine)
    except EngineError as error:
        pytest.skip(str(error))


def trial(engine: str, at: Path, *options: str, command: str = "drive") -> subprocess.CompletedProcess[str]:
    """A process can hold one engine, and should hold no other one of these tests."""
    called = [sys.executable, "-m", "kvcli", "engines", command, engine, str(at), *options]
    return subprocess.run(called, capture_output=True, text=True, check=False, timeout=600)


def test_nano_vllm_conforms() -> None:
    done = trial("nano-vllm", folder("nano-vllm"), "--runs", "20")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mini_sglang_conforms_without_its_known_defects() -> None:
    done = trial("mini-sglang", folder("mini-sglang"), "--runs", "15", "--without-known")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mini_sglangs_known_defects_are_found() -> None:
    done = trial("mini-sglang", folder("mini-sglang"), "--runs", "15")
    assert done.returncode == 1, done.stdout + done.stderr
    for rule in ("MEM-USE", "MEM-RACE", "DRIVE-TOKEN"):  # abort-in-flight needs more runs
        assert rule in done.stdout


def test_sglang_jax_conforms_without_its_known_defects() -> None:
    done = trial("sglang-jax", folder("sglang-jax"), "--runs", "8", "--without-known")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_pause_breaks_in_sglang_jax_is_found(tmp_path: Path) -> None:
    options = ["--level", "memory", "--seconds", "5", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "kvcli", "matrix", "sglang-jax", str(folder("sglang-jax")), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("pause-forgets", "pause-stays-full"):
        assert re.search(rf"{name} \(MEM-[A-Z]+/[a-z-]+ at event [\d,]+\)", done.stdout), done.stdout


def test_injected_defects_are_found_in_sglang_jax_since_pull_request_994() -> None:
    checkout = folder("sglang-jax")
    if "def release_kv_cache" not in (checkout / "python/sgl_jax/srt/mem_cache/common.py").read_text():
        pytest.skip("the checkout is older than pull request 994, whose lines the defects are for")
    done = trial("sglang-jax", checkout, "--runs", "30", "--without-known", command="inject")
    assert "16 of 16 injected faults found" in done.stdout, done.stdout + done.stderr


def test_sglang_with_its_fences_conforms() -> None:
    done = trial("sglang", release_of("0.5.23"), "--runs", "6", "--without-known")
    assert done.returncode == 0, done.stdout + done.stderr


BACKUP, LOAD, ROWS = "write-through-unfenced", "load-back-unfenced", "row-rewritten"


@pytest.mark.parametrize(
    ("version", "races", "others"),
    [
        ("0.5.22", {BACKUP}, []),
        ("0.5.21", {BACKUP}, []),
        # Its adapters' ids are keys of clients, too: issue adapter-like-key.
        ("0.5.10", {BACKUP, LOAD, ROWS}, ["MEM-CONTENT/other"]),
    ],
)
def test_sglang_without_a_fence_races(version: str, races: set[str], others: list[str]) -> None:
    done = trial("sglang", release_of(version), "--runs", "15")
    assert done.returncode == 1, done.stdout + done.stderr
    said = re.split(r"^  (?=MEM-)", done.stdout, flags=re.MULTILINE)[1:]
    named = {match[1] for one in said if (match := re.search(r"as in known\s+issue\s+([a-z-]+)", one))}
    assert named == races
    assert [one.split()[0] for one in said if not one.startswith("MEM-RACE")] == others


@pytest.mark.parametrize(
    ("engine", "count", "options"), [("nano-vllm", 14, ()), ("mini-sglang", 16, ("--without-known",))]
)
def test_injected_defects_are_found(engine: str, count: int, options: tuple[str, ...]) -> None:
    done = trial(engine, folder(engine), "--runs", "60", *options, command="inject")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} of {count} injected faults found" in done.stdout


PARTS = 6
A_PART = """
import sys
from dataclasses import replace
from kvcli.main import main
from kvlab import trial
from kvlab.sglang import faults

faults.in_pairs = faults.in_storage = lambda release: []
whole, part = trial.trial_of, int(sys.argv.pop(1))
trial.trial_of = lambda *of: replace(every := whole(*of), defects=every.defects[part::{PARTS}])
main()
""".replace("{PARTS}", str(PARTS))
"""The command, with a sixth of the defects. Those of two servers and of the storage need drives of their own."""


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_injected_defects_are_found_in_sglang(part: int) -> None:
    arguments = ["engines", "inject", "sglang", str(release_of("0.5.23")), "--runs", "120", "--without-known"]
    called = [sys.executable, "-c", A_PART, str(part), *arguments]
    done = subprocess.run(called, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) of \1 injected faults found", done.stdout)
    assert found is not None and int(found[1]) >= 14


def test_a_folder_without_the_engine_is_one_line(tmp_path: Path) -> None:
    done = trial("nano-vllm", tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path} holds no nano-vllm" in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
