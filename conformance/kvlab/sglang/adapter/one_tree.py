"""Reads the single tree of SGLang's releases since 0.5.16, whether its core is Python or not."""

from collections.abc import Iterable
from typing import Any

from kvconform.scheduler_state import Entry, Run
from kvlab.sglang.adapter.pools import Pools
from kvspec.events import Config


class OneTree:
    """The part of an adapter that finds the pages of the tree."""

    config: Config
    pools: Pools
    prefix_cache: Any

    def _may_decode(self, entry: Entry, run: Run) -> bool:
        """Decode steps begin when the prompt is published: a request that finishes before has its whole window."""
        return run.published

    def _store_pages(self) -> Iterable[int]:
        if not self.config.prefix_cache:
            return []
        size = self.config.page_size
        return (slot // size for slot in self.prefix_cache.all_values_flatten().tolist()[::size])

    def _store_states(self) -> set[int]:
        if self.pools.states is None or not self.config.prefix_cache:
            return set()
        return {self.pools.state(slot) for slot in self.prefix_cache.all_mamba_values_flatten()}
