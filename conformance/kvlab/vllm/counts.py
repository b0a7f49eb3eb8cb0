"""vLLM's older model runner: how its accepted tokens are counted, driven with hooks of its own, and fixed."""

import importlib
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvattach.hooks import Hooks
from kvattach.patches import Patches
from kvattach.vllm.accepted import Accepted
from kvcheck import Finding
from kvlab.device import Event, Stream
from kvlab.injection import mend
from kvlab.tokens import ignored
from kvlab.vllm.driver import EngineGaveUp
from kvlab.vllm.release import V1_RUNNER, without_counts
from kvlab.vllm.workload import Workload


def driven(work: Workload, hooks: Hooks, report: Callable[[Finding], None] = ignored) -> Counter[str]:
    """Drive one workload with hooks of its own instead of `hooks`, for the same trace.

    Raises:
        StuckError: as `Drive.run`.
        RuntimeError: a hook has failed.
    """
    from kvlab.vllm import accepted

    hooks.detach()
    own = Accepted(hooks.trace, Stream, Event, SimpleNamespace(current_stream=lambda: Stream.current)).hooks
    try:
        happened = accepted.run(work, report)
    except EngineGaveUp as error:
        own.gave_up("scheduler", error.__cause__ or error)
        raise
    finally:
        own.detach()
        hooks.attach()
    if own.problem is not None:
        raise RuntimeError(own.problem)
    return happened


_GATHERED = "if self.use_async_scheduling and prev_req_id_to_index:"


def await_counts(patches: Patches) -> None:
    """The host waits for the copy of the counts before it moves their rows."""
    runner = importlib.import_module(V1_RUNNER).GPUModelRunner
    update = runner._update_states

    def awaited(runner: Any, output: Any) -> Any:
        if runner.num_accepted_tokens_event is not None:
            runner.num_accepted_tokens_event.synchronize()
        return update(runner, output)

    patches.set(runner, "_update_states", awaited)


def keep_order(patches: Patches) -> None:
    """Rows that were moved with their counts are not put in order a second time."""
    runner = importlib.import_module(V1_RUNNER).GPUModelRunner
    mend(patches, "counts in order", (runner, "_prepare_inputs", _GATHERED, "if False:"))


def fix_counts(patches: Patches) -> None:
    """Both changes of vLLM's pull request 53919, where the release's older model runner can be driven."""
    if not without_counts():
        await_counts(patches)
        keep_order(patches)
