"""Drives of SGLang in a process of their own, which can hold one engine."""

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvlab.drives import drive_trial
from kvlab.sglang.trial import trial
from tests.kvlab.checkout import release_of


class Driven(NamedTuple):
    """Drives without known issues, and with one injected defect after the other."""

    events: int
    found: list[str]
    """The codes of the findings without an injected defect."""
    codes: dict[str, str | None]
    """Injected defect -> the code of its first finding."""


def driven(seeds: range, more: range, injected: Sequence[str]) -> Driven:
    """Drive release 0.5.23 with `seeds`, and with each `injected` defect until a finding, with `more`."""
    given = json.dumps([[seeds.start, seeds.stop, seeds.step], [more.start, more.stop, more.step], [*injected]])
    command = [sys.executable, "-m", "tests.kvlab.driven", str(release_of("0.5.23")), given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert not done.returncode, done.stderr
    return Driven(*json.loads(done.stdout))


def main(place: str, given: str) -> None:
    """Print what the drives find."""
    logging.disable(logging.CRITICAL)
    seeds, more, injected = json.loads(given)
    sglang = trial(Path(place))
    clean = drive_trial(sglang, range(*seeds), fixed=True)
    codes = {}
    for defect in sglang.defects:
        if defect.name in injected:
            first = drive_trial(sglang, range(*more), defect=defect, fixed=True).first
            codes[defect.name] = None if first is None else first[1].code
    print(json.dumps(Driven(clean.events, [finding.code for _, finding in clean.found], codes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
