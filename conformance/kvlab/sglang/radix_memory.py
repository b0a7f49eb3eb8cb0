"""The memories of releases before 0.5.22, and the choice of a release's kind of memory."""

import importlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.sglang.memory import Memory, Shape, UnifiedMemory
from kvlab.sglang.storage import arguments as of_storage
from kvlab.stubs import Arguments


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
        pinned = self._lock(req.last_node)
        if req.host_hit_length > 0:
            # Its name differs: the node on the host that was matched last, or best.
            node = getattr(self._found, "best_match_node", req.last_host_node)
            asks = getattr(self.release.base, "InitLoadBackParams", None)
            asked = (node, req.host_hit_length) if asks is None else (asks(node, req.host_hit_length, req=req),)
            found, req.last_node = cache.init_load_back(*asked)
            req.prefix_indices = self.release.torch.cat([req.prefix_indices, found])
            self._note(req, cache_protected_len=len(req.prefix_indices))
        req.kvspec_lock = self._lock(req.last_node, req)
        cache.dec_lock_ref(*pinned)
        return len(req.prefix_indices)

    def _lock(self, node: Any, _: Any = None) -> tuple[Any, ...]:
        """Lock the path to a node, for a request that keeps the lock, if any. Returns the arguments to unlock it."""
        self.cache.inc_lock_ref(node)
        return (node,)

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
        if getattr(getattr(req, "kv", None), "is_kv_released", False):
            # There was no page for it, so it has a row and a lock alone.
            self.cache.dec_lock_ref(*req.kvspec_lock)
            self.rows.free(req)
            return
        if publish:
            req.finished_reason = self._finished
        self.release.common.release_kv_cache(req, self.cache, is_insert=publish)


class BetweenMemory(RadixMemory, UnifiedMemory):
    """`UnifiedRadixCache` with requests that are matched and published as before it (0.5.21)."""

    configured = UnifiedMemory.configured

    def __init__(self, release: Release, shape: Shape) -> None:
        """As the other unified tree."""
        UnifiedMemory.__init__(self, release, shape)

    def _lock(self, node: Any, req: Any = None) -> tuple[Any, ...]:
        """The same; the arguments say how much was locked."""
        receipt = self.cache.inc_lock_ref(node).to_dec_params()
        if req is not None:
            req.lock_receipt = receipt
        return node, receipt


def make(release: Release, shape: Shape) -> UnifiedMemory | RadixMemory:
    """A memory of the kind that the release has."""
    if not release.unified:
        return RadixMemory(release, shape)
    return UnifiedMemory(release, shape) if release.checkpoints else BetweenMemory(release, shape)
