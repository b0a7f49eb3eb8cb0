"""vLLM's older model runner (V1): its own request states, block tables and kernels; no model.

`kvlab.vllm.release.prepare_runners` makes it importable.
"""

import inspect
from collections.abc import Iterable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.utils import CpuGpuBuffer

from kvlab.stubs import StandIn
from kvlab.vllm.workload import Workload

# Their packages are stood in for, and so is what these modules take from packages.
gpu_input_batch: Any = import_module("vllm.v1.worker.gpu_input_batch")
gpu_model_runner: Any = import_module("vllm.v1.worker.gpu_model_runner")
_PROCESSORS = "vllm.v1.sample.logits_processor"
gpu_input_batch.BatchUpdateBuilder = import_module(f"{_PROCESSORS}.state").BatchUpdateBuilder
gpu_input_batch.PIN_MEMORY = False
gpu_input_batch.MoveDirectionality = import_module(f"{_PROCESSORS}.interface").MoveDirectionality
block_table: Any = import_module("vllm.v1.worker.block_table")
block_table.get_dcp_group = block_table.get_pcp_group = lambda: SimpleNamespace(world_size=1, rank_in_group=0)
gpu_model_runner.mamba_utils = import_module("vllm.v1.worker.mamba_utils")
gpu_model_runner.get_pp_group = lambda: SimpleNamespace(is_last_rank=True)

INTS = (
    "query_pos",
    "query_start_loc",
    "req_indices",
    "prev_positions",
    "num_scheduled_tokens",
    "num_accepted_tokens",
    "num_decode_draft_tokens",
    "prev_num_draft_tokens",
)

GPUModelRunner: Any = gpu_model_runner.GPUModelRunner

GREEDY = SimpleNamespace(
    **dict.fromkeys(("logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words_token_ids", "prompt_logprobs")),
    **dict.fromkeys(("temperature", "top_k", "frequency_penalty", "presence_penalty"), 0),
    **dict.fromkeys(("top_p", "repetition_penalty"), 1.0),
    sampling_type=None,
)
"""How all sample."""


class RunnerV1(GPUModelRunner):  # type: ignore[misc]
    """The release's model runner with what preparing a step needs; anything else is stood in for, and false."""

    speculative_config: Any = None
    num_accepted_tokens_event: Any = None
    lora_config = _pp_recv_work = None
    uses_mrope = use_async_spec_decode = use_async_scheduling = is_pooling_model = enable_prompt_embeds = False
    uses_xdrope_dim = 0

    def __init__(self, work: Workload) -> None:
        cpu = torch.device("cpu")
        self.device = cpu
        self.requests: dict[str, Any] = {}
        self.num_prompt_logprobs: dict[str, int] = {}
        self.encoder_cache: dict[str, Any] = {}
        sizes = [size for _, size, _ in work.groups]
        older = {"kernel_block_sizes": sizes, "pin_memory": False}  # which 0.33.0 and 0.26.0 do not take
        takes = inspect.signature(gpu_input_batch.InputBatch).parameters
        self.input_batch = gpu_input_batch.InputBatch(
            max_num_reqs=work.running,
            max_model_len=work.longest,
            max_num_batched_tokens=work.budget,
            device=cpu,
            vocab_size=100,
            block_sizes=sizes,
            max_num_blocks_per_req=[-(-work.longest // size) + 1 + work.drafts for size in sizes],
            **{name: value for name, value in older.items() if name in takes},
        )
        batch = self.input_batch
        # There is no sampler.
        batch.refresh_metadata = lambda: batch.batch_update_builder.get_and_reset(batch.num_reqs)
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[])
        most = max(work.budget, work.longest, work.running) + 1
        self.arange_np = np.arange(most, dtype=np.int64)
        for name in (*INTS, "input_ids"):
            setattr(self, name, CpuGpuBuffer(most, dtype=torch.int32, device=cpu, pin_memory=False))
        self.query_pos = CpuGpuBuffer(most, dtype=torch.int64, device=cpu, pin_memory=False)
        self.discard_request_mask = CpuGpuBuffer(most, dtype=torch.bool, device=cpu, pin_memory=False)
        self.positions = torch.zeros(most, dtype=torch.int64)
        for name in ("num_computed_tokens", "seq_lens", "optimistic_seq_lens_cpu"):
            setattr(self, name, torch.zeros(most, dtype=torch.int32))

    def __getattr__(self, name: str) -> Any:
        return StandIn()

    def prepare(self, output: Any) -> Any:
        """The part of `execute_model` before the model; the requests of the step."""
        for new in output.scheduled_new_reqs:
            new.sampling_params = GREEDY
        self._update_states(output)
        if not output.total_num_scheduled_tokens:
            return None
        names = list(self.input_batch.req_ids)
        self._prepare_inputs(output, np.array([output.num_scheduled_tokens[name] for name in names], dtype=np.int32))
        return names

    def keep(self, names: list[str], sampled: dict[str, list[int]]) -> None:
        """Its handling of the tokens of a step."""
        batch = self.input_batch
        for index, name in enumerate(names):
            tokens = sampled.get(name, [])
            start = int(batch.num_tokens_no_spec[index])
            batch.token_ids_cpu[index, start : start + len(tokens)] = tokens
            batch.num_tokens_no_spec[index] += len(tokens)
            self.requests[name].output_token_ids.extend(tokens)

    def computed(self, names: Iterable[str]) -> Iterable[tuple[int, int]]:
        """Where in the tables these requests stand, and how much of each is computed."""
        batch = self.input_batch
        for name in names:
            if name in batch.req_id_to_index:
                index = batch.req_id_to_index[name]
                yield index, int(batch.num_computed_tokens_cpu[index])

    def swap(self, index: int) -> None:
        """The first two blocks of a request change places."""
        table = self.input_batch.block_table[0].block_table.np
        table[index, :2] = table[index, 1::-1]

    def slot_mappings(self) -> tuple[Any, str]:
        """Where slot mappings are computed."""
        return self.input_batch.block_table, "compute_slot_mapping"

    def off_by_one(self) -> None:
        """All of them are one slot off."""
        for table in self.input_batch.block_table.block_tables:
            mapping = table.slot_mapping.gpu
            mapping[mapping >= 0] += 1
