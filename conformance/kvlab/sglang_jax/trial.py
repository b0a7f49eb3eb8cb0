"""sglang-jax, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.patches import Patches
from kvattach.sglang_jax.hooks import Attached
from kvlab.drives import CheckedTrace, Trial, known_issues
from kvlab.goals import OVERLAPPED
from kvlab.issues import Issue
from kvlab.sglang_jax import driver
from kvlab.sglang_jax.engine import load
from kvlab.sglang_jax.faults import defects
from kvlab.sglang_jax.fixes import fix


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)
    attached: list[Hooks] = []
    checked: list[CheckedTrace] = []

    def attach(trace: CheckedTrace) -> Hooks:
        checked[:] = [trace]
        attached[:] = [Attached(engine, trace).hooks]
        return attached[0]

    def run(shape: driver.Shape | None, seed: int) -> None:
        driver.run(engine, seed, shape=shape, report=checked[0].find)

    def fix_others(issue: Issue, patches: Patches) -> None:
        fix(engine, patches, but=issue.id)

    known = known_issues("sglang-jax", driver.Shape, run, fix_others)
    return Trial(
        "sglang-jax", attach, partial(run, None), defects(engine), partial(fix, engine), known, goals=OVERLAPPED
    )
