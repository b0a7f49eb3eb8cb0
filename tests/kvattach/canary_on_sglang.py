"""Drives what SGLang's model runner is given for each pass, with the canary's hooks in it.

python -m tests.kvattach.canary_on_sglang FOLDER [WHAT]

The release's own `ForwardBatch.init_new`, rows and paged allocator; requests, their batches and the model runner are
fakes. WHAT is put into it: `swap`, two slots of a row before one pass; `stale`, a row that is written over by another
request while the first one still runs. Prints what was found, as JSON.
"""

import inspect
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from kvattach.canary.switch import setting
from kvlab.sglang.adapter.finder import REAL, STOOD_IN
from kvlab.stubs import StandIn, importable

folder = Path(sys.argv[1])
FORWARD = "sglang.srt.model_executor.forward_batch_info"
importable("sglang", "SGLang release", folder, holds="srt/mem_cache", stubs=STOOD_IN, real=(*REAL, FORWARD))

import torch  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode  # noqa: E402

from kvattach.canary.sglang import SglangCanary  # noqa: E402

# It asks how many ranks there are.
vars(sys.modules[ForwardBatch.__module__])["enable_num_token_non_padded"] = lambda *_: False

PAGE, CONTEXT = 4, 64
_ASKED = inspect.signature(ForwardBatch.init_new).parameters
MORE = {name: False for name in ("return_hidden_states_before_norm",) if name in _ASKED}
"""Attributes that releases from 0.5.16 on read besides."""


class Batch(SimpleNamespace):
    """A scheduler's batch; what is not set is `None`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Runner(StandIn):
    """A model runner without a model."""

    def __init__(self) -> None:
        cpu = "cpu"
        self.device, self.is_draft_worker, self.lora_manager = cpu, False, None
        self.prefill_attention_backend_str = self.attention_backend = "triton"
        self.req_to_token_pool = ReqToTokenPool(8, CONTEXT, cpu, enable_memory_saver=False)
        self.token_to_kv_pool_allocator = PagedTokenToKVPoolAllocator(
            64 * PAGE, PAGE, torch.float16, cpu, None, need_sort=False
        )
        self.server_args = Batch(disaggregation_mode="null", enable_hierarchical_cache=False)
        self.model_config = Batch(model_is_mrope=False)
        self.sliding_window_size, self.dcp_size = None, 1

    def forward(self, batch: Any) -> None:
        """The model would run here."""


class Drive:
    """Requests that come, share the first pages of a prompt, decode and end."""

    def __init__(self, fault: str) -> None:
        self.runner, self.fault, self.injected, self.passes = Runner(), fault, 0, 0
        self.draw = random.Random(5)
        self.free_rows = list(range(1, 8))
        self.shared = [self.draw.randrange(1000) for _ in range(2 * PAGE)]
        self.shared_slots: Any = None
        self.running: list[Any] = []

    def pass_(self, mode: Any, reqs: list[Any], starts: list[int], new: list[list[int]], slots: Any) -> None:
        rows = self.runner.req_to_token_pool.req_to_token
        lengths = [start + len(tokens) for start, tokens in zip(starts, new, strict=True)]
        batch = Batch(
            forward_mode=mode,
            input_ids=torch.tensor([token for tokens in new for token in tokens]),
            req_pool_indices=torch.tensor([req.req_pool_idx for req in reqs]),
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            orig_seq_lens=torch.tensor(lengths),
            out_cache_loc=slots,
            seq_lens_sum=sum(lengths),
            reqs=reqs,
            extend_lens=[len(tokens) for tokens in new],
            extend_seq_lens=[len(tokens) for tokens in new],
            prefix_lens=starts,
            extend_prefix_lens=starts,
            extend_num_tokens=sum(map(len, new)),
            extend_logprob_start_lens=[0] * len(reqs),
            return_hidden_states_mode=0,
            capture_hidden_mode=0,
        )
        at = 0
        for req, start, tokens in zip(reqs, starts, new, strict=True):
            rows[req.req_pool_idx, start : start + len(tokens)] = slots[at : at + len(tokens)].to(torch.int32)
            at += len(tokens)
        made = ForwardBatch.init_new(batch, self.runner, **MORE)
        self.passes += 1
        if self.fault and not self.injected and self.passes > 8:
            self.put_in(reqs, starts, rows)
        self.runner.forward(made)

    def put_in(self, reqs: list[Any], starts: list[int], rows: Any) -> None:
        for req, start in zip(reqs, starts, strict=True):
            if start > 3 * PAGE:
                row = rows[req.req_pool_idx]
                if self.fault == "swap":
                    row[[1, 9]] = row[[9, 1]]
                else:
                    row[2 * PAGE :] = rows[next(other for other in reqs if other is not req).req_pool_idx, 2 * PAGE :]
                self.injected = self.passes
                return

    def arrive(self, number: int) -> None:
        prompt = [*self.shared, *(self.draw.randrange(1000) for _ in range(self.draw.randrange(1, 12)))]
        req = Batch(rid=f"r{number}", origin_input_ids=prompt, output_ids=[], req_pool_idx=self.free_rows.pop(0))
        start = 0
        if self.shared_slots is not None:
            start = len(self.shared)
            self.runner.req_to_token_pool.req_to_token[req.req_pool_idx, :start] = self.shared_slots
        slots = self.runner.token_to_kv_pool_allocator.alloc(-(-(len(prompt) - start) // PAGE) * PAGE)
        req.room, req.length = slots[len(prompt) - start :], len(prompt)
        self.pass_(ForwardMode.EXTEND, [req], [start], [prompt[start:]], slots[: len(prompt) - start])
        if self.shared_slots is None:
            self.shared_slots = slots[: len(self.shared)].to(torch.int32)
        req.output_ids.append(self.draw.randrange(1000))
        self.running.append(req)

    def decode(self) -> None:
        slots = []
        for req in self.running:
            if not len(req.room):
                req.room = self.runner.token_to_kv_pool_allocator.alloc(PAGE)
            slots.append(req.room[:1])
            req.room = req.room[1:]
        starts, tokens = [req.length for req in self.running], [[req.output_ids[-1]] for req in self.running]
        self.pass_(ForwardMode.DECODE, list(self.running), starts, tokens, torch.cat(slots))
        for req in self.running:
            req.length += 1
            req.output_ids.append(self.draw.randrange(1000))

    def run(self) -> None:
        for number in range(12):
            self.arrive(number)
            for _ in range(3):
                self.decode()
            while len(self.running) > 4:
                gone = self.running.pop(0)
                rows = self.runner.req_to_token_pool.req_to_token
                private = rows[gone.req_pool_idx, len(self.shared) : gone.length].to(torch.int64)
                if gone.rid != "r0":
                    self.runner.token_to_kv_pool_allocator.free(private)
                self.free_rows.append(gone.req_pool_idx)


def main(fault: str = "") -> None:
    said = setting({"KVSPEC_CANARY": "log"})
    assert said is not None
    hooks = SglangCanary(Runner, ForwardBatch, said)
    drive = Drive(fault)
    drive.run()
    found = [] if hooks.watched is None else [str(one) for one in hooks.watched.found]
    launches = 0 if hooks.watched is None else hooks.watched.canary.launches
    print(json.dumps({"launches": launches, "problem": hooks.problem, "found": found, "injected": drive.injected}))


if __name__ == "__main__":
    main(*sys.argv[2:])
