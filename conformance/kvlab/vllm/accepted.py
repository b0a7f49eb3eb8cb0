"""Drives vLLM's scheduler together with its older model runner, for a hybrid model with drafts; there is no model.

The runner's own functions move its batch's rows, prepare each pass, and copy the counts of accepted tokens to pinned
memory on a simulated device, which gets there when it is let. Kernels are stood in for.

`kvlab.vllm.offloading.prepared` makes it importable.
"""

import random
from collections import Counter
from collections.abc import Callable, Set
from types import SimpleNamespace
from typing import Any

import torch

from kvcheck import Finding
from kvlab.device import Event, Stream, advance, stood_in
from kvlab.stubs import StandIn
from kvlab.tokens import Tokens
from kvlab.vllm.driver import Drive
from kvlab.vllm.runner import Runner, Step
from kvlab.vllm.runner_v1 import RunnerV1
from kvlab.vllm.workload import Workload

FEW = 6
"""The most entries that the device completes between two steps of the host."""


class Late(torch.Tensor):
    """Pinned memory: a copy to it that does not block takes effect when the device gets there."""

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy, now or later."""
        if not non_blocking:
            return super().copy_(source)
        counts, target = source.clone(), self.as_subclass(torch.Tensor)

        def copied() -> None:
            target.copy_(counts)

        Stream.current.queue(copied)
        return self


class HybridRunner(RunnerV1):
    """The runner of a hybrid model with drafts and a prefix cache."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self.num_spec_tokens = work.drafts
        # Decodes come first in the batch.
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=work.groups)
        self.reorder_batch_threshold = 1 + work.drafts
        self.use_async_scheduling = work.launches > 1
        self.speculative_config = SimpleNamespace(use_ngram_gpu=lambda: False)
        self.model_config = SimpleNamespace(is_hybrid=True)
        self.cache_config = SimpleNamespace(mamba_cache_mode="align")
        self.num_accepted_tokens_event = Event()
        self.mamba_prev_last_scheduled_idx = self.valid_sampled_token_count_event = None
        batch = self.input_batch
        batch.num_accepted_tokens_cpu_tensor = batch.num_accepted_tokens_cpu_tensor.as_subclass(Late)
        # A kernel computes where the pass writes: nothing here reads that.
        batch.block_table.compute_slot_mapping = lambda *_: None

    def _calc_spec_decode_metadata(self, *_: Any) -> Any:
        """For the sampler, which is stood in for."""
        return StandIn()

    def _get_mamba_bufs(self) -> Any:
        """Without the kernel that copies states: no pass leaves its window."""
        counted = self.num_accepted_tokens.gpu
        align = SimpleNamespace(
            is_initialized=True, run_fused_postprocess=lambda **_: None, num_accepted_tokens_out=counted
        )
        for name in ("mamba_state_idx", "num_scheduled_tokens", "num_computed_tokens", "num_draft_tokens"):
            setattr(align, f"{name}_buf", SimpleNamespace(gpu=counted))
        return SimpleNamespace(postprocess_align=align)


class Counting(Runner):
    """Stands in for the model: it samples, and the engine's runner counts."""

    def __init__(self, work: Workload, tokens: Tokens, dice: random.Random) -> None:
        """Make the engine's runner."""
        super().__init__(work, tokens, dice)
        self._drafts = work.drafts
        self._device = random.Random(f"{work.seed} device")
        self._engine = HybridRunner(work)

    def execute(self, output: Any, sampling: Set[str]) -> Step:
        """Prepare a launch as the engine does, and count what it accepts."""
        step, engine = super().execute(output, sampling), self._engine
        advance(self._device, FEW)
        names = engine.prepare(output)
        advance(self._device, FEW)
        if names is None:
            return step
        tokens = [step.sampled.get(name) or [0] for name in names]
        padded = [[*some, *[-1] * (1 + self._drafts - len(some))] for some in tokens]
        engine._update_states_after_model_execute(torch.tensor(padded), output)
        batch = engine.input_batch
        engine.keep(names, step.sampled)
        if engine.use_async_scheduling:
            batch.prev_req_id_to_index = {name: row for row, name in enumerate(names) if name in step.sampled}
        else:
            Stream.current.synchronize()  # the scheduler gets the tokens
        return step


class HybridDrive(Drive):
    """A drive of the scheduler, with the older model runner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scheduler.use_v2_model_runner = False
        self._runner = Counting(self.work, self._tokens, self._dice)


def run(work: Workload, report: Callable[[Finding], None]) -> Counter[str]:
    """Drive one workload, as `Drive.run` does."""
    with stood_in(torch, work.seed):
        return HybridDrive(work, report).run()
