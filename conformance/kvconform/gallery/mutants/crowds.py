"""Defects that show only in a crowd: with three launches in flight, three locks on one prefix, three in a batch.

No document describes an engine that did these. Each looks right as long as there are two of a kind.
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
        title="A row that was let go is free again when the first launch that reads it has completed.",
        source=("17850",),
        rule="RACE-1",
        also=("ROW-1",),
        symptom="With more than two launches in flight a new request's indices are written under a kernel that runs.",
        factory=_RowWithheldForOneLaunch,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="only-the-oldest-withholds",
        title="Whether a launch still reads a row is asked of the oldest launch in flight only.",
        source=("17850",),
        rule="RACE-1",
        also=("ROW-1",),
        symptom="A request that joined in the newest launch and leaves gives its row away under that launch.",
        factory=_OnlyTheOldestWithholds,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="race-with-the-oldest-only",
        title="A turn that resumes a row is checked against the positions that the oldest launch reads, and no other.",
        source=("17850",),
        rule="RACE-1",
        symptom="The next turn writes indices that the newest launch of the last turn has yet to read.",
        factory=_RaceWithTheOldestOnly,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="forgotten-by-the-oldest",
        title="A run that ends is struck off the oldest launch in flight, and stays on the later ones.",
        source=("994",),
        rule="CHUNK-1",
        also=("OP-1",),
        symptom="A token that was sampled for a run that has ended is added to the next one, or awaited for ever.",
        factory=_ForgottenByTheOldest,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="third-lock-not-counted",
        title="The counter of a node's locks goes no higher than two.",
        source=("20070",),
        rule="STORE-3",
        also=("STORE-2", "ACC-1"),
        symptom="When two of three holders have left, the prefix of the third is evicted.",
        factory=_ThirdLockNotCounted,
        synthetic=True,
    ),
    Bug(
        name="split-keeps-one-lock",
        title="A node that is cut in two gives its new upper half one lock, however many hold it.",
        source=("20070",),
        rule="STORE-3",
        also=("STORE-2", "ACC-1"),
        symptom="When one of the holders leaves, the front of the prefix that the others hold counts as free to evict.",
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
