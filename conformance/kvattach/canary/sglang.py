"""The canary on SGLang's model runner: a forward batch on the device, before the model runs.

The hooks:

    ForwardBatch.init_new     the requests of a batch, and their tokens as far as the host has them
    ModelRunner.forward       token ids, positions, slots of new tokens, `req_to_token`: verified and stamped; real
                              bytes are noted after it

Batches without requests, for warm-up and graph capture, are not checked.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvattach.canary.switch import Setting
from kvattach.canary.watch import CanaryHooks, Watch
from kvcuda.canary import Known, Pass, Places, Pool, spans_of
from kvcuda.canary.chain import extended

_log = logging.getLogger("kvspec")


def attach(module: Any, said: Setting) -> None:
    """Hook the model runner in `sglang.srt.model_executor.model_runner`, which has been imported."""
    SglangCanary(module.ModelRunner, module.ForwardBatch, said)


class SglangCanary(CanaryHooks):
    """Hooks in one process's model runner."""

    def __init__(self, runner_class: Any, batch_class: Any, said: Setting) -> None:
        """Hook both classes; the canary is made at the first pass."""
        super().__init__()
        self._setting = said
        self._begun = False
        self.watched: Watch | None = None
        self._table: Any = None
        self._owners: dict[int, str] = {}
        """Row of the table -> its request."""
        self.hook(batch_class, "init_new", after=self._made)
        self.hook(runner_class, "forward", before=self._before, after=self._after)

    def _made(self, _: None, made: Any, batch: Any, *__: Any, **___: Any) -> None:
        made.kvspec_reqs = list(batch.reqs)

    def _before(self, runner: Any, batch: Any, *_: Any, **__: Any) -> None:
        reqs = getattr(batch, "kvspec_reqs", None)
        mode = batch.forward_mode
        if runner.is_draft_worker or not reqs or mode.is_idle():
            return
        if not self._begun:
            self._begun = True
            self._begin(runner)
        watch = self.watched
        if watch is None:
            return
        rows = [_row(req) for req in reqs]
        names = [req.rid for req in reqs]
        for row, name in zip(rows, names, strict=True):
            owner = self._owners.get(row)
            if owner != name:
                if owner is not None:
                    watch.leave(owner)
                self._owners[row] = name
        known: dict[int, Known] = {}
        if mode.is_decode():
            counts = np.ones(len(reqs), dtype=np.int64)
        elif mode.is_extend() and batch.extend_seq_lens_cpu is not None:
            counts = np.array(batch.extend_seq_lens_cpu, dtype=np.int64)
            known = dict(enumerate(map(_known, reqs, batch.extend_prefix_lens_cpu)))
        else:
            raise TypeError(f"a pass in mode {mode}, which the canary does not know")
        virtual = getattr(batch, "out_cache_loc_virtual", None)
        new_slots = virtual if isinstance(virtual, torch.Tensor) else batch.out_cache_loc
        offsets = np.array(rows, dtype=np.int64) * self._table.stride(0)
        places = [Places(self._table, offsets, new_slots)] * watch.canary.passes
        watch.before(Pass(names, counts, batch.input_ids, batch.positions, places, known, self._longest(batch)))

    def _longest(self, batch: Any) -> int:
        lengths = getattr(batch, "seq_lens_cpu", None)
        return int(lengths.max()) if lengths is not None else int(self._table.shape[1])

    def _after(self, *_: Any, **__: Any) -> None:
        if self.watched is not None:
            self.watched.after()

    def _begin(self, runner: Any) -> None:
        """Make the canary, unless the server also writes the cache elsewhere."""
        args, allocator = runner.server_args, runner.token_to_kv_pool_allocator
        reasons = {
            "speculative drafts may be a tree": getattr(args, "speculative_algorithm", None),
            "pages come from a host tier": getattr(args, "enable_hierarchical_cache", False),
            "pages come from another machine": getattr(args, "disaggregation_mode", "null") not in ("null", None),
            "pages are split over ranks": getattr(args, "dcp_size", 1) not in (1, None),
        }
        for reason, holds in reasons.items():
            if holds:
                _log.warning("kvspec: the canary does not watch this SGLang: %s", reason)
                return
        size = allocator.page_size
        translation = getattr(allocator, "full_to_swa_index_mapping", None)
        pools = [Pool("full", allocator.size + size, size)]
        if translation is not None:
            slots = allocator.swa_attn_allocator.size + size
            window = runner.sliding_window_size
            pools.append(Pool("window", slots, size, window=window, translation=translation))
        elif self._setting.real:
            pools[0] = pools[0]._replace(spans=self._spans(allocator.get_kvcache()))
        self._table = runner.req_to_token_pool.req_to_token
        self.watched = Watch("SGLang", self._setting, pools, requests=self._table.shape[0], passes=len(pools))

    def _spans(self, cache: Any) -> list[Any]:
        """The bytes of each slot in each layer. Each layer has a buffer; its first dimension is the slots."""
        whole = self._setting.real == "all"
        found = [getattr(cache, name, ()) for name in ("k_buffer", "v_buffer", "kv_buffer")]
        layers = [layer for buffers in found if isinstance(buffers, list) for layer in buffers]
        return [
            span
            for layer in layers
            if isinstance(layer, torch.Tensor)
            for span in spans_of(layer, page_dim=0, whole=whole)
        ]


def _row(req: Any) -> int:
    """The row of a running request; releases from 0.5.16 on keep it in a record."""
    record = getattr(req, "kv", None)
    row: int = req.req_pool_idx if record is None or not hasattr(record, "req_pool_idx") else record.req_pool_idx
    return row


def _known(req: Any, start: int) -> Known:
    """The known tokens before a prefill: the host has all of them when it launches the prefill."""
    tokens: Sequence[int] = [*req.origin_input_ids, *req.output_ids][:start]
    if len(tokens) < start:
        raise ValueError(f"request {req.rid} begins behind position {start}, and has {len(tokens)} tokens")
    return Known(start - 1, extended(0, tokens, 0), fresh=True)
