"""Defects of the prefix store: its pages and its locks."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.radix_cache import RadixCache
from kvref.request import Request, Run
from kvref.session_cache import SessionCache, SessionMatch
from kvref.tree_node import TreeNode


class _FreesTheShared(RadixCache):
    def _drop_duplicates(self, table: list[int], first: int, known: list[int]) -> None:
        self.allocator.free(known)


class _PublishFreesTheSharedPage(Engine):
    tree_class = _FreesTheShared


class _IgnoresLocks(RadixCache):
    def _is_evictable(self, node: TreeNode) -> bool:
        return not node.children and node.parent is not None


class _LockedPageEvicted(Engine):
    tree_class = _IgnoresLocks


class _LocksAtRetry(SessionCache):
    def match_prefix(self, request: Request) -> SessionMatch:
        is_retry = request.prefix_len is not None
        match = super().match_prefix(request)
        if is_retry and match.lent is None:
            key = request.tokens.pages[: match.prefix_len // self.inner.page_size]
            self.inner.inc_lock_ref(self.inner.match_prefix(key).last_node)
        return match


class _LockTakenAtRetry(Engine):
    session_class = _LocksAtRetry


class _KeepsTheOldNode(SessionCache):
    def cache_unfinished_req(self, run: Run) -> None:
        last_node = run.kv.last_node
        super().cache_unfinished_req(run)
        if run.request.slot is not None:
            run.kv.last_node = last_node


class _StaleLastNode(Engine):
    session_class = _KeepsTheOldNode


class _KeepsSharedLocks(RadixCache):
    def dec_lock_ref(self, node: TreeNode) -> None:
        if node.lock_ref == 1:
            super().dec_lock_ref(node)


class _SharedLockKept(Engine):
    tree_class = _KeepsSharedLocks


class _CountsLeaves(RadixCache):
    def _evict_leaf(self, leaf: TreeNode) -> None:
        super()._evict_leaf(leaf)
        self.evictable_size += len(leaf.value) - 1


class _EvictedLeavesCounted(Engine):
    tree_class = _CountsLeaves


BUGS = (
    Bug(
        name="shared-lock-kept",
        title="A lock is taken back only if no other request has locked the same prefix.",
        source=("20476",),
        rule="STORE-2",
        symptom="The prefix that most requests share is never evicted again, and no figure shows it before the end.",
        factory=_SharedLockKept,
        synthetic=True,
    ),
    Bug(
        name="evicted-leaves-counted",
        title="The counter of evictable pages is lowered by one for each leaf that is evicted, whatever its pages.",
        source=("20070",),
        rule="ACC-1",
        symptom="The counter grows beyond what there is, and evictions for lack of room end too early.",
        factory=_EvictedLeavesCounted,
        also=("STORE-2",),
        synthetic=True,
    ),
    Bug(
        name="publish-frees-the-shared-page",
        title="Publishing what the store has already frees the store's page and keeps the duplicate.",
        source=("994", "20476"),
        rule="STORE-5",
        symptom="Every request that has locked the shared prefix loses it to the next one that allocates.",
        factory=_PublishFreesTheSharedPage,
        also=("PAGE-1",),
    ),
    Bug(
        name="locked-page-evicted",
        title="Eviction takes leaves that are locked.",
        source=("20070",),
        rule="STORE-3",
        symptom="Under memory pressure a running request's prefix is handed to another: wrong output.",
        factory=_LockedPageEvicted,
    ),
    Bug(
        name="lock-taken-at-retry",
        title="A request that is matched again locks the prefix it matched, which is never unlocked.",
        source=("20476",),
        rule="STORE-2",
        symptom="Requests that are put off and retried pin their prefixes for good: the evictable memory shrinks until "
        "nothing can be admitted.",
        factory=_LockTakenAtRetry,
    ),
    Bug(
        name="stale-last-node",
        title="A session unlocks the tree node that it locked first, not the one that its lock has moved to.",
        source=("22213",),
        rule="STORE-2",
        symptom="Closing a session leaves its published prefix locked for ever.",
        factory=_StaleLastNode,
    ),
)
