"""One memory without a host tier, made of a release's own classes: plain, with a window, or with recurrent states.

The pools are those that the request level builds (`kvlab.sglang.adapter.building`); the tree is that of the release's
servers, with its core in Python or Rust, or switched off.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

from kvattach.sglang.release import Release
from kvlab.sglang.adapter import building
from kvlab.sglang.memory import Shape
from kvlab.stubs import Arguments


@dataclass(frozen=True)
class Pools:
    """The pools of a memory without a host tier. The window is in tokens."""

    cached: bool
    """Whether there is a prefix cache."""
    core: str
    """The language of the tree's core: python or rust."""
    window: int = 0
    window_pages: int = 0
    moves_every: int = 128
    """The interval in tokens at which pages that have left the window are freed."""
    unlocks: bool = False
    """Whether a request unlocks the window that it matched when it has advanced by one window."""
    states: int = 0
    """The number of slots for recurrent states."""
    tracked: bool = False
    """Whether each request has extra slots in which its kept states are tracked."""
    kept_every: int = 1
    """The interval in tokens at which states are kept while decoding."""
    path: int = -1
    """The most states that the tree keeps on a path; -1: no limit."""

    @classmethod
    def drawn(
        cls, rng: random.Random, pages: int, page_size: int, running: int, *, overlap: bool, states: bool
    ) -> "Pools":
        """Random pools for a server with these sizes, with `states` only if they can be driven."""
        kind = rng.choice(["plain", "window", *(["states"] * states)])
        # Without extra slots there is only the state at the end of a prompt, and only until the next launch.
        tracked = overlap or page_size > 1 or rng.random() < 0.5
        return cls(
            cached=rng.random() < 0.8,
            core=rng.choice(["python", "rust"]),
            window=rng.randint(1, 3 * page_size) if kind == "window" else 0,
            window_pages=rng.randint(pages * 3 // 4, pages) if kind == "window" else 0,
            moves_every=rng.choice([1, 1, 4]),
            unlocks=rng.random() < 0.5,
            states=running * (5 if tracked else 3) + rng.randint(0, 6) if kind == "states" else 0,
            tracked=tracked and kind == "states",
            kept_every=page_size * rng.choice([1, 1, 3]),
            path=rng.choice([-1, -1, 2]),
        )

    @property
    def take_drafts(self) -> bool:
        """Whether a server takes drafts with these pools: it refuses them if it caches states without extra slots."""
        return not self.states or not self.cached or self.tracked

    def with_drafts(self, steps: int, page_size: int) -> "Pools":
        """The same, with kept states so far apart that two consecutive steps keep at most one (`found`)."""
        apart = -(-2 * (steps + 1) // page_size) * page_size
        return replace(self, kept_every=max(self.kept_every, apart)) if steps else self

    @property
    def arguments(self) -> Arguments:
        """The server's arguments about recurrent states."""
        return Arguments(
            enable_mamba_extra_buffer=self.tracked,
            enable_mamba_extra_buffer_lazy=False,
            mamba_max_states_per_path=self.path,
            mamba_track_interval=self.kept_every,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a server with these pools."""
        return {
            "SGLANG_SWA_EVICTION_INTERVAL": str(self.moves_every),
            "SGLANG_OPT_RELEASE_PREFILL_SWA": str(self.unlocks),
        }

    def fewest(self, pages: int) -> int:
        """The number of pages of the smallest pool."""
        return min(pages, self.window_pages or pages)


class PoolMemory:
    """The rows, allocator and tree of such a memory."""

    host = None
    controller = None

    def __init__(self, release: Release, pools: Pools, shape: Shape) -> None:
        """Make them as a server without `--enable-hierarchical-cache`. The host pages of the shape are ignored."""
        self.release, self.pools, self.shape = release, pools, shape
        self.window, self.window_pages = pools.window or None, pools.window_pages
        self.rows = building.rows(release, shape.rows, shape.context, states=pools.states, extra_buffer=pools.tracked)
        self.allocator = building.allocator(release, shape.pages, shape.page_size, window_pages=pools.window_pages)
        kinds = release.component.ComponentType
        params: Any = release.init_params.CacheInitParams(
            disable=not pools.cached,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=shape.page_size,
            enable_mamba_extra_buffer=pools.tracked,
            sliding_window_size=pools.window or None,
            tree_components=(
                kinds.FULL,
                *((kinds.SWA,) if pools.window else ()),
                *((kinds.MAMBA,) if pools.states else ()),
            ),
            tree_core_backend=pools.core,
        )
        self.cache = release.tree.UnifiedRadixCache(params)
