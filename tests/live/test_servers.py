"""Real servers on the CPU: silent without a fault, and red with each one. `make live` runs these; minutes each.

`KVSPEC_LIVE` names the releases, by default SGLang's newest. Without it nothing runs: an environment takes gigabytes.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvlab.releases import version_key
from kvlab.serving.servers import CHECKED_OUT, SERVERS
from tests.kvlab.checkout import sglang_jax

NAMED = os.environ.get("KVSPEC_LIVE", "").split()
OLDER = [one for one in NAMED if one.startswith("sglang==") and version_key(one) < version_key("sglang==0.5.23")]
"""SGLang's releases that are not driven with sessions, and that are no pairs."""
RADIX = [one for one in OLDER if version_key(one) < version_key("sglang==0.5.19")]
"""Those with `RadixCache` and `HiRadixCache`."""
RELEASES = [one for one in NAMED if one not in OLDER]
MINUTES = os.environ.get("KVSPEC_LIVE_MINUTES", "1")
SGLANG = [one for one in RELEASES if one.startswith("sglang==")]
VLLM = [one for one in RELEASES if one.startswith("vllm==")]

FAULTS = [
    ("sglang", 2, "retracted and kept"),
    ("sglang", 2, "finished and kept"),
    ("sglang", 2, "chunk begins too late"),
    ("sglang", 2, "admitted without a lock"),
    ("sglang", 2, "duplicates kept"),
    ("sglang", 2, "tail not freed"),
    ("sglang", 2, "row written short"),
    ("sglang", 6, "tail lost on closing"),
    ("sglang", 6, "tail lost on resuming"),
    ("sglang", 6, "slot kept by an aborted turn"),
    ("sglang", 6, "one token too many"),
    ("transformers", 1, "tail not freed"),
    ("transformers", 1, "hit not counted"),
    ("transformers", 1, "cached and in use"),
    ("transformers", 1, "evicted and found"),
    ("transformers", 1, "hash kept at a reset"),
    ("transformers", 1, "published too early"),
    ("transformers", 1, "duplicate kept"),
    ("transformers", 1, "left in the free list"),
    ("transformers", 1, "cancelled and kept"),
    ("transformers", 1, "written one slot late"),
    ("transformers", 1, "counted as computed"),
    ("vllm", 1, "tail not freed"),
    ("vllm", 1, "freed twice"),
    ("vllm", 1, "hit not counted"),
    ("vllm", 1, "left in the free list"),
    ("vllm", 1, "hash not removed"),
    ("vllm", 1, "row not reported"),
    ("sglang-jax", 1, "lock kept"),
    ("sglang-jax", 1, "lock not taken"),
    ("sglang-jax", 1, "duplicates kept"),
    ("sglang-jax", 1, "row keeps duplicates"),
    ("sglang-jax", 1, "freed and still found"),
    ("sglang-jax", 1, "locks ignored"),
    ("sglang-jax", 1, "left in the free list"),
    ("sglang-jax", 1, "row handed out twice"),
    ("sglang-jax", 1, "row names another slot"),
    ("sglang-jax", 1, "row handed on between chunks"),
    ("sglang-jax", 1, "row of another request"),
]
"""Defects of the driver, and seeds whose configurations reach them: SGLang's 2 has no sessions, its 6 has. All of
transformers' are found by the driver, which has the same model (`tests/kvlab/test_transformers.py`)."""

HOST_CACHE_FAULTS = [
    ("sglang", 2, "host pages mixed up"),
    ("sglang", 2, "left in the free list"),
    ("vllm", 1, "load not waited for"),
    ("vllm", 1, "store taken for done"),
    ("vllm", 1, "store not fenced"),
    ("vllm", 1, "host block not held"),
    ("vllm", 1, "stored block not held"),
    ("vllm", 1, "names of other blocks"),
    ("vllm", 3, "host hit not held"),
    ("vllm", 3, "host block not freed"),
    ("vllm", 3, "loaded into other blocks"),
    ("vllm", 3, "loaded from other blocks"),
]
"""The same with a cache on the host."""

WINDOW_FAULTS = [
    ("sglang", 2, "window not freed"),
    ("sglang", 2, "window moves too early"),
    ("sglang", 2, "window freed twice"),
    ("sglang", 2, "window kept by an evicted page"),
    ("sglang", 2, "window lock not counted"),
    ("sglang", 2, "window lock too short"),
    ("sglang", 2, "window published that is gone"),
    ("sglang", 3, "window left in the free list"),
]
"""Those of a model with windows; the last is in an allocator of single tokens, which seed 3 has."""

STATE_FAULTS = [
    ("sglang", 2, "state freed twice"),
    ("sglang", 2, "state lock not counted"),
    ("sglang", 2, "found state not copied"),
    ("sglang", 2, "state left in the free list"),
]
"""Those of a model with recurrent states. The driver has one more, of states that only a GPU tracks."""

CHUNK_FAULTS = [
    ("vllm", 2, "addresses given back"),
    ("vllm", 2, "chunk handed out twice"),
    ("vllm", 3, "chunk kept behind its load"),
    ("vllm", 3, "chunk load taken for done"),
    ("vllm", 3, "chunk store taken for done"),
]
"""Those of vLLM's other connector to the host."""

DRAFT_FAULTS = [
    ("sglang", 2, "drafts kept"),
    ("sglang", 2, "drafts freed twice"),
    ("sglang", 2, "rejected draft counted"),
]
"""Those of SGLang's drafts. The driver has one more, of two steps in flight: on a CPU drafts are without overlap."""

FIXED = ["--without-known"]

CHUNKS = ["--host-cache", "--connector", "OffloadingConnector"]

DRAFTED = [
    ["--drafts", "ngram"],
    ["--drafts", "ngram", "--windows"],
    ["--drafts", "model"],
    ["--drafts", "eagle"],
    ["--drafts", "eagle", "--host-cache"],
]
"""The drafters of vLLM."""

PAIR_FAULTS = [
    ("sent pages freed", True),
    ("first blocks read", True),
    ("row not reported", True),
    ("notified too early", False),
    ("read taken for done", False),
    ("read over what was found", False),
    ("load taken for done", False),
    ("left in the free list", False),
    ("hash not removed", False),
]
"""Defects of the driver in both servers of a pair, and whether tokens are always wrong with them."""

SGLANG_PAIR_FAULTS = [
    ("first pages filled", True),
    ("given back before it is sent", False),
    ("went on before it was there", True),
]
"""Those of SGLang's pair."""

RADIX_FAULTS = [
    (2, "lock kept"),
    (2, "lock not taken"),
    (2, "duplicates kept"),
    (2, "row keeps duplicates"),
    (2, "tail not freed"),
    (7, "session closed and kept"),
    (7, "session's row freed twice"),
]
"""Those of SGLang's releases with other trees, and seeds whose configurations reach them."""

pytestmark = pytest.mark.skipif(not NAMED, reason="KVSPEC_LIVE names no release: 'make live'")


def _given(faults: Iterable[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """The faults of the releases that the environment names."""
    given = [(release, seed, name, engine) for release in RELEASES for engine, seed, name in faults]
    return [(release, seed, name) for release, seed, name, engine in given if release.split("==")[0] == engine]


def _served(release: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "kvcli", "serve", release, "--keep", str(folder), *options]
    if release == CHECKED_OUT:
        command += ["--checkout", str(sglang_jax())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2 and "cannot open shared object file" in done.stderr:
        # Mooncake's library needs libibverbs.so.1, which is no Python package.
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done


def _fixed(release: str, seed: int) -> list[str]:
    """The option of a server whose known issues the moment of an abort shows: SGLang with sessions, transformers."""
    engine = release.split("==")[0]
    return FIXED if engine == "transformers" or SERVERS[engine](seed).sessions else []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_server_conforms_and_no_token_is_wrong(release: str, seed: int, tmp_path: Path) -> None:
    # sglang-jax compiles each shape of a batch when it is met, which takes half a minute.
    least, minutes = ("30", str(2 * float(MINUTES))) if release == CHECKED_OUT else ("100", MINUTES)
    options = ["--seed", str(seed), "--minutes", minutes, "--answers", least, *_fixed(release, seed)]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", [*SGLANG, *VLLM])
@pytest.mark.parametrize("seed", [2, 3, 5, 7])
def test_a_server_with_a_host_cache_conforms_and_no_token_is_wrong(release: str, seed: int, tmp_path: Path) -> None:
    options = ["--host-cache", "--seed", str(seed), "--minutes", MINUTES, "--answers", "100", *_fixed(release, seed)]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", [*SGLANG, *VLLM])
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_server_with_windows_conforms_and_no_token_is_wrong(release: str, seed: int, tmp_path: Path) -> None:
    options = ["--windows", "--seed", str(seed), "--minutes", MINUTES, "--answers", "100", *_fixed(release, seed)]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("options", DRAFTED, ids=" ".join)
def test_a_server_with_drafts_conforms_and_no_token_is_wrong(release: str, options: list[str], tmp_path: Path) -> None:
    done = _served(release, tmp_path / "run", *options, "--seed", "5", "--minutes", MINUTES, "--answers", "100")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(("seed", "host"), [(2, []), (3, []), (4, []), (5, ["--host-cache"])])
def test_an_sglang_server_with_drafts_conforms_and_no_token_is_wrong(
    release: str, seed: int, host: list[str], tmp_path: Path
) -> None:
    options = ["--drafts", "ngram", *host, "--seed", str(seed), "--minutes", MINUTES, "--answers", "100"]
    done = _served(release, tmp_path / "run", *options, *_fixed(release, seed))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("release", "seed", "fault"), _given(DRAFT_FAULTS))
def test_a_fault_of_drafts_is_found(release: str, seed: int, fault: str, tmp_path: Path) -> None:
    options = ["--drafts", "ngram", "--seed", str(seed), "--minutes", "0.4", "--fault", fault]
    done = _served(release, tmp_path / "run", *options)
    assert "is in this process" in (tmp_path / "run" / "server.log").read_text(encoding="utf-8")
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_server_with_states_conforms_and_no_token_is_wrong(release: str, seed: int, tmp_path: Path) -> None:
    options = ["--states", "--seed", str(seed), "--minutes", MINUTES, "--answers", "100", *_fixed(release, seed)]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("release", "seed", "fault"), _given(STATE_FAULTS))
def test_a_fault_of_states_is_found(release: str, seed: int, fault: str, tmp_path: Path) -> None:
    done = _served(release, tmp_path / "run", "--states", "--seed", str(seed), "--minutes", "0.4", "--fault", fault)
    assert "is in this process" in (tmp_path / "run" / "server.log").read_text(encoding="utf-8")
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("options", [["--host-cache"], CHUNKS], ids=["blocks", "chunks"])
def test_a_server_with_windows_and_a_host_cache_conforms(release: str, options: list[str], tmp_path: Path) -> None:
    options = ["--windows", *options, "--seed", "5", "--minutes", MINUTES, "--answers", "100"]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("release", "seed", "fault"), _given(WINDOW_FAULTS))
def test_a_fault_of_windows_is_found(release: str, seed: int, fault: str, tmp_path: Path) -> None:
    done = _served(release, tmp_path / "run", "--windows", "--seed", str(seed), "--minutes", "0.4", "--fault", fault)
    assert "is in this process" in (tmp_path / "run" / "server.log").read_text(encoding="utf-8")
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("release", OLDER)
@pytest.mark.parametrize("seed", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("options", [[], ["--host-cache"]], ids=["", "host cache"])
def test_an_older_server_conforms_and_no_token_is_wrong(
    release: str, seed: int, options: list[str], tmp_path: Path
) -> None:
    options = [*options, "--seed", str(seed), "--minutes", MINUTES, "--answers", "100", *_fixed(release, seed)]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("release", "seed", "fault"), _given(HOST_CACHE_FAULTS))
def test_a_fault_of_a_host_cache_is_found(release: str, seed: int, fault: str, tmp_path: Path) -> None:
    options = ["--host-cache", "--seed", str(seed), "--minutes", "0.4", "--fault", fault]
    done = _served(release, tmp_path / "run", *options)
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken in pool (kv|host)", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_server_with_chunks_on_the_host_conforms_and_no_token_is_wrong(
    release: str, seed: int, tmp_path: Path
) -> None:
    options = [*CHUNKS, "--seed", str(seed), "--minutes", MINUTES, "--answers", "100"]
    done = _served(release, tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("release", "seed", "fault"), _given(CHUNK_FAULTS))
def test_a_fault_of_chunks_on_the_host_is_found(release: str, seed: int, fault: str, tmp_path: Path) -> None:
    options = [*CHUNKS, "--seed", str(seed), "--minutes", "0.4", "--fault", fault]
    done = _served(release, tmp_path / "run", *options)
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken in pool (kv|host|buffers)", done.stdout, re.MULTILINE), (
        done.stdout
    )


@pytest.mark.parametrize("release", [*VLLM, *SGLANG])
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_pair_of_servers_conforms_and_no_token_is_wrong(release: str, seed: int, tmp_path: Path) -> None:
    options = ["--pair", "--seed", str(seed), "--minutes", MINUTES, "--answers", "100"]
    done = _served(release, tmp_path / "run", *options, *(FIXED if release in SGLANG else []))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("release", "fault", "wrong"),
    [
        *((release, *fault) for release in VLLM for fault in PAIR_FAULTS),
        *((release, *fault) for release in SGLANG for fault in SGLANG_PAIR_FAULTS),
    ],
)
def test_a_fault_of_a_pair_is_found(release: str, fault: str, wrong: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = _served(release, folder, "--pair", "--seed", "1", "--minutes", "0.3", "--fault", fault)
    assert "is in this process" in (folder / "decode.log").read_text(encoding="utf-8")
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken in pool (prefill|decode)[^/]*/kv", done.stdout, re.MULTILINE)
    assert ("wrong token: request" in done.stdout) >= wrong


@pytest.mark.parametrize("release", SGLANG)
def test_pages_that_prefill_keeps_are_found_although_it_ends_itself(release: str, tmp_path: Path) -> None:
    # SGLang's own check ends prefill after its first request, at times before decode is started.
    folder = tmp_path / "run"
    done = _served(release, folder, "--pair", "--seed", "1", "--minutes", "0.3", "--fault", "sent and kept")
    assert "is in this process" in (folder / "prefill.log").read_text(encoding="utf-8")
    assert re.search(r"^[0-9]+\. MEM-LEAK is broken in pool prefill[^/]*/kv", done.stdout, re.MULTILINE), done.stdout
    assert "the server ended by itself" in done.stdout


@pytest.mark.skipif(CHECKED_OUT not in RELEASES, reason="KVSPEC_LIVE does not name sglang-jax")
def test_one_run_shows_a_shared_buffer_as_a_race_and_as_wrong_tokens(tmp_path: Path) -> None:
    done = _served(CHECKED_OUT, tmp_path / "run", "--seed", "1", "--minutes", "0.4", "--fault", "cache-loc-reused")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^1\. MEM-RACE is broken in pool cache_loc", done.stdout, re.MULTILINE), done.stdout
    assert "wrong token: request" in done.stdout


@pytest.mark.parametrize(
    ("release", "seed", "fault"),
    [*_given(FAULTS), *((release, *fault) for release in RADIX for fault in RADIX_FAULTS)],
)
def test_a_fault_is_found(release: str, seed: int, fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = _served(release, folder, "--seed", str(seed), "--minutes", "0.4", "--fault", fault)
    assert "is in this process" in (folder / "server.log").read_text(encoding="utf-8")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^[0-9]+\. MEM-[A-Z]+ is broken", done.stdout, re.MULTILINE), done.stdout
