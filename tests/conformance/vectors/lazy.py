"""An implementation that is lazy wherever the rules allow it: its answers are right, and seldom the expected ones."""

from typing import Any

from kvref.eviction_queue import EvictionQueue
from kvref.release import evict_swa
from kvref.tree_node import TreeNode
from kvspec.events import Config, EvictAnswer, PublishAnswer, SwaEvictAnswer
from tests.conformance.vectors.late import UntilNothingIsInFlight


class MostRecentFirst(EvictionQueue):
    """Evicts what was used last."""

    def pop(self) -> TreeNode | None:
        able = [node for node in self._tickets if self._is_evictable(node)]
        if not able:
            return None
        node = max(able, key=lambda node: node.last_access)
        del self._tickets[node]
        return node


class Lazy(UntilNothingIsInFlight):
    """The reference, except that it evicts more than it is asked, in another order, and publishes no chunk.

    The windows of its requests are given back a page late, and their rows when no launch is in flight.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tree: Any = self.tree_cache
        for name in ("_leaves", "_windows", "_states"):
            if hasattr(tree, name):
                setattr(tree, name, MostRecentFirst(getattr(tree, name)._is_evictable))

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        return super().evict(n + (n > 0), window + (window > 0), states + (states > 0))

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        run, swa = self._run(req), self._swa
        if swa is None:
            return super().swa_evict(req)
        following = min(run.kv.kv_committed_len, run.launched_len, len(run.tokens) - 1)
        late = max(0, following - self.config.page_size)
        evict_swa(run.kv, late, self.config.sliding_window, self.pool, swa)
        return SwaEvictAnswer(max(run.kv.swa_evicted_seqlen, run.kv.cache_protected_len), self._window_freed())

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        run = self.running.get(req)
        if run is None or run.prepared_end or not chunked or not run.mid_prefill:
            return super().cache_unfinished(req, chunked)
        return PublishAnswer(run.kv.cache_protected_len, [], None if self._swa is None else [])


class NeverGivesBack(Lazy):
    """The same, and no window is given back before its request ends."""

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        run = self._run(req)
        if self._swa is None:
            return super().swa_evict(req)
        return SwaEvictAnswer(max(run.kv.swa_evicted_seqlen, run.kv.cache_protected_len), [])
