"""Defects of the prefix store that show only under a condition that few traces meet: each has a vector of its own."""

from kvconform.gallery.mutants.bug import Bug, Engine, WindowEngine
from kvref.radix_cache import MatchResult, RadixCache
from kvref.swa_radix_cache import SWARadixCache
from kvref.tree_node import TreeNode
from kvspec.tokens import Page


class _NamesTheLastFreedCopy(RadixCache):
    def _drop_duplicates(self, table: list[int], first: int, known: list[int]) -> None:
        last = table[first + len(known) - 1] if self.page_size >= 16 and len(known) > 2 else None
        super()._drop_duplicates(table, first, known)
        if last is not None:
            table[first + len(known) - 1] = last


class _LastDuplicateNamed(Engine):
    tree_class = _NamesTheLastFreedCopy


class _ThreeNodesUnlocked(SWARadixCache):
    def dec_lock_ref(self, node: TreeNode) -> None:
        reached = list(self._in_reach(node))
        super().dec_lock_ref(node)
        for fourth in reached[3:4]:
            if not fourth.swa_lock_ref and not fourth.swa_tombstone:
                self.swa_evictable_size -= len(fourth.value)
                self.swa_protected_size += len(fourth.value)
            fourth.swa_lock_ref += 1


class _FourthWindowLockKept(WindowEngine):
    tree_class = _ThreeNodesUnlocked


class _ComparesTwoPages(RadixCache):
    def _walk(self, node: TreeNode, key: list[Page]) -> MatchResult:
        self._clock += 1
        pages: list[int] = []
        while (child := node.children.get(key[len(pages)]) if len(pages) < len(key) else None) is not None:
            part = key[len(pages) : len(pages) + len(child.key)]
            common = len(part) if part[:3] == child.key[:3] else 1
            node = child if common == len(child.key) else self._split(child, common)
            node.last_access = self._clock
            pages += node.value
        return MatchResult(pages, node)


class _EdgeComparedByItsFirstPages(Engine):
    tree_class = _ComparesTwoPages


class _SplitsDeepLocks(RadixCache):
    def _split(self, node: TreeNode, at: int) -> TreeNode:
        middle = super()._split(node, at)
        depth, above = 0, middle.parent
        while above is not None and above.parent is not None:
            depth, above = depth + 1, above.parent
        if depth > 1:
            middle.lock_ref = min(1, middle.lock_ref)
        return middle


class _DeepSplitKeepsOneLock(Engine):
    tree_class = _SplitsDeepLocks


class _LeavesOneOfAll(RadixCache):
    def evict(self, num_pages: int, num_window_pages: int = 0, num_states: int = 0) -> None:
        exactly = num_pages == self.evictable_size and num_pages > 1
        super().evict(num_pages - exactly, num_window_pages, num_states)


class _EvictionOfAllLeavesOne(Engine):
    tree_class = _LeavesOneOfAll


BUGS = (
    Bug(
        name="last-duplicate-named",
        title="In large pages, a publication with three duplicates leaves the last freed copy in the row.",
        source=("20070",),
        rule="PAGE-3",
        also=("STORE-5",),
        symptom="The request reads a page that goes to another holder.",
        factory=_LastDuplicateNamed,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="fourth-window-lock-kept",
        title="An unlock goes back over three nodes of the window's reach only.",
        source=("20070",),
        rule="SWA-5",
        also=("ACC-2",),
        symptom="Window pages of short prefixes stay locked for ever.",
        factory=_FourthWindowLockKept,
        pool="sliding_window",
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="edge-compared-by-three-pages",
        title="An edge of the tree is compared by its first three pages.",
        source=("22862",),
        rule="STORE-4",
        also=(
            "STORE-5",
            "STORE-1",
            "PAGE-1",
        ),
        symptom="Prompts that part later in an edge read each other's tokens.",
        factory=_EdgeComparedByItsFirstPages,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="deep-split-keeps-one-lock",
        title="A node below two others that is cut in two gives its upper half one lock.",
        source=("20070",),
        rule="STORE-2",
        also=(
            "STORE-3",
            "ACC-1",
        ),
        symptom="When one of its holders leaves, the others' prefix is evicted.",
        factory=_DeepSplitKeepsOneLock,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="eviction-of-all-leaves-one",
        title="An eviction of exactly all that is cached leaves one page.",
        source=("20070",),
        rule="STORE-2",
        also=(
            "STORE-3",
            "ACC-1",
        ),
        symptom="A request that just fits is refused.",
        factory=_EvictionOfAllLeavesOne,
        traffic=False,
        synthetic=True,
    ),
)
