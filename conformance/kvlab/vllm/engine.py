"""vLLM's own scheduler on a CPU, without a model: configured by plain namespaces."""

import importlib
import inspect
import math
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

from kvlab.stubs import Arguments
from kvlab.vllm import hf3fs, kv_offloading, multi_process, nixl, offloading
from kvlab.vllm.connector import Connector
from kvlab.vllm.workload import HF3FS, LMCACHE, POLICIES, Workload


class Drafter(Arguments):
    """The speculative configuration. Its methods return the kind of drafter."""

    def __getattr__(self, name: str) -> Any:
        return (lambda: False) if name.startswith("use") else super().__getattr__(name)


class Publisher:
    """Stands in for a publisher of KV events: hooks see each batch, and no router gets it."""

    def publish(self, batch: Any) -> None:
        """Drop a batch."""


def make_scheduler(work: Workload) -> Any:
    """A `Scheduler`, or an `AsyncScheduler` where launches overlap, with everything that it manages."""
    import vllm.distributed.kv_events as kv_events
    import vllm.v1.core.single_type_kv_cache_manager as managers
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    init_none_hash(sha256)
    config, kv_cache_config = configured(work)
    if hasattr(managers, "register_all_kvcache_specs"):
        managers.register_all_kvcache_specs(config)
    own = offloading_of(work).connector if work.offload else nixl.connector if work.server else None
    made = _connector(work) if own is None else own(config, kv_cache_config, worker=False)
    KVConnectorFactory.create_connector = staticmethod(lambda **_: made)
    kv_events.EventPublisherFactory.create = staticmethod(lambda *_: Publisher())
    kind = AsyncScheduler if work.launches > 1 else Scheduler
    sizes = {"block_size": hash_block_size(work)}
    if _hashes_apart(Scheduler):
        sizes = {"block_size": math.lcm(*(size for _, size, _ in work.groups)), "hash_block_size": sizes["block_size"]}
    scheduler = kind(
        config,
        kv_cache_config,
        SimpleNamespace(
            accept_tokens=lambda *_, **__: True,
            should_advance=lambda *_, **__: False,
            validate_tokens=lambda _, tokens, **__: tokens,
        ),
        mm_registry=SimpleNamespace(supports_multimodal_inputs=lambda _: False),
        **sizes,
    )
    if work.images:
        scheduler.max_num_encoder_input_tokens = work.encoded
        scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(cache_size=work.encoded)
    if not work.fence:
        scheduler.defer_block_free = False
    if work.connector and not work.server:
        scheduler.connector.scheduler = scheduler
    return scheduler


def fitting(work: Workload, known: bool = True) -> Workload:
    """Adapt a workload to the release: if it takes no hash block size, the blocks of states get that size.

    Without `known` all blocks get it if the offloading takes none.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    if work.offload == LMCACHE:
        work = multi_process.fitting(work)
    shared = set() if _hashes_apart(Scheduler) else {"state"}
    if work.offload and work.offload not in (*POLICIES, HF3FS, LMCACHE):
        manager = importlib.import_module("vllm.v1.simple_kv_offload.manager").SimpleCPUOffloadScheduler
        shared |= set() if _hashes_apart(manager) else {"state"} if known else {"state", "full", "window"}
    size = hash_block_size(work)
    groups = tuple((kind, size if kind in shared else own, window) for kind, own, window in work.groups)
    return replace(work, groups=groups)


def _hashes_apart(owner: type) -> bool:
    """Whether `owner` takes a hash block size besides the block size."""
    return "hash_block_size" in inspect.signature(owner).parameters


def offloading_of(work: Workload) -> ModuleType:
    """The module that drives the workload's offloading."""
    own = {HF3FS: hf3fs, LMCACHE: multi_process} | dict.fromkeys(POLICIES, kv_offloading)
    return own.get(work.offload, offloading)


def configured(work: Workload) -> tuple[Any, Any]:
    """The engine's configuration, and that of its memory."""
    return _config(work), _kv_cache_config(work)


def _connector(work: Workload) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA

    # This base class marks a connector that supports several groups.
    return type("AllGroups", (Connector, SupportsHMA), {})(work) if len(work.groups) > 1 else Connector(work)


def hash_block_size(work: Workload) -> int:
    """The number of tokens of one block hash."""
    sizes = [size for _, size, _ in work.groups]
    return math.gcd(*sizes)


def make_request(work: Workload, name: str, prompt: list[int], max_tokens: int, **more: Any) -> Any:
    """A request as the engine core makes it."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    params = Arguments(
        max_tokens=max_tokens,
        min_tokens=0,
        eos_token_id=0,
        stop_token_ids=(),
        all_stop_token_ids=set(),
        num_logprobs=None,
        extra_args=None,
        skip_reading_prefix_cache=False,
        repetition_detection=None,
        structured_outputs=None,
    )
    hasher = get_request_block_hasher(hash_block_size(work), sha256)
    return Request(name, prompt, params, None, block_hasher=hasher, **more)


def _config(work: Workload) -> SimpleNamespace:
    speculative = None
    if work.drafts:
        speculative = Drafter(
            num_speculative_tokens=work.drafts,
            num_speculative_tokens_per_batch_size=None,
            max_num_new_slots_for_drafting=0,
            disable_eagle_block_drop=False,
            use_eagle=lambda: work.eagle,
            use_eagle_block_drop=lambda: work.eagle,
            needs_eagle_block_drop=lambda: work.eagle,
        )
    transfer = None
    if work.connector or work.offload:
        transfer = Arguments(kv_load_failure_policy=work.on_failure, is_kv_consumer=True, is_kv_producer=False)
        if work.offload:
            transfer.kv_connector_extra_config = options = offloading_of(work).options(work)
            transfer.get_from_extra_config = options.get
            transfer.engine_id = "engine"
            transfer.is_kv_producer = work.offload == LMCACHE
        if work.server:
            transfer = nixl.configured(work, transfer)
    return Arguments(
        scheduler_config=Arguments(
            async_scheduling=work.launches > 1,
            disable_chunked_mm_input=work.whole_images,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=work.chunk,
            long_prefill_token_threshold_adaptive=False,
            max_num_active_seqs=None,
            max_num_batched_tokens=work.budget,
            max_num_scheduled_tokens=None,
            max_num_seqs=work.running,
            policy=work.policy,
            prefill_schedule_interval=1,
            scheduler_reserve_full_isl=work.reserve,
            watermark=0.0,
        ),
        cache_config=Arguments(
            block_size=next((size for kind, size, _ in work.groups if kind == "state"), hash_block_size(work)),
            enable_mamba_shared_prefix_checkpoint=False,
            enable_prefix_caching=True,
            mamba_cache_mode="align" if any(kind == "state" for kind, _, _ in work.groups) else "none",
            num_gpu_blocks=work.blocks,
            get_resolved_kv_cache_layout=lambda: SimpleNamespace(name="LBHNC"),
        ),
        parallel_config=Arguments(
            data_parallel_index=0,
            data_parallel_size=1,
            pipeline_parallel_size=max(1, work.launches - 1),
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            rank=0,
            tensor_parallel_size=1,
            world_size=1,
        ),
        model_config=Arguments(
            uses_mrope=False,
            is_encoder_decoder=False,
            get_total_num_kv_heads=lambda: 1,
            max_model_len=work.longest,
            model="model",
            runner_type="generate",
            use_mla=False,
            is_diffusion=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
            enable_return_routed_experts=False,
        ),
        observability_config=Arguments(
            kv_cache_metrics=False,
            kv_cache_metrics_sample=0.0,
            per_request_spec_decode_metrics="none",
            enable_logging_iteration_details=False,
            enable_mfu_metrics=False,
        ),
        aux_output_config=Arguments(enabled=False),
        ec_manager_config=Arguments(get_encoder_cache_manager_obj=lambda: None),
        ec_transfer_config=None,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True) if work.events else None,
        kv_transfer_config=transfer,
        lora_config=Arguments(max_loras=2) if work.adapters else None,
        speculative_config=speculative,
        is_mm_encoder_only=False,
        max_concurrent_batches=work.launches,
        max_in_flight_tokens=work.launches * work.budget,
        num_hash_lookahead_tokens=0,
        num_lookahead_tokens=work.drafts if work.eagle else 0,
        num_prefill_lookahead_tokens=1 if work.eagle else 0,
        num_speculative_tokens=work.drafts,
        use_v2_model_runner=work.launches > 1,
    )


def _kv_cache_config(work: Workload) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    groups = []
    for number, (kind, size, window) in enumerate(work.groups):
        heads = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
        spec: Any
        if kind == "full":
            spec = FullAttentionSpec(**heads)
        elif kind == "window":
            spec = SlidingWindowSpec(**heads, sliding_window=window)
        else:
            spec = MambaSpec(
                block_size=size,
                shapes=((1,),),
                dtypes=(torch.float16,),
                mamba_cache_mode="align",
                num_speculative_blocks=work.drafts,
            )
        groups.append(KVCacheGroupSpec([f"layer.{number}"], spec))
    memory = offloading.tensors(work) if work.offload else []
    return KVCacheConfig(num_blocks=work.blocks, kv_cache_tensors=memory, kv_cache_groups=groups)
