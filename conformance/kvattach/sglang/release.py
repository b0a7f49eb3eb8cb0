"""The modules of one importable SGLang release."""

import importlib
import inspect
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_CONTROLLER = "sglang.srt.managers.cache_controller"
_HOST_POOL = "sglang.srt.mem_cache.memory_pool_host"
_DISAGGREGATION = "sglang.srt.disaggregation"


def _window_allocator(pools: Any) -> Any:
    """The allocator of pages and their window pages; older releases have it beside its pool."""
    try:
        return importlib.import_module("sglang.srt.mem_cache.allocator.swa").SWATokenToKVPoolAllocator
    except ImportError:
        return pools.SWATokenToKVPoolAllocator


_UNIFIED, _PLAIN = "UnifiedRadixCache", "RadixCache"
"""The tree for all pools; and that of older releases for servers without a host cache."""


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Release:
    """The modules of one release. Its kind follows from its modules, not from its number."""

    def __init__(self, root: Path, tree: str = "") -> None:
        """Import them. `tree` is the class of its server's tree, one of `trees`; by default the first."""
        self.root, self._tree = root, tree
        self.torch = importlib.import_module("torch")
        self.unified = (tree or self.trees[0]) == _UNIFIED
        """Whether the tree is `UnifiedRadixCache`, with the transfers of `L2TransferEngine`."""
        memory = "sglang.srt.mem_cache"
        self.controller = importlib.import_module(_CONTROLLER)
        self.pools = importlib.import_module(f"{memory}.memory_pool")
        self.allocators = importlib.import_module(f"{memory}.allocator")
        self.common = importlib.import_module(f"{memory}.common")
        self.base = importlib.import_module(f"{memory}.base_prefix_cache")
        self.window_pools = importlib.import_module(f"{memory}.swa_memory_pool")
        self.window_allocator = _window_allocator(self.window_pools)
        self.init_params = importlib.import_module(f"{memory}.cache_init_params")
        self.radix = importlib.import_module(f"{memory}.radix_cache")
        self.state_allocator = getattr(self.pools, "MambaSlotAllocator", None)
        """The allocator of slots for recurrent states; `None` in older releases, in which they are not driven."""
        self.messages = importlib.import_module("sglang.srt.managers.io_struct")
        self.results = importlib.import_module("sglang.srt.managers.utils")
        self.sampling = importlib.import_module("sglang.srt.sampling.sampling_params")
        self.speculative = importlib.import_module("sglang.srt.speculative.spec_info")
        self.disaggregation = importlib.import_module("sglang.srt.disaggregation.utils")
        self.batches = importlib.import_module("sglang.srt.managers.schedule_batch")
        transfers = (root / "srt" / "mem_cache" / "l2_transfer.py").is_file()
        self.transfer = importlib.import_module(f"{memory}.l2_transfer") if transfers else None
        self.writes_rows: Any = self.common
        """The module with the functions that write rows for a batch."""
        if not hasattr(self.common, "write_cache_indices"):
            self.writes_rows = importlib.import_module(f"{memory}.allocation")
        self.rows_by_number = "need_size" in inspect.signature(self.pools.ReqToTokenPool.alloc).parameters
        """Whether rows are allocated and freed by number, and not by request: before 0.5.9."""
        self.relay: Any = None
        """The module of the relay between launches; `None` in older releases, where it is not followed."""
        self.drafts: Any = None
        """The module of the inputs of speculative steps; `None` in older releases, in which they are not driven."""
        if self.unified:
            self._import_unified(memory)
        else:
            self.tree = importlib.import_module(f"{memory}.hiradix_cache")
            self.host = importlib.import_module(_HOST_POOL)

        base = self.host.HostKVCache
        given = dict.fromkeys(("get_data_page", "get_dummy_flat_data_page"), self._numbered)
        self.host_class = type("Host", (base,), {**dict.fromkeys(base.__abstractmethods__, _nothing), **given})
        """The release's host pool without a buffer, which copies nothing. Its files hold numbers."""

    @property
    def _numbered(self) -> Callable[..., Any]:
        """Replaces the bytes of a host page by the position of its first slot."""
        return lambda _, index=0, *__, **___: self.torch.tensor([int(index)])

    def _import_unified(self, memory: str) -> None:
        """Import the common tree of all pools, with the modules that it needs."""
        self.tree = importlib.import_module(f"{memory}.unified_radix_cache")
        self.core = importlib.import_module(f"{memory}.unified_cache.unified_tree_core")
        self.component = importlib.import_module(f"{memory}.unified_cache.component_type")
        self.assembler = importlib.import_module(f"{memory}.hybrid_cache.hybrid_pool_assembler")
        self.hybrid = importlib.import_module(f"{memory}.hybrid_cache.hybrid_cache_controller")
        components = importlib.import_module(f"{memory}.unified_cache.components")
        self.full_component = components.FullComponent
        self.window_component = components.SWAComponent
        self.state_component = components.MambaComponent
        if self.drives_sessions:
            self.relay = importlib.import_module("sglang.srt.managers.overlap_utils")
        self.drafts = importlib.import_module("sglang.srt.speculative.eagle_info")
        self.host = importlib.import_module(f"{memory}.pool_host.base")

    @cached_property
    def trees(self) -> list[str]:
        """The classes of trees that are hooked. Some releases have two generations of them."""
        memory = self.root / "srt" / "mem_cache"
        older = ["HiRadixCache", _PLAIN] if (memory / "hiradix_cache.py").is_file() else []
        return older + [_UNIFIED] * (not older or (memory / "pool_host" / "group.py").is_file())

    @property
    def windows(self) -> bool:
        """Whether servers with windows or states are followed: from 0.5.20 on. Before, a free of their pages waits."""
        return hasattr(self.window_allocator, "_free_swa_pages")

    @cached_property
    def sessions(self) -> Any:
        """The module of streaming sessions; `None` in the oldest releases, in which they are not followed."""
        if not (self.root / "srt" / "session").is_dir():
            return None
        return importlib.import_module("sglang.srt.session.session_controller")

    @cached_property
    def session_slots(self) -> Any:
        """The class with their slots; `None` as well."""
        if self.sessions is None:
            return None
        return importlib.import_module("sglang.srt.session.streaming_session").StreamingSession

    @property
    def drives_sessions(self) -> bool:
        """Whether its own scheduler is driven with clients that have sessions: from 0.5.23 on."""
        return hasattr(self.session_slots, "will_lend_record")

    @property
    def scheduled(self) -> bool:
        """Whether its own scheduler is driven: from 0.5.14 on."""
        return (self.root / "srt" / "runtime_context.py").is_file()

    @cached_property
    def group(self) -> Any:
        """The module of the pools that a host cache has."""
        return importlib.import_module("sglang.srt.mem_cache.pool_host.group")

    @cached_property
    def storage(self) -> Any:
        """The module of storages behind the host tier."""
        return importlib.import_module("sglang.srt.mem_cache.hicache_storage")

    @cached_property
    def hashes(self) -> Any:
        """The module that names the pages of a storage, from 0.5.14 on."""
        return importlib.import_module("sglang.srt.mem_cache.utils")

    @property
    def reserves(self) -> bool:
        """Whether a prefetch takes host pages before the storage says how many it has: before 0.5.16."""
        return "host_indices" in inspect.signature(self.controller_class.prefetch).parameters

    @property
    def checkpoints(self) -> bool:
        """Whether `mem_cache.common` matches and publishes requests: from 0.5.22 on."""
        return hasattr(self.common, "checkpoint_kv_cache")

    @cached_property
    def attachment(self) -> Any:
        """The module that attaches a storage to a server that runs, in releases with one tree for all pools."""
        return importlib.import_module("sglang.srt.mem_cache.unified_cache.storage_attachment")

    @cached_property
    def scheduler(self) -> Any:
        """The module of its scheduler, with all scheduling modules."""
        return importlib.import_module("sglang.srt.managers.scheduler")

    @cached_property
    def pairs(self) -> bool:
        """Whether transfers between its prefill and decode servers are followed: from 0.5.23 on."""
        return (self.root / "srt" / "disaggregation" / "minimax.py").is_file()

    @cached_property
    def row_pools(self) -> list[Any]:
        """The classes of tables of rows: that of all servers except decode, and that of decode."""
        return [self.pools.ReqToTokenPool, *([self.pair.decode.DecodeReqToTokenPool] if self.pairs else [])]

    @cached_property
    def pair(self) -> SimpleNamespace:
        """The modules of transfers between prefill and decode servers."""
        names = {
            "bootstrap": "common.bootstrap",
            "common": "common.conn",
            "decode": "decode",
            "mooncake": "mooncake.conn",
            "prefill": "prefill",
            "utils": "utils",
        }
        return SimpleNamespace(
            **{name: importlib.import_module(f"{_DISAGGREGATION}.{path}") for name, path in names.items()}
        )

    @cached_property
    def weight_updater(self) -> Any:
        """The class that replaces weights; `None` in older releases, in which updates are not followed."""
        try:
            path = "sglang.srt.managers.scheduler_components.weight_updater"
            made = importlib.import_module(path).SchedulerWeightUpdaterManager
        except ImportError:
            return None
        return made if hasattr(made, "flush_cache_after_weight_update") else None

    @cached_property
    def salts(self) -> bool:
        """Whether keys have salts besides extra keys; in older releases the server's front end joins the two."""
        return "cache_salt" in inspect.signature(self.batches.Req.__init__).parameters

    @cached_property
    def verifying(self) -> Any:
        """The module that decides which states a speculative step keeps."""
        return importlib.import_module("sglang.srt.speculative.spec_utils")

    @cached_property
    def opaque_core(self) -> Any:
        """The tree's core in Rust; `None` in a release that has none."""
        try:
            return importlib.import_module("sglang.srt.mem_cache.rust_tree_core.adapter").RustUnifiedTreeCore
        except ImportError:
            return None

    @property
    def cache_class(self) -> Any:
        """The tree with a host tier."""
        return self.tree.UnifiedRadixCache if self.unified else self.tree.HiRadixCache

    @property
    def tree_class(self) -> Any:
        """The tree of its server."""
        return self.radix.RadixCache if self._tree == _PLAIN else self.cache_class

    @property
    def controller_class(self) -> Any:
        """The class of the controller that queues transfers and starts them."""
        return self.hybrid.HybridCacheController if self.unified else self.controller.HiCacheController

    @property
    def modules_with_device(self) -> list[Any]:
        """The modules that look up the device's streams and events when they are imported."""
        candidates = [self.controller, self.transfer, *([self.hybrid] if self.unified else [])]
        return [module for module in candidates if hasattr(module, "device_module")]
