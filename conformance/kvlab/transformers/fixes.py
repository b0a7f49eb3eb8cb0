"""Fixes of transformers' known issues: a remaining finding is a new issue, or a defect of kvspec.

Each fix is the smallest that removes the issue, not a proposal.
"""

from kvattach.patches import Patches
from kvattach.transformers.modules import Engine
from kvlab.injection import Defect, inject_fault

FORKS = "if state.num_children > 0 and token_budget >= len(request_tokens) - 1:"


def fix(engine: Engine, patches: Patches) -> None:
    """A prompt with one token left is prefilled, and never forked."""
    place = engine.scheduler.Scheduler, "_schedule_request", FORKS, FORKS.replace("and", "and request_tokens[1:] and")
    inject_fault(Defect("empty-batch", "a prompt of one token is not forked", (place,)), patches)
