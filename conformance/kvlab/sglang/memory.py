"""One memory with a host tier, made of a release's own classes, but without KV tensors.

`UnifiedMemory` here and `RadixMemory` (`radix_memory`) handle a request like the schedulers of their releases: match,
admit with a load-back, extend, publish, release.
"""

import threading
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.sglang.storage import attach

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
    """The common part of all kinds of memory."""

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
    """`UnifiedRadixCache` with `HybridCacheController` and `L2TransferEngine` (from 0.5.22)."""

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
