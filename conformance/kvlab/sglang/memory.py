"""One memory with a host tier, made of a release's own classes, but without KV tensors.

`UnifiedMemory` and `RadixMemory` handle a request like the schedulers of their releases: match, admit with a load-back,
extend, publish, release.
"""

import importlib
import threading
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.sglang.storage import arguments as of_storage
from kvlab.sglang.storage import attach
from kvlab.stubs import Arguments

LAYERS = 2


@dataclass(frozen=True)
class Shape:
    """The sizes of a memory: numbers of pages and rows, lengths in tokens."""

    page_size: int
    pages: int
    rows: int
    context: int
    host_pages: int = 0
    write_policy: str = ""
    prefetch_policy: str = ""
    """When a request stops waiting for its prefetch from a storage; empty: there is no storage."""
    ranks: int = 1
    """The number of ranks of the server; their trees agree on complete transfers."""


class Memory:
    """The common part of both kinds of memory."""

    def __init__(self, release: Release, shape: Shape) -> None:
        """Make pools, allocator and rows."""
        self.release, self.shape = release, shape
        self._finished = object()
        torch = release.torch

        pool: Any = release.pools.MHATokenToKVPool

        class Tensors(pool):  # type: ignore[misc]
            """A KV pool without tensors."""

            def __init__(self) -> None:
                self.size = shape.pages * shape.page_size
                self.page_size = shape.page_size
                self.layer_num = self.end_layer = LAYERS
                self.start_layer = 0
                self.device = "cpu"
                self.dtype = self.store_dtype = torch.float16
                self.layer_shard_enabled = False
                self.head_num = self.head_dim = self.v_head_dim = 1

            def register_layer_transfer_counter(self, counter: Any) -> None:
                self.counter = counter

        self.tensors = Tensors()
        self.rows = release.pools.ReqToTokenPool(shape.rows, shape.context, "cpu", False)
        size = shape.pages * shape.page_size
        arguments = (torch.float16, "cpu", self.tensors, False)
        if shape.page_size == 1:
            self.allocator = release.allocators.TokenToKVPoolAllocator(size, *arguments)
        else:
            self.allocator = release.allocators.PagedTokenToKVPoolAllocator(size, shape.page_size, *arguments)

    def _params(self, **more: Any) -> Any:
        return self.release.init_params.CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.shape.page_size,
            **({"enable_kv_cache_events": True} if self.release.unified else {}),
            tp_cache_group=None if self.shape.ranks == 1 else object(),
            **more,
        )

    def _host_pool(self) -> Any:
        """The release's host pool, without a buffer."""
        shape = self.shape
        made: Any = object.__new__(self.release.host_class)
        made.page_size, made.size, made.page_num = shape.page_size, shape.host_pages * shape.page_size, shape.host_pages
        made.size_per_token, made.device, made.layout, made.lock = 1, "cpu", "layer_first", threading.RLock()
        made.can_use_write_back_jit = False
        made.clear()
        return made

    @property
    def controller(self) -> Any:
        """The controller that queues transfers and starts them."""
        return self.cache.cache_controller

    cache: Any
    window: int | None = None
    """The size of the sliding window in tokens; `None`: no layer has one."""
    window_pages = 0

    @property
    def room(self) -> int:
        """Available tokens: free ones, and those that an eviction frees."""
        return int(self.allocator.available_size() + self.cache.evictable_size())

    def pages(self, tokens: int) -> int:
        """The number of pages for so many tokens."""
        return -(-tokens // self.shape.page_size)

    def _allocate(self, row: int, start: int, stop: int) -> bool:
        """Allocate missing pages for the positions `start` to `stop` of a row. Returns whether there were enough."""
        size = self.shape.page_size
        first, last = self.pages(start), self.pages(stop)
        if first == last:
            return True
        need = (last - first) * size
        short = need - self.allocator.available_size()
        if short > 0:
            asks = getattr(self.release.base, "EvictParams", None)
            self.cache.evict(short if asks is None else asks(num_tokens=short))
        slots = self.allocator.alloc(need)
        if slots is None:
            return False
        self.rows.write((row, slice(first * size, last * size)), slots.to(self.release.torch.int32))
        return True


class UnifiedMemory(Memory):
    """`UnifiedRadixCache` with `HybridCacheController` and `L2TransferEngine` (from 0.5.21)."""

    def __init__(self, release: Release, shape: Shape) -> None:
        """Make the tree as the assembler does for a plain model's stack."""
        super().__init__(release, shape)
        full, pool_name = release.component.ComponentType.FULL, release.assembler.PoolName.KV
        params = self._params(tree_components=(full,), tree_core_backend="python")
        self.cache = release.tree.UnifiedRadixCache(params)
        self.host = self._host_pool()
        entry = release.assembler.build_pool_entry(
            name=pool_name,
            host_pool=self.host,
            device_pool=self.tensors,
            layer_mapping={layer: layer for layer in range(LAYERS)},
            transfer_layer_id_max=LAYERS,
            is_anchor=True,
        )
        group = release.group.HostPoolGroup([entry])
        controller = release.hybrid.HybridCacheController(
            self.allocator,
            group,
            shape.page_size,
            None,
            load_cache_event=threading.Event(),
            write_policy=shape.write_policy,
            io_backend="kernel",
            transfer_layer_id_max=LAYERS,
        )
        result = release.assembler.StackBuildResult(
            host_pool_group=group, cache_controller=controller, component_host_pools={full: self.host}
        )
        release.assembler._apply_stack_result(self.cache, self.tensors, params, result)
        self.cache.tree_core.set_hicache_enabled()
        self.cache.write_through_threshold = 1 if shape.write_policy == "write_through" else 2
        self.cache.is_write_back = shape.write_policy == "write_back"
        self.cache.load_back_threshold = 1
        if shape.prefetch_policy:
            attach(release, self.cache, shape.prefetch_policy)

    @contextmanager
    def configured(self) -> Iterator[None]:
        """The configuration that a server would publish, while requests are driven."""
        with Patches() as patches:
            spec = SimpleNamespace(speculative_algorithm=None)
            serving = SimpleNamespace(strip_thinking_cache=False)
            for module in (self.release.common, self.release.batches):
                for name, value in (("get_spec", spec), ("get_serving", serving)):
                    if hasattr(module, name):
                        patches.set(module, name, lambda value=value: value)
            yield

    def request(self, rid: str, tokens: list[int], named: Mapping[str, Any]) -> Any:
        """A request as the scheduler makes one; `named`: the parts of its cache key beside its tokens."""
        sampling = SimpleNamespace(max_new_tokens=1 << 30, ignore_eos=True, custom_params=None, stop_strs=[], n=1)
        return self.release.batches.Req(rid, "", array("q", tokens), sampling, **named)

    def match(self, req: Any) -> int:
        """Cached tokens of a prompt, on the device and on the host."""
        req.refresh_fill_ids()
        self.release.common.match_kv_cache(req, self.cache)
        return int(req.prefix_len + req.host_hit_length)

    def admit(self, req: Any) -> int:
        """Lock the cached prefix and begin to load its part on the host; the number of tokens then on the device."""
        cache = self.cache
        with ExitStack() as stack:
            pinned = cache.lock(req.last_node)
            stack.callback(cache.unlock, pinned)
            if req.needs_host_load_back():
                anchor = cache.lock(req.best_match_node)
                stack.callback(cache.unlock, anchor)
                host = cache.inc_host_lock_ref(req.best_match_node).to_dec_params()
                stack.callback(cache.dec_host_lock_ref, req.best_match_node, host)
                loaded, req.last_node = cache.init_load_back(
                    self.release.base.InitLoadBackParams(
                        best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req
                    )
                )
                req.prefix_len += loaded
                req.kv.cache_protected_len = req.prefix_len
            req.lock = cache.lock(req.last_node)
        return int(req.prefix_len)

    def start(self, req: Any) -> None:
        """A row for an admitted request, with its cached prefix."""
        self.rows.alloc([req])
        prefix = self.cache.prefix_device_indices(req)
        self.rows.write((self.row(req), slice(0, len(prefix))), prefix.to(self.release.torch.int32))
        req.kv.cache_protected_len = len(prefix)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = len(prefix)

    def row(self, req: Any) -> int:
        """The row of a request that has one."""
        return int(req.kv.req_pool_idx)

    def extend(self, req: Any, upto: int) -> bool:
        """Pages up to position `upto`; whether there were enough."""
        if not self._allocate(self.row(req), req.kv.kv_allocated_len, upto):
            return False
        req.kv.kv_allocated_len = req.kv.kv_committed_len = req.extend_end = upto
        return True

    def grow(self, req: Any, token: int) -> None:
        """A token was sampled."""
        req.output_ids.append(token)

    def publish(self, req: Any, upto: int) -> None:
        """Publish the computed tokens to the tree, and go on with its copy."""
        req.refresh_fill_ids()
        req.extend_end = upto
        self.release.common.checkpoint_kv_cache(req, self.cache)

    next_chunk = publish

    def let_go(self, req: Any, *, publish: bool) -> None:
        """A request finishes, or is retracted."""
        if not req.kv.kv_allocated_len:
            # There was no page for it, so it has a row and a lock alone.
            self.cache.unlock(req.lock)
            self.rows.free(req)
            return
        if publish:
            req.finished_reason = self._finished
        self.release.common.release_kv_cache(req, self.cache, checkpoint=publish)


class RadixMemory(Memory):
    """`HiRadixCache` with `HiCacheController` (0.5.10)."""

    def __init__(self, release: Release, shape: Shape) -> None:
        """As the scheduler makes its tree."""
        super().__init__(release, shape)
        arguments = Arguments(
            hicache_ratio=1.0,
            hicache_size=0,
            hicache_mem_layout="layer_first",
            hicache_write_policy=shape.write_policy,
            hicache_io_backend="kernel",
            served_model_name="",
            extra_metric_labels=None,
            **of_storage(shape.prefetch_policy),
        )
        with Patches() as patches:
            if hasattr(release.tree, "get_mha_host_pool_cls"):
                patches.set(release.tree, "get_mha_host_pool_cls", lambda _: lambda *_, **__: self._host_pool())
            else:
                patches.set(release.tree, "MHATokenToKVPoolHost", lambda *_, **__: self._host_pool())
            patches.set(release.torch.distributed, "get_world_size", lambda group=None: self.shape.ranks)
            self._publish_configuration(patches, arguments)
            self.cache = release.tree.HiRadixCache(self._params(), arguments)
        self.host = self.cache.token_to_kv_pool_host
        self.cache.load_back_threshold = 1

    @contextmanager
    def configured(self) -> Iterator[None]:
        """The configuration that a server would publish, while requests are driven."""
        with Patches() as patches:
            arguments = Arguments(
                page_size=self.shape.page_size, speculative_algorithm=None, strip_thinking_cache=False
            )
            for module in (self.release.common, self.release.batches):
                for name in ("get_global_server_args", "get_server_args"):
                    if hasattr(module, name):
                        patches.set(module, name, lambda: arguments)
            self._publish_configuration(patches, arguments)
            yield

    def request(self, rid: str, tokens: list[int], named: Mapping[str, Any]) -> Any:
        """A request as the scheduler makes one; `named`: the parts of its cache key beside its tokens."""
        sampling = SimpleNamespace(max_new_tokens=1 << 30, ignore_eos=True, custom_params=None, stop_strs=[], n=1)
        arrays = hasattr(self.release.batches.Req, "get_fill_ids")
        return self.release.batches.Req(rid, "", array("q", tokens) if arrays else list(tokens), sampling, **named)

    def _publish_configuration(self, patches: Patches, arguments: Any) -> None:
        """Publish the server's arguments where its release looks them up by name."""
        try:
            context = importlib.import_module("sglang.srt.runtime_context")
        except ImportError:
            return
        if hasattr(context, "_CONTEXT") and hasattr(type(context._CONTEXT), "config_bag"):
            patches.set(type(context._CONTEXT), "config_bag", lambda *_: arguments)

    def _fill(self, req: Any, upto: int | None) -> Any:
        """Set the tokens of a request up to a position, in the attribute that its release has."""
        if not hasattr(req, "get_fill_ids"):
            req.fill_ids = (req.origin_input_ids + req.output_ids)[:upto]
            return req.fill_ids
        tokens = req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids
        stop = len(tokens) if upto is None else upto
        if hasattr(req, "fill_len"):
            req.fill_len = stop
        else:
            req.extend_range = SimpleNamespace(start=0, end=stop)
        return tokens

    def match(self, req: Any) -> int:
        """Cached tokens of a prompt, on the device and on the host."""
        tokens = self._fill(req, None)
        salt = {"cache_salt": req.cache_salt} if self.release.salts else {}
        key = self.release.radix.RadixKey(tokens[:-1], req.extra_key, **salt)
        found = self.cache.match_prefix(self.release.base.MatchPrefixParams(key=key, req=req))
        req.prefix_indices, req.last_node = found.device_indices, found.last_device_node
        self._found = found
        req.last_host_node, req.host_hit_length = found.last_host_node, found.host_hit_length
        self._note(req, cache_protected_len=len(req.prefix_indices))
        return len(req.prefix_indices) + int(found.host_hit_length)

    def admit(self, req: Any) -> int:
        """Lock the cached prefix and begin to load its part on the host; the number of tokens then on the device."""
        cache = self.cache
        pinned = req.last_node
        cache.inc_lock_ref(pinned)
        if req.host_hit_length > 0:
            # Its name differs: the node on the host that was matched last, or best.
            node = getattr(self._found, "best_match_node", req.last_host_node)
            asks = getattr(self.release.base, "InitLoadBackParams", None)
            asked = (node, req.host_hit_length) if asks is None else (asks(node, req.host_hit_length, req=req),)
            found, req.last_node = cache.init_load_back(*asked)
            req.prefix_indices = self.release.torch.cat([req.prefix_indices, found])
            self._note(req, cache_protected_len=len(req.prefix_indices))
        cache.inc_lock_ref(req.last_node)
        cache.dec_lock_ref(pinned)
        return len(req.prefix_indices)

    def start(self, req: Any) -> None:
        """A row for an admitted request, with its cached prefix."""
        if self.release.rows_by_number:
            (req.req_pool_idx,) = self.rows.alloc(1)
        else:
            self.rows.alloc([req])
        prefix = req.prefix_indices
        self.rows.write((self.row(req), slice(0, len(prefix))), prefix.to(self.release.torch.int32))
        self._hold(req, len(prefix))

    def row(self, req: Any) -> int:
        """The row of a request that has one."""
        return int(self._where(req, "req_pool_idx").req_pool_idx)

    def extend(self, req: Any, upto: int) -> bool:
        """Pages up to position `upto`; whether there were enough."""
        if not self._allocate(self.row(req), self._where(req, "kv_committed_len").kv_committed_len, upto):
            return False
        self._hold(req, upto)
        return True

    def _hold(self, req: Any, tokens: int) -> None:
        """A request has room for so many tokens, and all of them are committed."""
        if getattr(req, "kv", self) is None:
            req.kv = self.release.batches.ReqKvInfo(kv_allocated_len=tokens, swa_evicted_seqlen=0)
        self._note(req, kv_allocated_len=tokens, kv_committed_len=tokens)

    def _note(self, req: Any, **fields: int) -> None:
        for name, value in fields.items():
            setattr(self._where(req, name), name, value)

    def _where(self, req: Any, name: str) -> Any:
        """The object that has a field in this release: the request, or its record of holdings."""
        record = getattr(req, "kv", None)
        return record if hasattr(record, name) else req

    def grow(self, req: Any, token: int) -> None:
        """A token was sampled."""
        req.output_ids.append(token)

    def publish(self, req: Any, upto: int) -> None:
        """Publish the computed tokens to the tree, and go on with its copy."""
        self._fill(req, upto)
        self.cache.cache_unfinished_req(req)

    def next_chunk(self, req: Any, upto: int) -> None:
        """Publish a chunk; in the oldest releases the next one has another row."""
        self.publish(req, upto)
        if self.release.rows_by_number:
            self.rows.free(req.req_pool_idx)
            self.start(req)

    def let_go(self, req: Any, *, publish: bool) -> None:
        """A request finishes, or is retracted."""
        if publish:
            req.finished_reason = self._finished
        self.release.common.release_kv_cache(req, self.cache, is_insert=publish)


def make(release: Release, shape: Shape) -> UnifiedMemory | RadixMemory:
    """A memory of the kind that the release has."""
    return UnifiedMemory(release, shape) if release.unified else RadixMemory(release, shape)
