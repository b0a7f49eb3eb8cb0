"""Drives transformers with a real model, as it is and with each fault; one line of JSON says what came out."""

import json
import os
from importlib import import_module
from pathlib import Path

from kvlab.drives import drive_trial
from kvlab.transformers.trial import trial

CLEAN = int(os.environ.get("KVSPEC_RUNS", "3"))
MOST = 12
FIRST = 4
"""The seed of a run that shows most faults."""
SECONDS = 10.0
"""Of processor time for a run with a fault."""


def main() -> None:
    """The runs with a fault begin with the seed that has shown the one before."""
    made = trial(Path(import_module("transformers").__path__[0]).parent)
    clean = drive_trial(made, range(CLEAN))
    print(json.dumps({"events": clean.events, "found": [finding.code for _, finding in clean.found]}))
    first = FIRST
    for defect in made.defects:
        checked = drive_trial(made, [*range(first, MOST), *range(first)], defect=defect, seconds=SECONDS)
        first = checked.seed
        seen = None if checked.first is None else (checked.first[1].code, checked.first[0])
        print(json.dumps({"fault": defect.name, "first": seen, "seed": checked.seed}))


if __name__ == "__main__":
    main()
