"""SGLang's own canary kernels, doing what `benchmarks/canary.py` measures: the head of one forward pass."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from benchmarks.device_cases import Case

from kvlab.sglang.adapter.finder import REAL, STOOD_IN, version_in
from kvlab.stubs import importable


class Peer:
    """One pass over requests whose slots are given: plan, verify and write, in pre-allocated plans as in the engine."""

    def __init__(self, folder: Path, slots: Any, length: int, new: int) -> None:
        """`slots` are int64 [requests, positions]; `length` positions were written before the pass, which writes `new`.

        Raises:
            EngineError: there is no release in the folder.
            ImportError: it has no canary, or something that it imports is missing.
        """
        self.version = version_in(folder)
        os.environ.setdefault("TRITON_INTERPRET", "0")
        stubs = [name for name in STOOD_IN if name != "sglang.kernels.jit"]  # which compiles the canary's kernels
        importable("sglang", "SGLang release", folder, holds="srt/mem_cache", stubs=stubs, real=REAL)
        base = "sglang.kernels.ops.kv_canary"
        self._plan = import_module(f"{base}.plan.api").launch_canary_plan_kernels
        self._verify = import_module(f"{base}.verify")
        self._write = import_module(f"{base}.write")
        self._consts: Any = import_module(f"{base}.consts")
        self._device = slots.device
        self._slots = slots
        self._batch = len(slots)
        # Row 0 of the table and slot 0 stand for padding.
        self._table = torch.zeros((self._batch + 1, slots.shape[1]), dtype=torch.int32, device=self._device)
        self._table[1:] = slots
        self._rows = torch.arange(1, self._batch + 1, dtype=torch.int64, device=self._device)
        self._context = self._made(int(slots.max()) + 1)
        self.violations: Any = self._context.violation_write_index
        self._plans = (
            self._verify.VerifyPlan.allocate(verify_capacity=max(1, self._batch * length), device=self._device),
            self._write.WritePlan.allocate(write_req_capacity=self._batch, device=self._device),
        )
        if length:
            self._pass(0, length)()
        self._timed = self._pass(length, length + new)

    def _made(self, slots: int) -> Any:
        def one(dtype: torch.dtype) -> Any:
            return torch.zeros(1, dtype=dtype, device=self._device)

        return self._verify.VerifyOrWriteContext(
            canary_buf=torch.zeros((slots, self._verify.CANARY_SLOT_BYTES), dtype=torch.uint8, device=self._device),
            kernel_kind=self._verify.CanaryLaunchTag.HEAD_K_FULL,
            violation_ring=torch.zeros((64, self._consts.VIOLATION_FIELDS), dtype=torch.int64, device=self._device),
            violation_write_index=one(torch.int32),
            slot_run_counter=one(torch.int64),
            kernel_run_counter=one(torch.int64),
            real_kv_sources=(),
            real_kv_hash_mode=self._consts.RealKvHashMode.NONE,
            enable_chain_position_assert=one(torch.int32),
        )

    def _pass(self, start: int, stop: int) -> Any:
        count = stop - start
        starts = torch.full((self._batch,), start, dtype=torch.int64, device=self._device)
        counts = torch.full_like(starts, count)
        tokens = torch.full((self._batch * count,), 7, dtype=torch.int64, device=self._device)
        positions = torch.arange(start, stop, dtype=torch.int64, device=self._device).repeat(self._batch)
        new_slots = self._slots[:, start:stop].contiguous().flatten()
        verify, write = self._plans

        def run() -> None:
            self._plan(
                verify_plan_out=verify,
                write_plan_out=write,
                req_pool_indices=self._rows,
                prefix_lens=starts,
                extend_seq_lens=counts,
                req_to_token=self._table,
                swa_window_size=0,
                full_to_swa_index_mapping=None,
                verify_capacity=len(verify.verify_slot_indices),
                req_to_verify_expected_tokens=None,
                req_to_verify_expected_tokens_valid_lens=None,
                kv_token_id_vs_position_offset=0,
            )
            self._verify.launch_canary_verify_kernel(
                context=self._context, plan=verify, check_verify_expected_token=False
            )
            self._write.launch_canary_write_kernel(
                context=self._context,
                plan=write,
                input_ids=tokens,
                positions=positions,
                out_cache_loc=new_slots,
                enable_write_input_assert=False,
                expected_input_tokens=None,
                expected_input_positions=None,
            )

        return run

    def silent(self) -> bool:
        """Whether its kernels ran, and found nothing."""
        return int(self._context.kernel_run_counter) > 0 and int(self.violations) == 0

    def case(self) -> Case:
        """The pass, as often as it is asked for."""
        return Case(lambda: None, lambda _: self._timed())
