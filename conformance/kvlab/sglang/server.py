"""The surroundings of SGLang's scheduler: the server's arguments, the model's worker, and the receiver of answers."""

import random
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.launches import spans
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.sglang.answers import Answers, Watching
from kvlab.sglang.memory import LAYERS, UnifiedMemory
from kvlab.sglang.pools import PoolMemory
from kvlab.sglang.radix_memory import RadixMemory
from kvlab.stubs import Arguments, StandIn
from kvlab.tokens import Tokens
from kvlab.traffic import EOS

AnyMemory = UnifiedMemory | RadixMemory | PoolMemory

MOST_ADAPTERS = 2
"""The most adapters in one batch; the base model counts as one."""

REJECTED = 1
"""The token of a rejected draft."""

_ASKED = {"get_global_server_args", "get_server_args"}
"""Functions that return the server's arguments, in the releases that have them."""


def arguments(**more: Any) -> Arguments:
    """The arguments that all servers here share, and `more`."""
    group = Arguments()
    return Arguments(
        deterministic=group,
        disaggregation_mode="null",
        enable_mamba_extra_buffer=lambda: False,
        enable_mamba_extra_buffer_lazy=lambda: False,
        features=group,
        kernel=group,
        moe=group,
        overlap=group,
        prefill_decode_interval=0,
        radix_eviction_policy="lru",
        skip_tokenizer_init=True,
        stream_interval=1,
        tp_group=group,
        weight_version="default",
        **dict.fromkeys(("attn_cp_size", "dcp_size", "dp_size", "ep_size", "pp_size", "tp_size"), 1),
        **({"mamba": group} | more),
    )


@contextmanager
def configured(release: Release, server: Arguments) -> Iterator[None]:
    """Publish a server's configuration where the release looks for it, while it is driven."""
    with Patches() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("sglang.srt."):
                _configure(patches, module, server)
        context: Any = sys.modules.get("sglang.srt.runtime_context")
        if context is not None and hasattr(context, "RuntimeContext"):
            if hasattr(context.RuntimeContext, "config_bag"):
                patches.set(context.RuntimeContext, "config_bag", lambda *_: server)
            patches.set(context.RuntimeContext, "server_args", property(lambda _: server))
            patches.set(context.ParallelContext, "__getattribute__", lambda one, name: _parallel(one, name, server))
        patches.set(release.torch, "get_device_module", lambda *_: release.torch.cuda)
        yield


def _configure(patches: Patches, module: Any, server: Arguments) -> None:
    for name, value in vars(module).copy().items():
        if name in _ASKED:
            patches.set(module, name, lambda *_: server)
        elif name == "mamba_cache_chunk_size":
            patches.set(module, name, lambda *_: server.page_size)
        elif name == "attention_backends":
            patches.set(module, name, lambda *_: ("torch_native", "torch_native"))
        elif isinstance(value, type) and issubclass(value, StandIn) and name.startswith("get_"):
            # There is only one process.
            if name.endswith("_size"):
                patches.set(module, name, lambda *_: 1)
            elif name.endswith("_rank"):
                patches.set(module, name, lambda *_: 0)


def _parallel(context: Any, name: str, server: Arguments) -> Any:
    """A value of the parallel configuration, for a single process."""
    if name == "pp_max_micro_batch_size":
        return server.max_running_requests
    if name in vars(server) or name.endswith("_group") or name.startswith("enable_"):
        return getattr(server, name)
    if name.startswith("_") or not name.endswith(("_rank", "_size", "_enabled")):
        return object.__getattribute__(context, name)
    return int(name.endswith("_size"))


class Worker:
    """Stands in for `TpModelWorker`: a forward pass is queued, waits for its load layer by layer, and samples."""

    def __init__(
        self, release: Release, memory: AnyMemory, rng: random.Random, tokens: Tokens, overlap: bool, drafts: int = 0
    ) -> None:
        """Make the forward stream of one memory. A step verifies `drafts` tokens of each request; 0: none."""
        self._drafts = drafts
        self._release, self._rng, self._tokens, self._overlap = release, rng, tokens, overlap
        self._rows = memory.rows
        self._counter = None if memory.controller is None else memory.controller.layer_done_counter
        self.forward_stream = Stream()
        self.reads_rows: Callable[[Any], None] = lambda *_: None
        self.launched: Callable[[Any, list[int] | None], Callable[[], None] | None] = lambda *_: None
        """Called when a pass is queued; its result is called when the pass runs."""
        adapters = SimpleNamespace(validate_lora_batch=lambda asked: len(asked) <= MOST_ADAPTERS)
        self.model_runner = SimpleNamespace(
            attn_backend=SimpleNamespace(needs_cpu_seq_lens=True),
            prefill_aware_swa=False,
            canary_manager=None,
            lora_manager=adapters,
        )
        self.load_lora_adapter = self.unload_lora_adapter = lambda *_: SimpleNamespace(success=True)
        weights = SimpleNamespace(update_weights_from_disk=lambda *_, **__: (True, ""))
        self.weight_update_runners = lambda: [("target", SimpleNamespace(weight_updater=weights))]
        self.last_shared_read_runner = Arguments()
        self.war_fastpath_runner = Arguments()

    def forward_batch_generation(self, batch: Any, *_: Any, **more: Any) -> Any:
        """Queue one forward pass."""
        graph = batch.forward_mode.is_decode() and self._rng.random() < 0.8
        if graph:
            # A graph reads the memory that it shares with the scheduler before its layers. Without a graph later writes
            # wait for the whole pass.
            self.reads_rows(batch)
            read = Event()
            read.record()
            self.last_shared_read_runner.shared_read_done_event = read
            self.war_fastpath_runner.war_fastpath_read_done_event = read
        if self._counter is not None:
            self._counter.set_consumer(batch.hicache_consumer_index)
        for layer in range(LAYERS):
            if self._counter is not None:
                self._counter.wait_until(layer)
            Stream.current.queue()
        if not graph:
            self.reads_rows(batch)
        self._prepare_states(batch)
        verified = None
        if self._drafts and not batch.forward_mode.is_extend():
            verified = [self._rng.randint(1, self._drafts) for _ in batch.reqs]
        self._consume(batch)
        Stream.current.queue(self.launched(batch, verified))
        if not self._overlap:
            # The scheduler reads the result at once.
            Stream.current.synchronize()
        return self._sampled(batch, verified, **more)

    def _consume(self, batch: Any) -> None:
        """Compare the inputs of a pass with the expected tokens. A step with drafts takes only the verified token."""
        starts, stops = spans(batch)
        verifies = self._drafts and not batch.forward_mode.is_extend()
        taken = (batch.spec_info.bonus_tokens if verifies else batch.input_ids).tolist()
        for req, start, stop in zip(batch.reqs, starts, stops, strict=True):
            count = 1 if verifies else stop - start
            # A refused request still runs, with one token instead of its prompt.
            if not getattr(req, "to_finish", None):
                self._tokens.consume(req.rid, stop if verifies else start, taken[:count], "run_batch")
            del taken[:count]

    def _sampled(self, batch: Any, verified: list[int] | None, on_publish: Any = None, **_: Any) -> Any:
        """The result of a pass: a token for each request, or its verified tokens followed by rejected ones."""
        torch, made = self._release.torch, self._release.results.GenerationBatchResult
        width = self._drafts if verified else 1
        firsts = batch.seq_lens_cpu.tolist()
        if verified is None:
            tokens = [[self._tokens.sample(req.rid, at)] for req, at in zip(batch.reqs, firsts, strict=True)]
        else:
            tokens = [
                [self._tokens.sample(req.rid, at + 1 + step) for step in range(count)] + [REJECTED] * (width - count)
                for req, at, count in zip(batch.reqs, firsts, verified, strict=True)
            ]
        flat = torch.tensor([token for row in tokens for token in row], dtype=torch.int64)
        if not self._drafts:
            return made(logits_output=Arguments(), next_token_ids=flat)
        lengths = batch.seq_lens if verified is None else batch.seq_lens + torch.tensor(verified)
        last = [row[(count or 1) - 1] for row, count in zip(tokens, verified or [1] * len(tokens), strict=True)]
        if on_publish is not None:
            on_publish(lengths)
        drafts = self._release.drafts.EagleDraftInput(
            topk_p=torch.zeros((len(tokens), 1)),
            topk_index=torch.zeros((len(tokens), 1), dtype=torch.int64),
            bonus_tokens=torch.tensor(last, dtype=torch.int64),
        )
        return made(
            logits_output=Arguments(),
            next_token_ids=flat,
            accept_lens=None if verified is None else torch.tensor(verified),
            speculative_num_draft_tokens=None if verified is None else self._drafts,
            new_seq_lens=lengths,
            next_draft_input=drafts,
        )

    def on_verify_complete_cpu(self, *_: Any, **__: Any) -> None:
        """Do nothing: the length of drafts is fixed."""

    def _prepare_states(self, batch: Any) -> None:
        """As the model's runner before a pass: clear new states, and copy matched ones."""
        pool = getattr(self._rows, "mamba_pool", None)
        if pool is None:
            return
        if not batch.forward_mode.is_extend():
            if self._drafts:
                self._release.verifying.prepare_mamba_track_for_verify(batch)
            return
        if batch.mamba_clear_indices is not None:
            pool.clear_slots(batch.mamba_clear_indices)
        if batch.mamba_cow_src_indices is not None:
            self._rows.copy_mamba_state(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)


def scheduler(release: Release, memory: AnyMemory, worker: Worker, server: Arguments, watching: Watching) -> Any:
    """The release's own scheduler, with this memory and worker.

    Stubs replace other processes, metrics, and the parts for models of other kinds.
    """
    base: Any = release.scheduler.Scheduler
    answers = Answers(watching)

    class Alone(base):  # type: ignore[misc]
        """The scheduler, without the lines that start a server."""

        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return StandIn()

        def recv_requests(self, *_: Any) -> list[Any]:
            return watching.receive()

        def stream_output(self, reqs: list[Any], *_: Any) -> None:
            answers.stream_output(reqs)

        def maybe_prepare_mlp_sync_batch(self, batch: Any, **_: Any) -> Any:
            return batch

        def _maybe_prepare_ngram_embedding(self, batch: Any) -> Any:
            return batch

        def publish_load_snapshot(self, *_: Any, **__: Any) -> None:
            pass

        def _record_step_counters(self, *_: Any) -> None:
            pass

    made = Alone()
    _set_attributes(made, release, memory, worker, server)
    made.ipc_channels = SimpleNamespace(send_to_tokenizer=answers)
    made.send_to_tokenizer = made.output_streamer = answers
    made.request_receiver = SimpleNamespace(recv_requests=watching.receive)
    made.dp_attn_adapter = SimpleNamespace(
        maybe_prepare_mlp_sync_batch=lambda batch, **_: batch,
        maybe_convert_decode_to_extend=lambda batch: batch,
        drop_sync_wait_carry=lambda: None,
    )
    made.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, **_: batch)
    made.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda **_: 0, get_loads=lambda *_: None)
    made.scheduler_stage_metrics = SimpleNamespace(record=lambda *_: nullcontext())
    made.metrics_reporter = StandIn()
    for counts in (made, made.metrics_reporter):
        counts.num_generated_tokens = counts.forward_ct_decode = counts.num_retracted_reqs = 0
    for part in (
        "running_status",
        "chunked_prefill",
        "schedule_policy",
        "overlap",
        "weight_updater",
        "request_dispatcher",
        "pool_stats_observer",
        "invariant_checker",
        "batch_result_processor",
    ):
        # A stub takes the calls for parts that a release does not have.
        getattr(made, f"init_{part}")()
    return made


def _set_attributes(made: Any, release: Release, memory: AnyMemory, worker: Worker, server: Arguments) -> None:
    """Set the scheduler's attributes that come from its arguments, its model and its worker."""
    shape, windows = memory.shape, memory.window_pages
    values = {
        "cur_batch": None,
        "device": "cpu",
        "disaggregation_mode": release.disaggregation.DisaggregationMode(server.disaggregation_mode),
        "enable_hierarchical_cache": server.enable_hierarchical_cache,
        "enable_lora": server.enable_lora,
        "enable_overlap": not server.disable_overlap_schedule,
        "enable_priority_scheduling": server.enable_priority_scheduling,
        "forward_stream": worker.forward_stream,
        "full_tokens_per_layer": shape.pages * shape.page_size if windows else None,
        "is_generation": True,
        "is_hybrid_ssm": getattr(memory.rows, "mamba_allocator", None) is not None,
        "is_hybrid_swa": bool(windows),
        "max_prefill_tokens": server.max_prefill_tokens,
        "max_req_input_len": shape.context - 2,
        "max_req_len": shape.context - 1,
        "max_running_requests": server.max_running_requests,
        "max_total_num_tokens": shape.pages * shape.page_size,
        "model_config": Arguments(
            vocab_size=1 << 30,
            hf_eos_token_id={EOS},
            hf_text_config=SimpleNamespace(mamba_chunk_size=shape.page_size),
            is_generation=True,
            context_len=shape.context,
        ),
        "model_worker": worker,
        "page_size": shape.page_size,
        "pp_group": SimpleNamespace(is_first_rank=True, is_last_rank=True),
        "priority_scheduling_preemption_threshold": server.priority_scheduling_preemption_threshold,
        "processed_tokens_counter": 0,
        "req_to_token_pool": memory.rows,
        "schedule_policy": server.schedule_policy,
        "schedule_stream": Stream.current,
        "server_args": server,
        "sliding_window_size": memory.window,
        "spec_algorithm": release.speculative.SpeculativeAlgorithm.from_string(server.speculative_algorithm),
        "swa_tokens_per_layer": windows * shape.page_size if windows else None,
        "token_to_kv_pool_allocator": memory.allocator,
        "tp_worker": worker,
        "tree_cache": memory.cache,
        "_pause_intervals": [],
        "_pause_started_at": None,
        "_war_barrier_enabled": True,
    }
    absent = (
        "_mm_processor",
        "enable_session_radix_cache",
        "decode_offload_manager",
        "dllm_config",
        "draft_worker",
        "dynamic_chunk_sizer",
        "external_corpus_manager",
        "forward_sleep_time",
        "hisparse_coordinator",
        "lora_drainer",
        "max_new_tokens_limit",
        "max_queued_requests",
        "min_free_slots_delayer",
        "mm_receiver",
        "rust_server",
        "scripted_scheduler_hook",
        "tokenizer",
        "truncation_align_size",
    )
    for name, value in (values | dict.fromkeys(absent)).items():
        setattr(made, name, value)
    for name in ("attn_cp", "attn_tp", "dp", "pp", "tp"):
        setattr(made, f"{name}_size", 1)
        setattr(made, f"{name}_rank", 0)


def request(
    release: Release,
    rid: str,
    tokens: list[int],
    *,
    output: int,
    ignore_eos: bool,
    priority: int | None,
    session: Any = None,
    images: Any = None,
    **named: Any,
) -> Any:
    """A request as the tokenizer sends it, for up to `output` tokens. `session`: the parameters of its session, if any.

    `images` are those of its placeholders. `named` are the fields of its cache key besides the tokens.
    """
    sampling = release.sampling.SamplingParams(max_new_tokens=output, ignore_eos=ignore_eos)
    sampling.normalize(None)
    arrays = hasattr(release.batches.Req, "get_fill_ids")
    return release.messages.TokenizedGenerateReqInput(
        rid=rid,
        input_text="",
        input_ids=array("q", tokens) if arrays else tokens,
        input_embeds=None,
        mm_inputs=images,
        token_type_ids=None,
        sampling_params=sampling,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        priority=priority,
        session_params=session,
        **named,
    )
