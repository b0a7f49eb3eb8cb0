"""SGLang from 0.5.16 to 0.5.21 behind the protocol: one tree, `UnifiedRadixCache`, with the older functions around it.

Servers build this tree for every model, until 0.5.18 only for those with sliding windows or recurrent states and
`RadixCache` for the others, and `ChunkCache` where there is no prefix cache. Requests have a record; publishing is
still `cache_unfinished_req`, and a session's slot keeps a separate record.

Sliding windows and recurrent states are components of the tree.
"""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvlab.sglang.adapter.base import Adapter
from kvlab.sglang.adapter.building import of_keywords
from kvlab.sglang.adapter.engine import ARGUMENTS, Engine, first, module_with, replace
from kvlab.sglang.adapter.one_tree import OneTree
from kvlab.sglang.adapter.records import window_in_components
from kvspec.events import Config

COMPONENTS = ("unified_cache.components", "unified_cache_components")
"""The modules in which releases have the tree's components."""


def is_between(folder: Path) -> bool:
    """Whether a release's servers build the single tree at least for hybrid models, and it still has a chunk cache."""
    memory = folder / "sglang" / "srt" / "mem_cache"
    registry = memory / "registry.py"
    if not registry.is_file() or not (memory / "chunk_cache.py").is_file():
        return False
    built = registry.read_text(encoding="utf-8")
    return "import UnifiedRadixCache" in built and "mem_cache.swa_radix_cache import" not in built


class BetweenEngine(Engine):
    """The classes of such a release."""

    def __init__(self, folder: Path | None) -> None:
        """Import the release in `folder`, or the installed one.

        Raises:
            EngineError: the release cannot be loaded.
        """
        super().__init__(folder)
        memory = "sglang.srt.mem_cache"
        self.tree = importlib.import_module(f"{memory}.unified_radix_cache").UnifiedRadixCache
        self.has_plain_tree = self._built("radix_cache", "RadixCache") is not None
        """Whether models with one kind of layer have a separate tree."""
        component = first(*((f"{memory}.{name}", "MambaComponent") for name in COMPONENTS))
        states = sys.modules[component.__module__]
        kinds = states.ComponentType
        self.full, self.window, self.state = kinds.FULL, kinds.SWA, kinds.MAMBA
        slot = importlib.import_module(self.session_cache.__module__).SessionSlot
        window_in_components(self.batches.ReqKvInfo, self.window, self.batches.Req, slot)
        self.server_args.mamba_max_states_per_path = -1
        core = module_with(f"{memory}.rust_tree_core.adapter")
        for module in (states, core, sys.modules[self.tree.__module__]):
            for name in ARGUMENTS:
                replace(module, name, lambda: self.server_args)
        for module in (states, core, self.batches, module_with("sglang.srt.runtime_context")):
            replace(module, "mamba_cache_chunk_size", lambda: self.server_args.mamba_cache_chunk_size)
            replace(module, "mamba_extra_buffer_lazy_enabled", lambda: False)

    def prefix_cache(self, config: Config, pool: Any, allocator: Any) -> Any:
        """The tree with the release's default core, or no tree."""
        hybrid = config.sliding_window or config.num_states
        if not config.prefix_cache or (self.has_plain_tree and not hybrid):
            return super().prefix_cache(config, pool, allocator)
        window = (self.window,) if config.sliding_window else ()
        states = (self.state,) if config.num_states else ()
        params = {
            "tree_components": (self.full, *window, *states),
            "sliding_window_size": config.sliding_window or None,
            "enable_mamba_extra_buffer": bool(config.num_states),
        }
        return self.tree(
            self.init_params.CacheInitParams(
                disable=False,
                req_to_token_pool=pool,
                token_to_kv_pool_allocator=allocator,
                page_size=config.page_size,
                **of_keywords(self.init_params.CacheInitParams, params),
            )
        )

    @property
    def lacks(self) -> set[str]:
        """The lacking features: windows and states are components of the tree."""
        return set()

    def with_sessions(self, prefix_cache: Any) -> Any:
        """The tree has the sessions' slots itself; a chunk cache gets a separate cache of slots around it."""
        return prefix_cache if hasattr(prefix_cache, "session") else super().with_sessions(prefix_cache)


class BetweenAdapter(OneTree, Adapter):
    """The memory of one engine of such a release."""

    engine: BetweenEngine  # type: ignore[misc]

    def _store_pages(self) -> Iterable[int]:
        one = isinstance(self.prefix_cache, self.engine.tree)
        return super()._store_pages() if one else Adapter._store_pages(self)

    def _session_slots(self) -> dict[str, Any]:
        owner = getattr(self.tree_cache, "session", self.tree_cache)
        return {name: slot for name, slot in owner.slots.items() if self.engine.holds(slot)}
