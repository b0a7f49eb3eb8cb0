"""sglang-jax, to be driven with hooks."""

from functools import partial
from pathlib import Path

import msgspec

from kvattach.hooks import Hooks, Trace
from kvattach.sglang_jax.hooks import Attached
from kvlab.drives import Known, Trial
from kvlab.issues import Issue, issues_of
from kvlab.sglang_jax import driver
from kvlab.sglang_jax.engine import load
from kvlab.sglang_jax.faults import defects
from kvlab.sglang_jax.fixes import fix

RUNS = 40
"""Runs that look for one issue."""


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)
    attached: list[Hooks] = []

    def attach(trace: Trace) -> Hooks:
        attached[:] = [Attached(engine, trace).hooks]
        return attached[0]

    def run(seed: int) -> None:
        driver.run(engine, seed)

    def looked_for(issue: Issue) -> Known:
        options = issues_of("sglang-jax").workload(issue)
        shape = msgspec.convert(options, driver.Shape) if options else None
        others = partial(fix, engine, but=issue.id)
        return Known(issue, lambda seed: driver.run(engine, seed, shape=shape), others, RUNS)

    known = [looked_for(issue) for issue in issues_of("sglang-jax").at("memory") if issue.workload is not None]
    return Trial("sglang-jax", attach, run, defects(engine), partial(fix, engine), known)
