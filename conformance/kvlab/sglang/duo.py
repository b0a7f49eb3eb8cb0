"""The sizes of a prefill and a decode server of SGLang, with their arguments, environment and memory."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from kvattach.sglang.release import Release
from kvlab.sglang import memory as memories
from kvlab.sglang.driver import fence
from kvlab.sglang.network import SERVERS, Faults, address
from kvlab.sglang.pools import PoolMemory, Pools
from kvlab.sglang.server import AnyMemory, Worker, arguments
from kvlab.stubs import Arguments
from kvlab.tokens import Tokens

NEVER = 1e6
"""Seconds that no run takes. In some runs nothing fails, and no time-out ends a request that a server has forgotten."""


@dataclass(frozen=True)
class Half:
    """The sizes of one of the two servers; lengths in tokens."""

    pages: int
    running: int
    overlap: bool
    cached: bool
    """Whether it has a prefix cache."""
    core: str
    """The language of the tree's core: python or rust."""
    budget: int = 64
    chunk: int = -1
    further: int = 0
    """Decode's rows for requests whose transfers are in flight, beside those of running requests."""
    reserved: int = 8
    """Tokens that decode keeps free for each running request."""
    polls: int = 1
    """Decode polls its transfers every so many loops."""
    backup: str = "none"
    """Where decode backs up the KV of retracted requests."""
    attempts: int = 0
    """How often prefill optimistically computes a request before decode has answered."""
    host_pages: int = 0
    """Pages of its host tier; 0: it has none."""
    write_policy: str = ""
    """The write policy of the host tier."""

    def with_host(self, rng: random.Random) -> "Half":
        """The same, half of the time with a host tier, if there is a cache."""
        if not self.cached or rng.random() < 0.5:
            return self
        policy = rng.choice(["write_through", "write_through", "write_through_selective", "write_back"])
        return replace(self, host_pages=self.pages * 2 + rng.randint(0, 20), write_policy=policy)


@dataclass(frozen=True)
class Duo:
    """The sizes of one run of two servers."""

    page_size: int
    prefill: Half
    decode: Half
    requests: int
    hurry: float
    """The probability that a request arrives in a turn."""
    alphabet: int
    ends: float
    aborts: float
    waits: float
    """Seconds that a server waits for the other one before it gives up a request."""
    late: bool
    """Whether a request may reach one server much later than the other."""
    early: bool
    """Whether prefill sends the cached prefix before it computes the rest."""
    faults: Faults
    restarts: tuple[str, ...] = ()
    """The servers that die once, at any moment, and are started again."""
    pace: int = 6
    """The most entries that the streams of both servers complete in a turn."""

    @classmethod
    def drawn(cls, rng: random.Random, *, known: bool = True) -> "Duo":
        """Two small servers; without `known` they trigger no known issue that has no fix (`conformance/found`)."""
        page_size = rng.choice([1, 2, 4])
        scale = 4 if page_size == 1 else 1

        def half(**more: Any) -> Half:
            return Half(
                pages=rng.randint(10, 30) * scale,
                running=rng.randint(2, 6),
                overlap=rng.random() < 0.7,
                cached=rng.random() < 0.7,
                core=rng.choice(["python", "rust"]),
                **more,
            )

        prefill = half(
            budget=rng.choice([16, 64, 256]),
            chunk=page_size * rng.choice([2, 4, 50]) if rng.random() < 0.8 else -1,
        )
        decode = half(
            further=rng.choice([0, 2, 4]),
            reserved=rng.choice([1, 4, 8]),
            polls=rng.choice([1, 1, 3]),
            backup=rng.choice(["none", "cpu_tensor"]),
        )
        duo = cls(
            page_size=page_size,
            prefill=prefill,
            decode=decode,
            requests=rng.randint(10, 30),
            hurry=rng.choice([0.05, 0.3]),
            alphabet=rng.choice([2, 3, 50]),
            ends=rng.choice([0.0, 0.02, 0.1]),
            aborts=rng.choice([0.0, 0.1, 0.4]),
            waits=rng.choice([60.0, 300.0]),
            late=rng.random() < 0.3,
            early=rng.random() < 0.8,
            faults=Faults(
                late=rng.choice([0.0, 0.0, 0.05]) * known,
                cut=rng.choice([0.0, 0.0, 0.02]),
                doubled=rng.choice([0.0, 0.1]),
                refused=rng.choice([0.0, 0.0, 0.05]),
                left=rng.choice([0.0, 0.0, 0.05]) * known,
                silent=rng.choice([0.0, 0.0, 0.002]),
                steady=not known,
            ),
            restarts=rng.choice([(), (), (), ("prefill",), ("decode",), SERVERS]),
        )
        prefill, decode = prefill.with_host(rng), decode.with_host(rng)
        # Loads need evicted pages, and evictions need some requests.
        more = 3 if prefill.host_pages or decode.host_pages else 1
        requests, pace = duo.requests * more, rng.choice([1, 6, 6])
        duo = replace(duo, prefill=prefill, decode=decode, requests=requests, pace=pace)
        if rng.random() < 0.2:
            duo = replace(duo, faults=Faults(steady=not known), restarts=(), aborts=0.0, waits=NEVER)
        return duo

    def half(self, server: str) -> Half:
        """The sizes of one of the two servers."""
        return self.prefill if server == "prefill" else self.decode


def memory_of(release: Release, duo: Duo, server: str) -> AnyMemory:
    """The memory of one server; the library identifies it by addresses."""
    half = duo.half(server)
    shape = memories.Shape(
        page_size=duo.page_size,
        pages=half.pages,
        rows=half.running,
        context=half.pages * duo.page_size + duo.page_size,
        host_pages=half.host_pages,
        write_policy=half.write_policy,
    )
    tensors = _tensors(release, shape, 1 + SERVERS.index(server))
    memory: AnyMemory
    if half.host_pages:
        memory = memories.UnifiedMemory(release, shape)
        for name in ("get_contiguous_buf_infos", "maybe_get_custom_mem_pool", "get_cpu_copy", "load_cpu_copy"):
            setattr(memory.tensors, name, getattr(tensors, name))
    else:
        memory = PoolMemory(release, Pools(cached=half.cached, core=half.core), shape)
        memory.allocator._kvcache = tensors
    if server == "decode":
        memory.rows = release.row_pools[1](half.running, shape.context, "cpu", False, half.further)
        memory.cache.req_to_token_pool = memory.rows
    return memory


def worker_of(release: Release, duo: Duo, server: str, memory: AnyMemory, rng: random.Random, tokens: Tokens) -> Worker:
    """The stub for the model of one server."""
    half = duo.half(server)
    worker = Worker(release, memory, rng, tokens, half.overlap)
    worker.model_runner.effective_logical_max_total_num_tokens = half.pages * duo.page_size
    worker.model_runner.kv_cache_dtype_str = "played"
    vars(worker)["is_hybrid_swa"] = False
    fence(memory, worker)
    return worker


def _tensors(release: Release, shape: memories.Shape, place: int) -> Any:
    """A KV pool without tensors, at invented addresses."""
    base: Any = release.pools.MHATokenToKVPool
    size = shape.page_size * 64

    class Tensors(base):  # type: ignore[misc]
        """A KV pool without tensors."""

        def __init__(self) -> None:
            self.size, self.page_size = shape.pages * shape.page_size, shape.page_size
            self.layer_num = self.end_layer = 2
            self.start_layer = 0
            self.head_num = 1
            self.layer_shard_enabled = False

        def get_contiguous_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
            length = size * (shape.pages + 1)
            return [(place * 16 + part) << 32 for part in range(4)], [length] * 4, [size] * 4

        def maybe_get_custom_mem_pool(self) -> None:
            return None

        def get_cpu_copy(self, *_: Any, **__: Any) -> object:
            release.torch.cuda.synchronize()
            return object()

        def load_cpu_copy(self, *_: Any, **__: Any) -> None:
            release.torch.cuda.synchronize()

    return Tensors()


def arguments_of(duo: Duo, server: str) -> Arguments:
    """The arguments of one server."""
    half = duo.half(server)
    given = arguments(
        attn_tp_group=SimpleNamespace(cpu_group=None),
        chunked_prefill_size=half.chunk,
        dist_init_addr=None,
        disable_overlap_schedule=not half.overlap,
        disable_radix_cache=not half.cached,
        disaggregation_bootstrap_port=1,
        disaggregation_decode_allocation_policy="early",
        disaggregation_decode_enable_radix_cache=half.cached and server == "decode",
        disaggregation_decode_host_receive_threshold=1.0,
        disaggregation_decode_polling_interval=1,
        disaggregation_decode_retraction_backup=half.backup,
        disaggregation_transfer_backend="mooncake",
        enable_hierarchical_cache=half.host_pages > 0,
        enable_mixed_chunk=False,
        enable_priority_scheduling=False,
        hicache_write_policy=half.write_policy,
        host=address(server),
        load_balance_method="round_robin",
        mamba=Arguments(),
        max_prefill_tokens=half.budget,
        max_running_requests=half.running,
        nnodes=1,
        num_dp_ranks=1,
        num_reserved_decode_tokens=half.reserved,
        optimistic_prefill_attempts=half.attempts,
        page_size=duo.page_size,
        port=3,
        pp_max_micro_batch_size=half.running,
        sampling_mask_max_tokens=1,
        schedule_conservativeness=0.1,
        schedule_policy="fcfs",
    )
    given.disaggregation_mode = server
    return given


def environment(duo: Duo) -> dict[str, str]:
    """The environment variables of both servers."""
    return {
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(int(duo.waits)),
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(int(duo.waits)),
        "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": str(duo.early),
    }
