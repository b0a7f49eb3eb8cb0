"""One SGLang release: its classes, and the few places where releases differ.

The classes of a release decide how it is used, and not its version number. SGLang's objects are typed
`Any`: their attributes are named here and in `adapter`, and nowhere else.
"""

import importlib
import inspect
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kvlab.sglang.adapter import building
from kvlab.sglang.adapter.finder import prepare
from kvlab.sglang.adapter.records import name_as_before
from kvlab.stubs import EngineError
from kvspec.events import Config

NO_LIMIT = 1 << 30
"""A `max_new_tokens` that no request reaches: the protocol says when a request is done."""


ARGUMENTS = (
    "get_global_server_args",
    "get_server_args",
    "get_disagg",
    "get_exec",
    "get_parallel",
    "get_schedule",
    "get_serving",
    "get_spec",
)
"""The functions by which releases ask for the server's settings: newer ones have one for each kind of them."""


class Engine:
    """A release's classes. One process can hold one."""

    def __init__(self, folder: Path | None) -> None:
        """Import the release in `folder`, or the installed one.

        Raises:
            EngineError: it cannot be imported.
        """
        prepare(folder)
        try:
            self.torch = importlib.import_module("torch")
            self.batches = importlib.import_module("sglang.srt.managers.schedule_batch")
            self.common = importlib.import_module("sglang.srt.mem_cache.common")
            self.allocation = module_with("sglang.srt.mem_cache.allocation", "alloc_for_extend") or self.common
            self.allocators = importlib.import_module("sglang.srt.mem_cache.allocator")
            self.pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
            self.radix = importlib.import_module("sglang.srt.mem_cache.radix_cache")
            self.chunk = importlib.import_module("sglang.srt.mem_cache.chunk_cache")
            self.base = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
            self.init_params = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
            self.window_radix = self._built("swa_radix_cache", "SWARadixCache")
            self.window_pools = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
            self.state_radix = self._built("mamba_radix_cache", "MambaRadixCache")
        except Exception as error:
            raise EngineError(f"this SGLang cannot be imported: {type(error).__name__}: {error}") from error
        session_cache = first(
            ("sglang.srt.session.streaming_session", "StreamingSession"),
            ("sglang.srt.mem_cache.session_aware_cache", "SessionAwareCache"),
        )
        self.session_cache: Any = session_cache
        self.session_controller: Any = session_cache and first(
            ("sglang.srt.session.session_controller", "SessionController"),
            ("sglang.srt.managers.session_controller", "SessionController"),
        )
        self.counts_decoded = "kv_committed_len +=" in inspect.getsource(self.allocation.alloc_for_decode)
        """Whether allocating a plain decode step also counts its position as committed; else the scheduler does."""
        self.rows_are_kept = "reqs" in inspect.signature(self.pools.ReqToTokenPool.alloc).parameters
        """Whether a chunked request keeps its row between its chunks (17850)."""
        self.excludes_lent_slots = session_cache is not None and (
            "active_pool_idxs" in inspect.signature(session_cache.session_held_tokens).parameters
        )
        """Whether the session figures leave out slots that a running request owns (22213)."""
        self.window_allocator: Any = first(
            ("sglang.srt.mem_cache.allocator.swa", "SWATokenToKVPoolAllocator"),
            ("sglang.srt.mem_cache.swa_memory_pool", "SWATokenToKVPoolAllocator"),
        )
        self.estimates_room = "num_tokens = extend_num_tokens + len(seq_lens) * self.page_size" in inspect.getsource(
            self.window_allocator.alloc_extend
        )
        """Whether the allocator of a model with a sliding window asks for a page more for each request."""
        if record := getattr(self.batches, "ReqKvInfo", None):
            name_as_before(record, self.batches.Req, importlib.import_module(self.session_cache.__module__).SessionSlot)
        ids = inspect.signature(self.batches.Req.__init__).parameters["origin_input_ids"].annotation
        self._ids_are_arrays = "array" in str(ids)
        self.server_args = SimpleNamespace(
            attention_backend="torch_native",  # rows are written by torch then: the same writes, without a kernel
            page_size=1,
            speculative_algorithm=None,
            strip_thinking_cache=False,
            dcp_size=1,
            disaggregation_mode="null",
            mamba_cache_chunk_size=1,
            enable_mamba_extra_buffer_lazy=lambda: False,
            tp_rank=0,
            dcp_enabled=False,
            attn_dcp_size=1,
            attn_dcp_rank=0,
            disaggregation_decode_retraction_backup=False,
        )
        self.server_args.kernel = self.server_args.mamba = self.server_args
        # The text of an out-of-memory error; some releases have it for some caches only.
        replace(self.common, "available_and_evictable_str", lambda _: "")
        flags = SimpleNamespace(attn=SimpleNamespace(backend="torch_native"))
        functions: dict[str, Any] = {name: lambda: self.server_args for name in ARGUMENTS}
        functions |= {"get_flags": lambda: flags, "attention_backends": lambda: ("torch_native", "torch_native")}
        for module in (self.batches, self.common, self.allocation, self.base, self.radix, self.pools, self.state_radix):
            for name, value in functions.items():
                replace(module, name, value)
        for module in (self.batches, self.state_radix):
            replace(module, "mamba_cache_chunk_size", lambda: self.server_args.mamba_cache_chunk_size)

    def release_kv_cache(self, req: Any, tree_cache: Any, *, is_insert: bool) -> None:
        """SGLang's way out for a request: publish or not, release pages, lock and row."""
        self.common.release_kv_cache(req, tree_cache, is_insert=is_insert)

    def publish(self, tree_cache: Any, req: Any, *, chunked: bool) -> None:
        """Hand the pages that a prefill wrote to the cache."""
        if chunked:
            tree_cache.cache_unfinished_req(req, chunked=True)
        else:
            tree_cache.cache_unfinished_req(req)

    def _built(self, name: str, has: str) -> Any:
        """The module of a tree, if the release's servers build one: newer ones leave it to tests."""
        registry = Path(str(self.common.__file__)).with_name("registry.py")
        if registry.is_file() and f"mem_cache.{name} import" not in registry.read_text(encoding="utf-8"):
            return None
        return module_with(f"sglang.srt.mem_cache.{name}", has)

    @property
    def lacks(self) -> set[str]:
        """The pools for which the release's servers build no tree of their own."""
        trees = {"sliding_window": self.window_radix, "recurrent_states": self.state_radix}
        return {name for name, tree in trees.items() if tree is None}

    # The classes

    def pool(self, config: Config) -> Any:
        """The rows, and the slots for recurrent states if there are any."""
        return building.rows(
            self,
            config.num_rows,
            config.max_context_len,
            states=config.num_states,
            extra_buffer=config.prefix_cache,
        )

    def allocator(self, config: Config) -> Any:
        """The pages, and the window pages behind them if there are any."""
        windows = config.num_window_pages if config.sliding_window else 0
        return building.allocator(self, config.num_pages, config.page_size, window_pages=windows)

    def prefix_cache(self, config: Config, pool: Any, allocator: Any) -> Any:
        """The prefix store."""
        params = self.init_params.CacheInitParams(
            disable=False,
            req_to_token_pool=pool,
            token_to_kv_pool_allocator=allocator,
            page_size=config.page_size,
            enable_mamba_extra_buffer=bool(config.num_states and config.prefix_cache),
            sliding_window_size=config.sliding_window or None,
        )
        if config.sliding_window:
            return self.window_radix.SWARadixCache(params) if config.prefix_cache else self.chunk.SWAChunkCache(params)
        if config.num_states and config.prefix_cache:
            return self.state_radix.MambaRadixCache(params)
        return self.radix.RadixCache(params) if config.prefix_cache else self.chunk.ChunkCache(params)

    def with_sessions(self, prefix_cache: Any) -> Any:
        """The cache that keeps sessions' memory, around the prefix store."""
        return self.session_cache(prefix_cache)

    # Requests

    def ids(self, tokens: Sequence[int]) -> Any:
        """Token ids as the release's requests hold them."""
        return array("q", tokens) if self._ids_are_arrays else list(tokens)

    def request(self, name: str, tokens: Sequence[int]) -> Any:
        """A request without a session."""
        return self.batches.Req(name, "", self.ids(tokens), sampling())

    def turn(self, session: Any, name: str, new_tokens: Sequence[int]) -> Any:
        """The next turn of a session, as its controller makes it; `None` if the session does not take it."""
        asked = _Asked(
            rid=name,
            input_ids=self.ids(new_tokens),
            sampling_params=sampling(),
            session_params=_Asked(replace=False, drop_previous_output=False, offset=0),
            return_logprob=False,
            return_hidden_states=False,
            stream=False,
        )
        req = session.create_req(asked, tokenizer=None, vocab_size=NO_LIMIT)
        return None if req.to_finish is not None or req.finished() else req

    def full_ids(self, req: Any) -> Any:
        """All tokens of a request so far."""
        return req.origin_input_ids + req.output_ids

    def set_extend(self, req: Any, start: int, end: int) -> None:
        """Set the positions `[start, end)` of a request's next prefill."""
        if hasattr(req, "set_extend_range"):
            req.set_extend_range(start, end)
            return
        if hasattr(req, "fill_len"):
            req.fill_len = end
        else:
            req.fill_ids = req.fill_ids[:end]
        req.set_extend_input_len(end - start)

    def count_chunk(self, req: Any, change: int) -> None:
        """Count one more, or one less, chunk under way that does not end its prompt."""
        name = "inflight_middle_chunks" if hasattr(req, "inflight_middle_chunks") else "is_chunked"
        setattr(req, name, getattr(req, name) + change)

    def track_extend(self, pool: Any, req: Any, page_size: int) -> None:
        """Note the last page border that a request's next prefill passes, where its state will be kept."""
        prepare = self.batches.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
        columns = len(inspect.signature(prepare).parameters) - 2  # older releases append to lists of the batch
        batch = SimpleNamespace(
            req_to_token_pool=pool,
            tree_cache=SimpleNamespace(page_size=page_size),
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(mamba_chunk_size=page_size)),
        )
        prepare(batch, req, *([] for _ in range(columns)))

    def set_page_size(self, page_size: int, *, speculates: bool) -> None:
        """Set the server's settings that SGLang reads; they belong to the process, not to one engine.

        States are kept at every page border, not only at the last one of some dozens of tokens.
        """
        self.server_args.page_size = self.server_args.mamba_cache_chunk_size = page_size
        self.server_args.speculative_algorithm = "EAGLE" if speculates else None
        replace(self.batches, "FLA_CHUNK_SIZE", page_size)

    def holds(self, slot: Any) -> bool:
        """Whether a session's slot says that it holds memory."""
        return bool(slot.is_holding_kv if hasattr(slot, "is_holding_kv") else slot.kv.holds_kv)

    # Batches

    def batch(self, reqs: Sequence[Any], tree_cache: Any, **fields: object) -> Any:
        """The part of a batch that SGLang's allocation reads."""
        return SimpleNamespace(
            reqs=list(reqs),
            tree_cache=_WithoutEviction(tree_cache),
            req_to_token_pool=tree_cache.req_to_token_pool,
            token_to_kv_pool_allocator=tree_cache.token_to_kv_pool_allocator,
            device="cpu",
            model_config=SimpleNamespace(is_encoder_decoder=False),
            maybe_evict_swa=lambda: None,
            is_dllm=lambda: False,
            hisparse_coordinator=None,
            req_pool_indices_cpu=fields.get("req_pool_indices"),
            **fields,
        )

    def int64(self, numbers: Sequence[int]) -> Any:
        """A tensor of lengths."""
        return self.torch.tensor(list(numbers), dtype=self.torch.int64)

    # The prefix store

    def matched(self, tree_cache: Any, ids: Any) -> Any:
        """The prefix store's match for exactly these tokens."""
        return tree_cache.match_prefix(self.base.MatchPrefixParams(key=self._key(ids)))

    def match_with_state(self, tree_cache: Any, req: Any, ids: Any) -> None:
        """Match once more as the scheduler does: where a state is cached, a request gets a slot for its own copy."""
        tree_cache.match_prefix(self.base.MatchPrefixParams(key=self._key(ids), req=req, cow_mamba=True))

    def _key(self, ids: Any) -> Any:
        return self.radix.RadixKey(token_ids=ids, extra_key=None)

    def evict(self, tree_cache: Any, tokens: int, window_tokens: int, states: int) -> None:
        """Evict at least so many of each pool, or all that can be evicted."""
        params = getattr(self.base, "EvictParams", None)
        if params is not None:
            tree_cache.evict(params(num_tokens=tokens, swa_num_tokens=window_tokens, mamba_num=states))
        elif self.window_radix is not None and isinstance(tree_cache, self.window_radix.SWARadixCache):
            tree_cache.evict(tokens, window_tokens)
        else:
            tree_cache.evict(tokens)
            if self.state_radix is not None and isinstance(tree_cache, self.state_radix.MambaRadixCache):
                tree_cache.evict_mamba(states)

    def lock(self, tree_cache: Any, req: Any) -> None:
        """Lock the prefix that a request matched, as the scheduler does when it admits the request."""
        result = tree_cache.inc_lock_ref(req.last_node)
        if hasattr(req, "lock_receipt"):
            req.lock_receipt = result.to_dec_params()
            return
        # Older releases answer the number itself.
        req.swa_uuid_for_lock = getattr(result, "swa_uuid_for_lock", result)

    def unlock(self, tree_cache: Any, req: Any) -> None:
        """Take a request's lock back."""
        if hasattr(req, "lock_receipt"):
            tree_cache.dec_lock_ref(req.last_node, req.lock_receipt)
            return
        params = getattr(self.base, "DecLockRefParams", None)
        mark = req.swa_uuid_for_lock
        tree_cache.dec_lock_ref(req.last_node, mark if params is None else params(swa_uuid_for_lock=mark))

    def evict_window(self, tree_cache: Any, req: Any, next_position: int) -> None:
        """Give back the window pages that a request has left behind, as a batch does before it allocates."""
        batch = SimpleNamespace(
            tree_cache=tree_cache,
            req_to_token_pool=tree_cache.req_to_token_pool,
            token_to_kv_pool_allocator=tree_cache.token_to_kv_pool_allocator,
        )
        self.batches.ScheduleBatch._evict_swa(batch, req, next_position)


def sampling() -> Any:
    """The sampling parameters that the bookkeeping of memory reads."""
    return SimpleNamespace(custom_params=None, max_new_tokens=NO_LIMIT, ignore_eos=True, stop_strs=[], n=1)


class _Asked(SimpleNamespace):
    """A message from SGLang's front end. Only the fields that are set matter."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _WithoutEviction:
    """A prefix cache for SGLang's allocation, with nothing to evict.

    SGLang's allocation evicts on its own, and generously. In the specification eviction is an operation of its own.
    """

    def __init__(self, tree_cache: Any) -> None:
        self._tree_cache = tree_cache

    def is_chunk_cache(self) -> bool:
        return True

    def supports_prefix_sharing(self) -> bool:
        return False

    def evict(self, *_: object) -> None:
        """States are evicted whatever the cache is."""

    evict_mamba = evict_for_alloc = evict

    def pretty_print(self) -> None:
        """Before it gives up, SGLang prints the whole tree."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree_cache, name)


def first(*places: tuple[str, str]) -> Any:
    """The first of several classes that exists; `None` if none does."""
    for module, name in places:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


def module_with(name: str, has: str = "__name__") -> Any:
    """A module that some releases have, if it has this; else `None`."""
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    return found if hasattr(found, has) else None


def replace(module: ModuleType | None, name: str, value: object) -> None:
    """Replace an attribute of a module, if the module has it."""
    if module is not None and hasattr(module, name):
        setattr(module, name, value)


def silence() -> None:
    """Keep SGLang's log from the terminal: it reports each released session, and each request that does not fit."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger("sglang").setLevel(logging.CRITICAL)
