"""SGLang's streaming sessions: turns that its known issues once left unexplained, and a server that stands still."""

import json
import logging
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace
from kvlab.sglang import driver
from kvlab.sglang.driver import Shape
from kvlab.sglang.issues import fix
from kvlab.sglang.release import load
from kvlab.traffic import STUCK
from kvtrace.repeats import Repeats
from tests.kvattach.lagging import Events
from tests.kvlab.checkout import release_of

RUNS = {20378: False, 77: True, 284: True}
"""Seed -> whether there is a host tier."""


STANDS = 9
"""The seed of a server that stands still: sessions hold its pages."""


def printed(what: str) -> Any:
    """The results of a function of this module, in a process of its own."""
    command = [sys.executable, "-m", "tests.kvlab.test_sglang_sessions", what, str(release_of("0.5.23"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_turn_leaves_no_state_that_its_drafts_have_moved_on_and_no_tokens_when_it_is_to_be_aborted() -> None:
    events, found = printed("turns")
    assert events > 5_000
    assert found == []


@pytest.mark.slow
def test_a_server_that_stands_still_adds_nothing_to_its_recording() -> None:
    emitted, written = printed("stands")
    locks = [event for event in emitted if event["op"] in ("share", "release")]
    assert len(locks) > driver.STILL // 3
    assert {event["holder"] for event in locks} == {locks[0]["holder"]}
    assert written == []


def stands(release: Release) -> None:
    """Print the last events of a server that stands still, and those of them that its recording gets."""
    rng = random.Random(STANDS)
    shape = Shape.drawn(rng).without_host(rng, release)
    shape = replace(shape, sessions=6, patient=True, aborts=0.0, pauses=0.0)
    trace, seen = Events(), Repeats()
    ended = driver.run(release, STANDS, Attached(release, trace, Stream, Event), shape, host=False)
    assert STUCK in ended
    last = len(trace.all) - driver.STILL
    written = [seen.news(msgspec.json.encode(event)) for event in trace.all]
    news = [line.decode() for lines in written[last:] for line in lines]
    print(json.dumps([msgspec.to_builtins(trace.all[last:]), news]))


def turns(release: Release) -> None:
    """Print the events, and the codes of what is found though the known issues are fixed."""
    checked = CheckedTrace()
    attached = Attached(release, checked, Stream, Event)
    for seed, host in RUNS.items():
        driver.run(release, seed, attached, host=host, report=checked.find)
    print(json.dumps([checked.events, [finding.code for _, finding in checked.found]]))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    at = load(Path(sys.argv[2]))
    fix(at, Patches())
    {"turns": turns, "stands": stands}[sys.argv[1]](at)
