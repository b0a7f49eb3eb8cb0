"""Drives vLLM's scheduler and what its model runner prepares for each step, with the canary's hooks in it.

python -m tests.kvattach.canary_on_vllm FOLDER SEED [WHAT [RUNNER]]

The release's own scheduler, request states, block tables and kernels that make a step's inputs; no model. Each step is
prepared as late as the host can bear: when its tokens are taken. WHAT is put into it: `swap`, the first two blocks of
a table before one step; `mapping`, slot mappings one slot off in one step. RUNNER is 2 or 1. Prints what was found, as
JSON.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from kvattach.canary.switch import setting
from kvlab.vllm.release import prepare_runners

prepare_runners(Path(sys.argv[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.v1.worker.gpu.input_batch import InputBuffers  # noqa: E402
from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # noqa: E402

from kvattach.canary.vllm import VllmCanary  # noqa: E402
from kvattach.canary.vllm_v1 import VllmV1Canary  # noqa: E402
from kvlab.vllm.driver import Drive, Launch  # noqa: E402
from kvlab.vllm.engine import _kv_cache_config  # noqa: E402
from kvlab.vllm.workload import Workload  # noqa: E402


class Runner(GPUModelRunner):  # type: ignore[misc]
    """The release's model runner with what preparing a step needs, and no model."""

    def __init__(self, work: Workload) -> None:
        module = sys.modules[GPUModelRunner.__module__]
        cpu = torch.device("cpu")
        self.device = cpu
        self.max_num_reqs = work.running
        self.decode_query_len = 1
        self.input_buffers = InputBuffers(work.running, work.budget, cpu)
        self.req_states = module.RequestState(
            work.running, work.longest, work.budget, 0, 100, cpu, use_dense_all_token_ids=True
        )
        self.block_tables = module.BlockTables(
            [size for _, size, _ in work.groups],
            work.running,
            work.budget,
            [-(-work.longest // size) + 1 for _, size, _ in work.groups],
            cpu,
            sliding_window_reach=[max(0, window - 1) for _, _, window in work.groups],
        )
        nothing = SimpleNamespace(
            add_request=lambda *_: None,
            remove_request=lambda *_: None,
            apply_staged_writes=lambda: None,
            postprocess_state=lambda *_: None,
            num_new_sampled_tokens_per_step=1,
        )
        self.model_state = self.lora_state = nothing
        self.pooling_runner = self.pp_handler = self.encoder_cache = self.prompt_logprobs_worker = None
        self.adaptive_verification = self.sampler = self.pcp_manager = self.fast_prefill = self.kv_block_zeroer = None
        self.is_last_pp_rank = self.use_pp = False
        self.model_config = SimpleNamespace(rswa_window=None)

    def prepare(self, output: Any) -> Any:
        """The part of `execute_model` before the model."""
        self.finish_requests(output)
        self.add_requests(output)
        self.update_requests(output)
        self.block_tables.apply_staged_writes()
        if not output.total_num_scheduled_tokens:
            return None
        state, _ = self.gather_batch_req_state(output, dummy_run=False)
        batch = self.prepare_inputs(output, state, SimpleNamespace(num_tokens=0, num_reqs=None), 0)
        self.prepare_attn(batch)
        return batch

    def keep(self, batch: Any, sampled: dict[str, list[int]]) -> None:
        """Its handling of the tokens of a step."""
        tokens = [sampled.get(name, []) for name in batch.req_ids]
        padded = torch.tensor([[*some, 0][:1] for some in tokens], dtype=torch.int64)
        num = torch.tensor([len(some) for some in tokens], dtype=torch.int32)
        none = torch.zeros_like(num)
        self.postprocess_sampled(batch.idx_mapping, padded, num, none, batch.query_start_loc)

    def computed(self, names: Iterable[str]) -> Iterable[tuple[int, int]]:
        """Where in the tables these requests stand, and how much of each is computed."""
        states = self.req_states
        for name in names:
            if name in states.req_id_to_index:
                index = states.req_id_to_index[name]
                yield index, int(states.num_computed_tokens_np[index])

    def swap(self, index: int) -> None:
        """The first two blocks of a request change places."""
        table = self.block_tables.block_tables[0].gpu
        table[index, :2] = table[index, :2].flip(0)

    def slot_mappings(self) -> tuple[Any, str]:
        """Where slot mappings are computed."""
        return self.block_tables, "compute_slot_mappings"


class Prepared(Drive):
    """A drive whose steps are prepared by the model runner."""

    def begin(self, runner: Any, fault: str) -> None:
        self.runner, self.fault, self.steps, self.injected = runner, fault, 0, 0
        schedule = self.scheduler.schedule

        def snapshot() -> Any:
            output = schedule()
            for new in output.scheduled_new_reqs:
                new.prefill_token_ids = list(new.prefill_token_ids)
                new.block_ids = tuple(list(blocks) for blocks in new.block_ids)
            return output

        self.scheduler.schedule = snapshot

    def _complete(self, launch: Launch) -> None:
        self.steps += 1
        if self.fault and not self.injected and self.steps > 12:
            self.put_in(launch.output.num_scheduled_tokens)
        batch = self.runner.prepare(launch.output)
        super()._complete(launch)
        if batch is not None:
            self.runner.keep(batch, launch.step.sampled)

    def put_in(self, names: Iterable[str]) -> None:
        if self.fault == "mapping":
            place, name = self.runner.slot_mappings()
            compute = getattr(place, name)

            def off(*args: Any, **kwargs: Any) -> Any:
                setattr(place, name, compute)
                answer = compute(*args, **kwargs)
                return self.runner.off_by_one() if answer is None else answer.add_(1)

            setattr(place, name, off)
            self.injected = self.steps
            return
        for index, computed in self.runner.computed(names):
            if computed >= 8:
                self.runner.swap(index)
                self.injected = self.steps
                return


def main(seed: int, fault: str = "", version: str = "2") -> None:
    document = tuple(int(token) for token in np.random.default_rng(seed).integers(1, 9, 40))
    work = Workload(
        seed=seed,
        requests=14,
        launches=2,
        groups=(("full", 4, 0),) if seed % 2 else (("full", 4, 0), ("window", 4, 6)),
        blocks=60,
        documents=(document,),
    )
    said = setting({"KVSPEC_CANARY": "log"})
    assert said is not None
    hooks: VllmCanary
    runner: Any
    if version == "1":
        from kvlab.vllm.runner_v1 import RunnerV1

        hooks, runner = VllmV1Canary(RunnerV1, said), RunnerV1(work)
    else:
        hooks, runner = VllmCanary(Runner, said), Runner(work)
    hooks.watch_cache(_kv_cache_config(work), work.running)
    drive = Prepared(work)
    drive.begin(runner, fault)
    happened = drive.run()
    watch = hooks.watched
    assert watch is not None
    found = [str(one) for one in watch.found]
    result = {"launches": watch.canary.launches, "problem": hooks.problem, "found": found, "injected": drive.injected}
    print(json.dumps({**result, "preemptions": happened["preemptions"], "steps": drive.steps}))


if __name__ == "__main__":
    main(int(sys.argv[2]), *sys.argv[3:])
