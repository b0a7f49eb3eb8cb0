"""Turns of SGLang's streaming sessions that its known issues once left unexplained."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace
from kvlab.sglang import driver
from kvlab.sglang.issues import fix
from kvlab.sglang.release import load
from tests.kvlab.checkout import release_of

RUNS = {20378: False, 77: True, 284: True}
"""Seed -> whether there is a host tier."""


@pytest.mark.slow
def test_a_turn_leaves_no_state_that_its_drafts_have_moved_on_and_no_tokens_when_it_is_to_be_aborted() -> None:
    command = [sys.executable, "-m", "tests.kvlab.test_sglang_sessions", str(release_of("0.5.23"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert not done.returncode, done.stderr
    events, found = json.loads(done.stdout)
    assert events > 5_000
    assert found == []


def main(place: str) -> None:
    """Print the events, and the codes of what is found though the known issues are fixed."""
    logging.disable(logging.CRITICAL)
    release = load(Path(place))
    fix(release, Patches())
    checked = CheckedTrace()
    attached = Attached(release, checked, Stream, Event)
    for seed, host in RUNS.items():
        driver.run(release, seed, attached, host=host, report=checked.find)
    print(json.dumps([checked.events, [finding.code for _, finding in checked.found]]))


if __name__ == "__main__":
    main(sys.argv[1])
