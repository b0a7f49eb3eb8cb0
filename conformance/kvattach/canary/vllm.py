"""The canary on vLLM's model runner (V2): the inputs of a step on the device, before the model runs.

The hooks, in `vllm.v1.worker.gpu.model_runner.GPUModelRunner`:

    initialize_kv_cache     the groups of the KV cache: one pool each
    add_requests            the tokens of requests that come, or come back after a preemption
    update_requests         blocks that are copied before the step (copy on write)
    prepare_attn            token ids, positions, block tables and slot mappings of the step: verified and stamped
    execute_model           the step is queued: real bytes are noted behind it
    _remove_request         a request is gone
"""

import logging
from typing import Any

import numpy as np
import torch

from kvattach.canary.switch import Setting
from kvattach.canary.watch import CanaryHooks, Watch
from kvcuda.canary import Pass, Places, Pool, Span, spans_of

_log = logging.getLogger("kvspec")


def attach(module: Any, said: Setting) -> None:
    """Hook the model runner in `vllm.v1.worker.gpu.model_runner`, which has been imported."""
    VllmCanary(module.GPUModelRunner, said)


class VllmCanary(CanaryHooks):
    """Hooks in one process's model runner."""

    def __init__(self, runner_class: Any, setting: Setting) -> None:
        """Hook the class of model runners. The canary is made together with the KV cache."""
        super().__init__()
        self._setting = setting
        self.watched: Watch | None = None
        self._groups: list[int] = []
        self.hook(runner_class, "initialize_kv_cache", after=self._initialized)
        self.hook(runner_class, "execute_model", after=self._executed)
        self._hook_steps(runner_class)

    def _hook_steps(self, runner_class: Any) -> None:
        self.hook(runner_class, "add_requests", after=self._added)
        self.hook(runner_class, "update_requests", after=self._copies)
        self.hook(runner_class, "prepare_attn", after=self._prepared)
        self.hook(runner_class, "_remove_request", after=self._removed)

    def _initialized(self, _: None, __: None, runner: Any, *___: Any, **____: Any) -> None:
        """Make the canary for a runner's KV cache, unless the server also writes the cache elsewhere."""
        config = runner.vllm_config
        reasons = {
            "a KV connector writes pages": config.kv_transfer_config is not None,
            "context parallelism splits pages over ranks": runner.dcp_size > 1
            or getattr(runner, "pcp_manager", None) is not None,
            "the batch is split on the device (adaptive verification)": getattr(runner, "adaptive_verification", None)
            is not None,
            "the host learns late which drafts were accepted": getattr(runner, "use_async_spec_decode", False),
        }
        for reason, holds in reasons.items():
            if holds:
                _log.warning("kvspec: the canary does not watch this vLLM: %s", reason)
                return
        self.watch_cache(runner.kv_cache_config, runner.max_num_reqs, getattr(runner, "kv_caches", ()))

    def watch_cache(self, kv_cache_config: Any, requests: int, caches: Any = ()) -> None:
        """Make the canary: a pool for each group that has slots."""
        pools = []
        for number, group in enumerate(kv_cache_config.kv_cache_groups):
            spec = getattr(group.kv_cache_spec, "first_spec", group.kv_cache_spec)
            size, window = spec.block_size, getattr(spec, "sliding_window", None)
            if not getattr(spec, "uses_slot_mapping", hasattr(spec, "num_kv_heads")):
                _log.info("kvspec: the canary does not watch group %d: it has no slots of tokens", number)
                continue
            spans = self._spans(caches, kv_cache_config.num_blocks, size) if not self._groups else []
            self._groups.append(number)
            # Attention reads `sliding_window` positions, including the query's own.
            reads = window - 1 if window else 0
            slots = kv_cache_config.num_blocks * size
            pools.append(Pool(f"group {number}", slots, size, block_tables=True, window=reads, spans=spans))
        self.watched = Watch("vLLM", self._setting, pools, requests=requests, passes=len(pools))

    def _spans(self, caches: Any, blocks: int, size: int) -> list[Span]:
        """The bytes of each slot in each layer, for caches whose dimensions show the blocks and the slots."""
        if not self._setting.real:
            return []
        spans = []
        for cache in caches:
            dims = list(cache.shape) if isinstance(cache, torch.Tensor) else []
            if dims.count(blocks) != 1 or dims.count(size) != 1:
                _log.info("kvspec: the canary does not look at the bytes of a cache of shape %s", dims)
                continue
            page, slot = dims.index(blocks), dims.index(size)
            halves = cache.unbind(dims.index(2)) if dims.count(2) == 1 else [cache]
            for half in halves:
                shift = 1 if dims.count(2) == 1 else 0
                before = [dim - (shift and dims.index(2) < dim) for dim in (page, slot)]
                spans += spans_of(half, page_dim=before[0], slot_dim=before[1], whole=self._setting.real == "all")
        return spans

    def _added(self, _: None, __: None, ___: Any, scheduler_output: Any) -> None:
        if self.watched is not None:
            for new in scheduler_output.scheduled_new_reqs:
                self.watched.prompts.begin(new.req_id, list(new.prefill_token_ids))

    def _copies(self, _: None, __: None, runner: Any, scheduler_output: Any) -> None:
        """Note blocks that are copied within the cache before the step."""
        copies = getattr(scheduler_output, "kv_cache_block_copies", None)
        if self.watched is None or not copies:
            return
        for pool in self.watched.canary.pools:
            offsets = torch.arange(pool.page_size, device=runner.device)
            pairs = torch.tensor([[one.src_block_id, one.dst_block_id] for one in copies], device=runner.device)
            source, target = ((pairs[:, side, None] * pool.page_size + offsets).flatten() for side in (0, 1))
            self.watched.canary.copy(pool.name, source, pool.name, target)

    def _prepared(self, _: None, answer: tuple[Any, Any], __: Any, batch: Any) -> None:
        """The step's inputs are on the device."""
        watch = self.watched
        if watch is None:
            return
        tables, slot_mappings = answer
        requests = batch.num_reqs
        places = []
        for number in self._groups:
            table = tables[number]
            offsets = np.arange(requests, dtype=np.int64) * table.stride(0)
            places.append(Places(table, offsets, slot_mappings[number]))
        names = batch.req_ids[:requests]
        starts = batch.num_computed_tokens_np[:requests].tolist()
        counts = batch.num_scheduled_tokens[:requests].astype(np.int64)
        longest = int(batch.seq_lens_cpu_upper_bound[:requests].max())
        known = watch.prompts.known(names, starts)
        watch.before(Pass(names, counts, batch.input_ids, batch.positions, places, known, longest))

    def _executed(self, _: None, __: Any, ___: Any, *____: Any, **_____: Any) -> None:
        if self.watched is not None:
            self.watched.after()

    def _removed(self, _: None, __: Any, ___: Any, req_id: str) -> None:
        if self.watched is not None:
            self.watched.leave(req_id)
