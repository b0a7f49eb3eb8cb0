"""mini-sglang, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.mini_sglang.hooks import Attached
from kvattach.patches import Patches
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace, Trial, known_issues
from kvlab.goals import OVERLAPPED
from kvlab.issues import Issue
from kvlab.mini_sglang import driver
from kvlab.mini_sglang.engine import load
from kvlab.mini_sglang.faults import defects
from kvlab.mini_sglang.fixes import fix


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)

    checked: list[CheckedTrace] = []

    def attach(trace: CheckedTrace) -> Hooks:
        checked[:] = [trace]
        return Attached(engine, trace, Stream, Event).hooks

    def run(shape: driver.Shape | None, seed: int) -> None:
        driver.run(engine, seed, shape=shape, report=checked[0].find)

    def fix_others(issue: Issue, patches: Patches) -> None:
        fix(engine, patches, but=issue.id)

    known = known_issues("mini-sglang", driver.Shape, run, fix_others)
    return Trial(
        "mini-sglang", attach, partial(run, None), defects(engine), partial(fix, engine), known, goals=OVERLAPPED
    )
