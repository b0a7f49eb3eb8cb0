"""The canary on vLLM's older model runner (V1), `vllm.v1.worker.gpu_model_runner.GPUModelRunner`.

initialize_kv_cache     as in V2: one pool for each group of the KV cache
_update_states          requests come, come back and go; blocks are copied before the step
_prepare_inputs         token ids, positions, block tables and slot mappings of the step: verified and stamped
execute_model           the step is queued: real bytes are noted behind it
"""

from typing import Any

import numpy as np
import torch

from kvattach.canary.switch import Setting
from kvattach.canary.vllm import VllmCanary
from kvcuda.canary import Pass, Places


def attach(module: Any, said: Setting) -> None:
    """Hook the model runner in `vllm.v1.worker.gpu_model_runner`, which has been imported."""
    VllmV1Canary(module.GPUModelRunner, said)


class VllmV1Canary(VllmCanary):
    """Hooks in one process's model runner, V1."""

    def _hook_steps(self, runner_class: Any) -> None:
        self.hook(runner_class, "_update_states", after=self._updated)
        self.hook(runner_class, "_prepare_inputs", after=self._inputs_prepared)

    def _updated(self, _: None, answer: Any, runner: Any, scheduler_output: Any) -> None:
        """Note finished and new requests, and those that resume after a preemption with all their sampled tokens."""
        watch = self.watched
        if watch is None:
            return
        for name in scheduler_output.finished_req_ids:
            watch.leave(name)
        resumed = scheduler_output.scheduled_cached_reqs.resumed_req_ids
        for name in (*(new.req_id for new in scheduler_output.scheduled_new_reqs), *resumed):
            request = runner.requests[name]
            watch.prompts.begin(name, [*request.prompt_token_ids, *request.output_token_ids])
        self._copies(None, answer, runner, scheduler_output)

    def _inputs_prepared(self, _: None, __: Any, runner: Any, ___: Any, scheduled: Any, *____: Any) -> None:
        """The step's inputs are on the device."""
        watch, batch = self.watched, runner.input_batch
        if watch is None:
            return
        requests = batch.num_reqs
        places = []
        for number in self._groups:
            table = batch.block_table[number].block_table.gpu
            offsets = np.arange(requests, dtype=np.int64) * table.stride(0)
            places.append(Places(table, offsets, batch.block_table[number].slot_mapping.gpu))
        names = list(batch.req_ids)
        starts = batch.num_computed_tokens_cpu[:requests]
        counts = np.asarray(scheduled[:requests], dtype=np.int64)
        known = watch.prompts.known(names, starts.tolist())
        # Older releases have a pair of buffers, on the host and on the device.
        positions = runner.positions if isinstance(runner.positions, torch.Tensor) else runner.positions.gpu
        longest = int((starts + counts).max())
        watch.before(Pass(names, counts, runner.input_ids.gpu, positions, places, known, longest))
