"""Defects that show only with three of a kind: launches in flight, locks on one prefix, requests in a batch.

No source document describes such an engine. With two of a kind each of them behaves correctly.
"""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import Run
from kvref.tree_node import TreeNode
from kvspec.events import DecodeAnswer


class _WithholdsForOneLaunch(ReqToTokenPool):
    def end_read(self) -> None:
        completed = self._reads[0]
        super().end_read()
        for row in self._withheld & completed.keys():
            self._withheld.remove(row)
            self._free.append(row)


class _RowWithheldForOneLaunch(Engine):
    pool_class = _WithholdsForOneLaunch


class _WithholdsForTheOldest(ReqToTokenPool):
    def is_read(self, row: int) -> bool:
        return bool(self._reads) and row in self._reads[0]


class _OnlyTheOldestWithholds(Engine):
    pool_class = _WithholdsForTheOldest


class _ReadByTheOldest(ReqToTokenPool):
    def read_len(self, row: int) -> int:
        return self._reads[0].get(row, 0) if self._reads else 0


class _RaceWithTheOldestOnly(Engine):
    pool_class = _ReadByTheOldest


class _ForgottenByTheOldest(Engine):
    def _end_run(self, run: Run) -> None:
        launches = self.launches.copy()
        while len(self.launches) > 1:
            self.launches.pop()
        super()._end_run(run)
        self.launches = launches


class _CountsToTwo(RadixCache):
    def inc_lock_ref(self, node: TreeNode) -> None:
        path = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        super().inc_lock_ref(node)
        for locked in path[:-1]:
            locked.lock_ref = min(2, locked.lock_ref)


class _ThirdLockNotCounted(Engine):
    tree_class = _CountsToTwo


class _SplitsOneLock(RadixCache):
    def _split(self, node: TreeNode, at: int) -> TreeNode:
        middle = super()._split(node, at)
        middle.lock_ref = min(1, middle.lock_ref)
        return middle


class _SplitKeepsOneLock(Engine):
    tree_class = _SplitsOneLock


class _ThirdOfABatchNotCounted(Engine):
    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        before = {req: self.running[req].kv.kv_committed_len for req in reqs[2:] if req in self.running}
        answer = super().decode(reqs, n)
        for req, committed in before.items():
            self.running[req].kv.kv_committed_len = committed
        return answer


BUGS = (
    Bug(
        name="row-withheld-for-one-launch",
        title="A released row becomes free when the first launch that reads it completes.",
        source=("17850",),
        rule="RACE-1",
        also=("ROW-1",),
        symptom="With more than two launches in flight, a new request overwrites indices that a running kernel reads.",
        factory=_RowWithheldForOneLaunch,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="only-the-oldest-withholds",
        title="Only the oldest launch in flight is asked whether it still reads a row.",
        source=("17850",),
        rule="RACE-1",
        also=("ROW-1",),
        symptom="A request that joined in the newest launch frees its row while that launch still reads it.",
        factory=_OnlyTheOldestWithholds,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="race-with-the-oldest-only",
        title="A turn that resumes a row is checked only against the positions that the oldest launch reads.",
        source=("17850",),
        rule="RACE-1",
        symptom="The next turn writes indices that the newest launch of the last turn has yet to read.",
        factory=_RaceWithTheOldestOnly,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="forgotten-by-the-oldest",
        title="A run that ends is removed from the oldest launch in flight only, and stays in the later ones.",
        source=("994",),
        rule="CHUNK-1",
        also=("OP-1",),
        symptom="A token sampled for a run that has ended is appended to the next run, or awaited for ever.",
        factory=_ForgottenByTheOldest,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="third-lock-not-counted",
        title="A node's lock counter stops at two.",
        source=("20070",),
        rule="STORE-3",
        also=("STORE-2", "ACC-1"),
        symptom="When two of three holders have left, the prefix of the third is evicted.",
        factory=_ThirdLockNotCounted,
        synthetic=True,
    ),
    Bug(
        name="split-keeps-one-lock",
        title="When a node is split, its new upper half gets one lock, however many holders it has.",
        source=("20070",),
        rule="STORE-3",
        also=("STORE-2", "ACC-1"),
        symptom="When one holder leaves, the upper half of the prefix that the others still hold counts as evictable.",
        factory=_SplitKeepsOneLock,
        synthetic=True,
    ),
    Bug(
        name="third-of-a-batch-not-counted",
        title="A decode step raises the committed length of the first two requests of a batch.",
        source=("994",),
        rule="LEN-1",
        symptom="In wider batches the others write every token to the same position.",
        factory=_ThirdOfABatchNotCounted,
        synthetic=True,
    ),
)
