"""Fixes of transformers' known issues: a remaining finding is a new issue, or a defect of kvspec.

Each fix is the smallest that removes the issue, not a proposal.
"""

from kvattach.patches import Patches
from kvattach.transformers.modules import Engine
from kvlab.injection import Defect, inject_fault

CANCELLED = "self._requests_to_cancel = set()"
UNBLOCKED = "self.block_new_requests = self.block_new_requests and bool(self.active_requests)"
FORKS = "if state.num_children > 0 and token_budget >= len(request_tokens) - 1:"


def fix(engine: Engine, patches: Patches) -> None:
    """A prompt with one token left is prefilled, and never forked. New requests are blocked by active ones alone."""
    cancelled = engine.scheduler.Scheduler, "clear_cancelled_requests", CANCELLED, f"{CANCELLED}; {UNBLOCKED}"
    inject_fault(Defect("blocked-for-ever", "cancelled requests block no others", (cancelled,)), patches)
    place = engine.scheduler.Scheduler, "_schedule_request", FORKS, FORKS.replace("and", "and request_tokens[1:] and")
    inject_fault(Defect("empty-batch", "a prompt of one token is not forked", (place,)), patches)
