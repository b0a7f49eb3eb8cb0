"""Defects of the release of a request: too little is released, or something twice."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.radix_cache import RadixCache
from kvref.request import KvRecord
from kvspec.events import ReleaseAnswer
from kvspec.pages import ceil_pages


class _SkipsTheCutPage(RadixCache):
    prefix_len = 0

    def _drop_duplicates(self, table: list[int], first: int, known: list[int]) -> None:
        spared = max(0, ceil_pages(self.prefix_len, self.page_size) - first)
        self.allocator.free(table[first + spared : first + len(known)])
        table[first : first + len(known)] = known


class _OldPrefixUnaligned(Engine):
    tree_class = _SkipsTheCutPage

    def finish(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        if run is None or not isinstance(self.tree_cache, _SkipsTheCutPage):
            return super().finish(req)
        published = run.kv.cache_protected_len == run.seq_len - run.seq_len % self.config.page_size
        self.tree_cache.prefix_len = run.seq_len if published else 0
        try:
            return super().finish(req)
        finally:
            self.tree_cache.prefix_len = 0


class _LastSlotKept(Engine):
    def _release(self, kv: KvRecord) -> None:
        table = self.pool.req_to_token[kv.req_pool_idx]
        del table[ceil_pages(kv.kv_allocated_len - 1, self.config.page_size) :]
        super()._release(kv)


class _RetractPublishes(Engine):
    def retract(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        if run is not None and run.request.slot is None and not run.mid_prefill:
            self.tree_cache.cache_finished_req(run.kv, run.tokens, min(run.launched_len, len(run.tokens)))
        return super().retract(req)


class _OverrunSlotFreedTwice(Engine):
    def finish(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        overrun = []
        if run is not None and run.request.slot is None and any(req in launch.sampled for launch in self.launches):
            overrun = self.pool.req_to_token[run.kv.req_pool_idx][-1:]
        freed = super().finish(req).freed or ()
        self.allocator.free(overrun)
        return ReleaseAnswer([*freed, *self._freed()])


BUGS = (
    Bug(
        name="old-prefix-from-unaligned-prefix",
        title="At finish, the duplicates to free begin where the request's unaligned prefix ends.",
        source=("994", "20070"),
        rule="PAGE-1",
        symptom="After a prefill that ended inside a page, the page that it ended in is neither published nor freed: "
        "the tail page leaks.",
        factory=_OldPrefixUnaligned,
    ),
    Bug(
        name="last-slot-kept",
        title="The release leaves the last token's slot out, a stray [:-1].",
        source=("994",),
        rule="PAGE-1",
        symptom="The slot of the end-of-sequence token leaks whenever it has a page to itself; with page_size 1, "
        "at every request.",
        factory=_LastSlotKept,
    ),
    Bug(
        name="retract-publishes",
        title="A retract publishes what the request has committed, as its finish does.",
        source=("994",),
        rule="PAGE-1",
        symptom="A retract gives back less than was counted on: its pages are cached, and the step is short again.",
        factory=_RetractPublishes,
        synthetic=True,
    ),
    Bug(
        name="overrun-slot-freed-twice",
        title="The slot of the decode step that overlap ran too far is freed on its own, and again with the rest.",
        source=("994",),
        rule="PAGE-1",
        symptom="The page is in the free list twice: two requests get it, and read each other's tokens.",
        factory=_OverrunSlotFreedTwice,
        also=("TAIL-2", "STORE-5"),
    ),
)
