"""Defects of the window pool of models with a sliding window."""

from collections.abc import Collection, Iterable
from typing import Literal

from msgspec.structs import replace

from kvconform.gallery.mutants.bug import Bug, TrustingSWAAllocator, WindowEngine
from kvref.radix_cache import CachedState, MatchResult, RadixCache
from kvref.request import KvRecord
from kvref.swa_radix_cache import SWARadixCache
from kvref.tree_node import TreeNode, parent_of
from kvref.window_pool import SWAAllocator
from kvspec.events import Figures, Refusal, SwaEvictAnswer
from kvspec.pages import compress
from kvspec.tokens import Page, Tokens
from kvspec.window import window_held_tokens

Mode = Literal["idle", "busy"]


class _HeldIgnoresTheCursor(WindowEngine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures, page_size = super().report(mode), self.config.page_size
        slots = [slot.kv for slot in self.session_cache.slots.values() if slot.kv is not None]
        idle = [kv for kv in slots if kv not in self.holders.values()]
        return (
            figures
            if figures.window_available is None
            else replace(
                figures,
                window_session_held=sum(window_held_tokens(kv.lengths, 0, page_size) for kv in idle),
                window_uncached=sum(window_held_tokens(kv.lengths, 0, page_size) for kv in self.holders.values()),
            )
        )


class _FreesWhatWasLeftBehindAgain(TrustingSWAAllocator):
    def __init__(self, num_pages: int, page_size: int, num_window_pages: int) -> None:
        super().__init__(num_pages, page_size, num_window_pages)
        self.left_behind: dict[int, int] = {}

    def free_window(self, pages: Iterable[int]) -> None:
        pages = list(pages)
        self.left_behind.update((page, self.window_of[page]) for page in pages if page in self.window_of)
        super().free_window(pages)

    def free(self, pages: Collection[int]) -> None:
        again = [self.left_behind.pop(page) for page in pages if page in self.left_behind]
        super().free(pages)
        for page in pages:
            self.left_behind.pop(page, None)
        self.window.free(again)


class _WindowFreedTwice(WindowEngine):
    allocator_class = _FreesWhatWasLeftBehindAgain


class _IdleCheckMixesThePools(WindowEngine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        return replace(figures, window_evictable=figures.evictable) if figures.window_available is not None else figures


class _IdleCheckForbidsWindowLocks(WindowEngine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        if mode == "idle" and figures.window_protected:
            raise Refusal("SWA-5", f"{figures.window_protected} tokens of the window pool are locked, but nothing runs")
        return figures


class _ForgetsTheLastPage(SWARadixCache):
    def cache_finished_req(self, kv: KvRecord, tokens: Tokens, length: int) -> CachedState | None:
        cached = super().cache_finished_req(kv, tokens, length)
        table = self.pool.req_to_token[kv.req_pool_idx]
        if len(table) * self.page_size > kv.cache_protected_len:
            table.pop()
        return cached


class _LastTokenLeaked(WindowEngine):
    tree_class = _ForgetsTheLastPage


class _MatchesTombstones(SWARadixCache):
    def match_prefix(self, key: list[Page]) -> MatchResult:
        return RadixCache.match_prefix(self, key)


class _TombstoneMatched(WindowEngine):
    tree_class = _MatchesTombstones


class _UnlocksOneNodeMore(SWARadixCache):
    def dec_lock_ref(self, node: TreeNode) -> None:
        beyond = [node, *(parent_of(inside) for inside in self._in_reach(node))][-1]
        super().dec_lock_ref(node)
        if beyond.swa_lock_ref:
            beyond.swa_lock_ref -= 1
            if not beyond.swa_lock_ref and not beyond.swa_tombstone:
                self.swa_evictable_size += len(beyond.value)
                self.swa_protected_size -= len(beyond.value)
                self._windows.offer(beyond)


class _WindowLockReleasedTooFar(WindowEngine):
    tree_class = _UnlocksOneNodeMore


class _CursorOnePageTooFar(WindowEngine):
    def swa_evict(self, req: str) -> SwaEvictAnswer:
        answer = super().swa_evict(req)
        kv, page_size = self.running[req].kv, self.config.page_size
        cursor = kv.swa_evicted_seqlen
        if cursor + page_size <= kv.kv_committed_len and isinstance(self.allocator, SWAAllocator):
            self.allocator.free_window(self.pool.req_to_token[kv.req_pool_idx][cursor // page_size :][:1])
            kv.swa_evicted_seqlen += page_size
            freed = [*(answer.window_freed or ()), *compress(self.allocator.window.drain_freed())]
            return SwaEvictAnswer(kv.swa_evicted_seqlen, freed)
        return answer


class _FreesOnlyPages(TrustingSWAAllocator):
    def free(self, pages: Collection[int]) -> None:
        sides = {page: self.window_of.pop(page) for page in pages if page in self.window_of}
        super().free(pages)
        self.window_of |= sides


class _WindowLeftAtRelease(WindowEngine):
    allocator_class = _FreesOnlyPages


class _RevivesWithTheHoldersPage(SWARadixCache):
    """Takes the holder's page over instead of its window side, and frees the tree's, even if it is locked."""

    def insert(self, node: TreeNode, key: list[Page], value: list[int]) -> MatchResult:
        dead = {page for page in self._walk(node, key)[0] if page not in self.allocator.window_of}
        known, last_node = super().insert(node, key, value)
        for place, page in enumerate(known):
            if page in dead and page in self.allocator.window_of:
                self.allocator.move_window(page, value[place])
                self._rename(last_node, page, value[place])
                self.allocator.free([page])
                known[place] = value[place]
        return MatchResult(known, last_node)

    def _rename(self, node: TreeNode, page: int, to: int) -> None:
        while page not in node.value:
            node = parent_of(node)
        node.value[node.value.index(page)] = to

    def _drop_duplicates(self, table: list[int], first: int, known: list[int]) -> None:
        own = table[first : first + len(known)]
        self.allocator.free([page for page, kept in zip(own, known, strict=True) if page != kept])
        table[first : first + len(known)] = known


class _RevivalFreesALockedPage(WindowEngine):
    tree_class = _RevivesWithTheHoldersPage


BUGS = (
    Bug(
        name="window-held-ignores-the-cursor",
        title="Window memory that a holder has is counted from its protected length, whatever it has given back.",
        source=("20070",),
        rule="ACC-2",
        symptom='"Mem Leak Detected" for the window pool as soon as a sequence is longer than the window.',
        factory=_HeldIgnoresTheCursor,
        pool="sliding_window",
    ),
    Bug(
        name="window-freed-twice-around-the-cursor",
        title="A release frees the window sides of all private pages, those before the cursor a second time.",
        source=("20070",),
        rule="SWA-1",
        symptom="Two requests write the same window page: wrong answers once a long request has ended.",
        factory=_WindowFreedTwice,
        also=("SWA-2", "SWA-3"),
        pool="sliding_window",
    ),
    Bug(
        name="idle-check-mixes-the-pools",
        title="The idle check of the window pool counts the evictable tokens of the full pool.",
        source=("20070",),
        rule="ACC-2",
        symptom="The server dies of its leak check when the prefix store has its first tombstone.",
        factory=_IdleCheckMixesThePools,
        pool="sliding_window",
    ),
    Bug(
        name="idle-check-forbids-window-locks",
        title="The sanity check at idle insists that no window side is locked.",
        source=("20070",),
        rule="OP-1",
        symptom="The server dies of an assertion in the first idle moment with an open session.",
        factory=_IdleCheckForbidsWindowLocks,
        pool="sliding_window",
    ),
    Bug(
        name="window-last-token-leaked",
        title="Finish leaves the last token out of what it releases, and with it the last page on both sides.",
        source=("20070", "994"),
        rule="PAGE-1",
        symptom="Every finished request of a model with a sliding window leaks its last slot.",
        factory=_LastTokenLeaked,
        pool="sliding_window",
    ),
    Bug(
        name="tombstone-matched",
        title="The prefix store matches pages whose window side is gone.",
        source=("20070",),
        rule="SWA-4",
        symptom="Answers that ignore, or mix up, the last tokens of a cached prompt.",
        factory=_TombstoneMatched,
        also=("SWA-2", "STORE-5"),
        pool="sliding_window",
    ),
    Bug(
        name="window-lock-released-too-far",
        title="Unlocking a prefix takes one window lock more back than locking it took.",
        source=("20070",),
        rule="SWA-5",
        symptom="The window of a running request is evicted, or a lock count becomes negative.",
        factory=_WindowLockReleasedTooFar,
        also=("ACC-2",),
        pool="sliding_window",
    ),
    Bug(
        name="cursor-one-page-too-far",
        title="A running request gives back one page of the window that its next step still reads.",
        source=("20070",),
        rule="SWA-2",
        symptom="The oldest tokens of the window are another request's.",
        factory=_CursorOnePageTooFar,
        pool="sliding_window",
        synthetic=True,
    ),
    Bug(
        name="window-left-at-release",
        title="A page that is freed does not take its window side with it.",
        source=("20070",),
        rule="SWA-3",
        symptom="The window pool runs empty while the full pool is free.",
        factory=_WindowLeftAtRelease,
        also=("SWA-1",),
        pool="sliding_window",
        synthetic=True,
    ),
    Bug(
        name="revival-frees-a-locked-page",
        title="Publishing to a tombstone puts the holder's page into the store and frees the store's, though it is "
        "locked.",
        source=("20070",),
        rule="SWA-6",
        symptom="A request that went on from the cached prefix reads a page that has been given to another: SGLang's "
        "releases up to 0.5.14, as the matrix of engines shows.",
        factory=_RevivalFreesALockedPage,
        also=("STORE-5", "PAGE-1"),
        pool="sliding_window",
    ),
)
