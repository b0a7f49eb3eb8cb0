"""Real pairs of vLLM servers on the CPU: requests that come to decode after their leases, and both NIXL connectors."""

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvlab.model import VOCABULARY, Answer
from kvlab.serving.report import installed
from kvlab.serving.servers import PAIR, SERVERS, Server, halves
from kvlab.serving.session import _free_port, compared, prepared, running

RELEASES = [one for one in os.environ.get("KVSPEC_LIVE", "").split() if one.startswith("vllm==")]
SEED = 1
REQUESTS, TOKENS = 8, 10
EXPIRED = "Releasing expired KV blocks"

pytestmark = pytest.mark.skipif(not RELEASES, reason="KVSPEC_LIVE names no vLLM: 'make live'")


@dataclass
class Outcome:
    """The outcome of one run of a pair."""

    wrong: int
    """The number of answers with a wrong token."""
    log: str
    """Prefill's log."""
    said: str
    """The report on both recordings."""


def _with_lease(half: Server, connector: str, seconds: int) -> Server:
    """The same server with this connector, and leases of so many seconds."""
    place = half.arguments.index("--kv-transfer-config") + 1
    transfers = json.loads(half.arguments[place])
    transfers |= {"kv_connector": connector, "kv_connector_extra_config": {"kv_lease_duration": seconds}}
    return replace(half, arguments=[*half.arguments[:place], json.dumps(transfers), *half.arguments[place + 1 :]])


def _posted(port: int, path: str, body: dict[str, Any]) -> Any:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def _answers(server: Server, prefill: int, decode: int, late: float) -> list[Answer]:
    """The answers of requests that come to decode so many seconds after prefill has computed them.

    Meanwhile prefill computes others of its own, for which it needs pages.
    """
    rng, kept = random.Random(SEED), []
    for number in range(REQUESTS):
        prompt = [rng.randrange(VOCABULARY) for _ in range(60)]
        path, body = server.ask(f"c{number}.", prompt, TOKENS)
        kept.append((path, prompt, body, _posted(prefill, path, server.prefill(body))["kv_transfer_params"]))
    ends, number = time.monotonic() + late, 0
    while time.monotonic() < ends:
        number += 1
        path, body = server.ask(f"own{number}.", [rng.randrange(VOCABULARY) for _ in range(60)], 2)
        _posted(prefill, path, {**body, "stream": False})
    answers = []
    for path, prompt, body, found in kept:
        said = _posted(decode, path, {**body, "stream": False, "kv_transfer_params": found})
        answers.append(Answer(body["request_id"], prompt, said["choices"][0]["token_ids"], TOKENS))
    return answers


def _run(release: str, folder: Path, connector: str, lease: int, late: float) -> Outcome:
    server = replace(SERVERS["vllm"](SEED), pair=True)
    python, package = installed("vllm", release.partition("==")[2], print)
    environment, model = prepared(server, python, package, folder)
    ports = []
    with ExitStack() as stack:
        for name, half in halves(server, [_free_port() for _ in PAIR]).items():
            hooked = {**environment, **half.environment, "KVSPEC": f"record:{folder / f'trace-{name}.jsonl.zst'}"}
            leased = _with_lease(half, connector, lease)
            ports.append(stack.enter_context(running(leased, python, model, folder / f"{name}.log", hooked))[1])
        prefill, decode = ports
        answers = _answers(server, prefill, decode, late)
    wrong = len(compared(server, python, environment, folder, answers))
    command = [sys.executable, "-P", "-m", "kvcli", "check", "--merge", *map(str, folder.glob("trace-*.zst"))]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return Outcome(wrong, (folder / "prefill.log").read_text(encoding="utf-8"), said)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("connector", ["NixlConnector", "NixlPushConnector"])
def test_requests_that_come_to_decode_in_time_conform_and_no_token_is_wrong(
    release: str, connector: str, tmp_path: Path
) -> None:
    outcome = _run(release, tmp_path, connector, 60, 0.0)
    assert "conforms" in outcome.said, outcome.said
    assert EXPIRED not in outcome.log
    assert not outcome.wrong


@pytest.mark.parametrize("release", RELEASES)
def test_decode_reads_pages_of_others_for_requests_that_come_after_their_leases(release: str, tmp_path: Path) -> None:
    """Decode reads what was leased without asking: only prefill's log, afterwards, says that leases had ended."""
    outcome = _run(release, tmp_path, "NixlConnector", 6, 12.0)
    assert EXPIRED in outcome.log
    assert "MEM-USE is broken in pool prefill/kv" in outcome.said, outcome.said
    assert outcome.wrong
