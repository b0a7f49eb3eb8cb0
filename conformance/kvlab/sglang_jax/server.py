"""The surroundings of sglang-jax's scheduler: the server's arguments, the model, and the model's worker."""

from types import SimpleNamespace
from typing import Any

from kvattach.sglang_jax.hooks import ALIGNED
from kvattach.sglang_jax.modules import Engine
from kvlab.stubs import Arguments
from kvlab.traffic import EOS


class Worker:
    """Stands in for `ModelWorker` and, in overlap, for `ModelWorkerClient`: rows, pages and sizes, and no model."""

    is_hybrid = False
    sliding_window_size = None

    def __init__(self, engine: Engine, *, rows: int, context: int, pages: int, page_size: int) -> None:
        """Make `rows` rows of `context` positions, and `pages` pages of `page_size` tokens."""
        self.model_config = model()
        self.cur_sampling_info: Any = SimpleNamespace(grammars=None, sampling_info_done=SimpleNamespace(set=_nothing))
        self.rows = engine.pool.ReqToTokenPool(rows, context)
        allocators, unused = engine.allocator, SimpleNamespace(mem_usage=0)
        if page_size == 1:
            self.allocator = allocators.TokenToKVPoolAllocator(pages, unused)
        else:
            self.allocator = allocators.PagedTokenToKVPoolAllocator(pages * page_size, page_size, unused)
        self._settings = dict.fromkeys(engine.batch.global_server_args_dict) | {"page_size": page_size}

    def info(self, *, tokens: int, budget: int, running: int, longest: int, chunk: int) -> tuple[Any, ...]:
        """The lengths and budgets in tokens that the scheduler requests from its worker."""
        settings = self._settings | {"chunked_prefill_size": chunk}
        return (tokens, budget, running, longest, longest - 1, 0, "cpu", settings, 0, 0, 0)

    def get_memory_pool(self) -> tuple[Any, Any]:
        """Rows and pages."""
        return self.rows, self.allocator


def arguments(
    *, page_size: int, longest: int, chunk: int, overlap: bool, radix: bool, mixed: bool = False, ratio: float = 0.0
) -> Arguments:
    """The server's arguments. `ratio` is the share of a request's remaining tokens that is reserved for it."""
    return Arguments(
        node_rank=0,
        nnodes=1,
        dp_size=1,
        tp_size=1,
        ep_size=1,
        schedule_policy="lpm" if radix else "fcfs",
        dp_schedule_policy="round_robin",
        skip_tokenizer_init=True,
        stream_interval=1,
        max_seq_len=longest,
        page_size=page_size,
        disable_overlap_schedule=not overlap,
        disable_radix_cache=not radix,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixed,
        schedule_conservativeness=ratio,
        disaggregation_mode="null",
        hicache_storage="disable",
        disable_precompile=True,
        watchdog_timeout=1e9,
        decode_log_interval=1 << 30,
    )


def scheduler(engine: Engine, server: Arguments, worker: Any, backend: Any) -> Any:
    """The checkout's own scheduler with a worker; `backend` sends and receives its messages."""
    module = engine.scheduler
    for name in ("ModelWorker", "ModelWorkerClient"):
        setattr(module, name, lambda *_, **__: worker)
    module.ModelConfig = SimpleNamespace(from_server_args=lambda *_: worker.model_config)
    for name in ("watchdog_thread", "init_profier", "_profile_batch_predicate"):
        setattr(module.Scheduler, name, _nothing)
    return module.Scheduler(server, communication_backend=backend, mesh=SimpleNamespace(shape={}))


def aligned(engine: Engine, array: Any) -> Any:
    """An array of zeros with the same shape, at an address at which jax takes it on a CPU without a copy."""
    numpy = engine.numpy
    room = numpy.zeros(array.nbytes + ALIGNED, dtype=numpy.uint8)
    start = -room.ctypes.data % ALIGNED
    return room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)


def model() -> SimpleNamespace:
    """A model's configuration, without sliding windows."""
    return SimpleNamespace(
        is_generation=True,
        vocab_size=1 << 30,
        hf_eos_token_id={EOS},
        sliding_window=None,
        get_num_kv_heads=lambda _: 1,
        head_dim=1,
        num_hidden_layers=1,
        hf_config=SimpleNamespace(),
    )


def logits() -> SimpleNamespace:
    """The output of a forward pass besides tokens."""
    return SimpleNamespace(next_token_logprobs=None, input_token_logprobs=None, hidden_states=None)


def _nothing(*_: Any, **__: Any) -> None:
    return None
