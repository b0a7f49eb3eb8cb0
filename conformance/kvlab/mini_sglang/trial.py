"""mini-sglang, to be driven with hooks."""

from functools import partial
from pathlib import Path

import msgspec

from kvattach.hooks import Hooks, Trace
from kvattach.mini_sglang.hooks import Attached
from kvlab.device import Event, Stream
from kvlab.drives import Known, Trial
from kvlab.issues import Issue, issues_of
from kvlab.mini_sglang import driver
from kvlab.mini_sglang.engine import load
from kvlab.mini_sglang.faults import defects
from kvlab.mini_sglang.fixes import fix

RUNS = 40
"""Runs that look for one issue."""


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)

    def attach(trace: Trace) -> Hooks:
        return Attached(engine, trace, Stream, Event).hooks

    def run(seed: int) -> None:
        driver.run(engine, seed)

    def looked_for(issue: Issue) -> Known:
        options = issues_of("mini-sglang").workload(issue)
        shape = msgspec.convert(options, driver.Shape) if options else None
        others = partial(fix, engine, but=issue.id)
        return Known(issue, lambda seed: driver.run(engine, seed, shape=shape), others, RUNS)

    known = [looked_for(issue) for issue in issues_of("mini-sglang").at("memory")]
    return Trial("mini-sglang", attach, run, defects(engine), partial(fix, engine), known)
