"""Streaming sessions around the prefix store: the KV of a conversation stays in a slot between two turns.

A decorator: it answers for turns of sessions and leaves everything else to the tree inside, which knows nothing of
sessions. The record of a slot is *lent* to the turn in flight. The slot goes on naming it, so that a turn that is
not admitted can match again (20476), but as long as the lend lasts the record counts as the turn's (22213).
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvref.allocator import TokenAllocator
from kvref.radix_cache import CachedState, RadixCache
from kvref.release import release_kv_cache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord, Request, Run, SessionSlot
from kvref.state_pool import resumable_len, rewind
from kvspec import lengths
from kvspec.tokens import Tokens


class SessionMatch(NamedTuple):
    """What a request may build on. Lengths in tokens."""

    prefix_len: int
    protected_len: int
    lent: KvRecord | None
    """The slot's record, whose row and pages the request holds from now on."""


class SessionCache:
    """The slots of all open sessions."""

    def __init__(
        self, inner: RadixCache, pool: ReqToTokenPool, allocator: TokenAllocator, *, publishes_chunks: bool = False
    ) -> None:
        """No session is open. With `publishes_chunks` a first turn publishes after each chunk."""
        self.publishes_chunks = publishes_chunks
        self.inner = inner
        self.pool = pool
        self.allocator = allocator
        self.slots: dict[str, SessionSlot] = {}

    def open(self, name: str) -> None:
        """Open a session; its slot is empty."""
        self.slots[name] = SessionSlot(name, Tokens(self.inner.page_size))

    def match_prefix(self, request: Request) -> SessionMatch:
        """How much of a request is there already. The last token never is: its logits are needed.

        A turn whose slot holds KV goes on from there. If none of it could be kept, the slot gives it up, and the
        turn is matched like any other request.
        """
        key_len = len(request.tokens) - 1
        slot = request.slot
        if slot is not None and slot.kv is not None:
            kept_len = resumable_len(slot.kv, key_len)
            if min(slot.kv.kv_committed_len, kept_len):
                return self._lend(slot, slot.kv, kept_len)
            self.wipe(slot)
        pages = self.inner.match_prefix(request.tokens.pages[: key_len // self.inner.page_size]).pages
        matched = len(pages) * self.inner.page_size
        return SessionMatch(matched, matched, None)

    def _lend(self, slot: SessionSlot, kv: KvRecord, key_len: int) -> SessionMatch:
        """Lend the slot's record; lending it again to the same turn gives the same answer (20476)."""
        slot.lent = True
        prefix_len = min(kv.kv_committed_len, key_len)
        self._free_tail(kv, prefix_len)
        rewind(kv, prefix_len)
        return SessionMatch(prefix_len, self._protected_len(kv), kv)

    def _protected_len(self, kv: KvRecord) -> int:
        """What the store owns of a record: whole pages, unlike the prefix_len that is lent with it (20070)."""
        return kv.cache_protected_len

    def _free_tail(self, kv: KvRecord, prefix_len: int) -> None:
        """Free what the next extend would orphan, and cut the lengths to what is left (22862).

        The extend writes the row from `prefix_len` on, so the pages that stand there are freed now or never:

        [0, prefix_len)                    stays
        [prefix_len, ceil(prefix_len))     stays: the rest of a page that holds kept tokens too
        [ceil(prefix_len), allocated)      freed, in whole pages
        """
        orphaned = self._orphaned(kv, prefix_len)
        table = self.pool.req_to_token[kv.req_pool_idx]
        self.allocator.free(table[orphaned.start : orphaned.stop])
        del table[orphaned.start :]
        kv.lengths = lengths.resume(kv.lengths, prefix_len, self.inner.page_size)

    def _orphaned(self, kv: KvRecord, prefix_len: int) -> range:
        """The pages of the block table whose slots the next extend would overwrite without freeing them."""
        return lengths.tail(prefix_len, kv.kv_allocated_len, self.inner.page_size)

    def cache_unfinished_req(self, run: Run) -> CachedState | None:
        """Publish what a run's last extend wrote, unless that is the session's own."""
        if not self._is_published(run):
            return None
        return self.inner.cache_unfinished_req(run.kv, run.tokens, run.seq_len)

    def _is_published(self, run: Run) -> bool:
        """Of a session only the last chunk of a first turn goes to the tree (20476).

        A later turn goes on from a slot, and what stands between two chunks is not the end of anything yet; unless it
        is to be published all the same.
        """
        waits_for_last = run.mid_prefill and not self.publishes_chunks
        return run.request.slot is None or not (run.request.resumed or waits_for_last)

    def save(self, slot: SessionSlot, run: Run) -> None:
        """The turn's memory goes back to the slot, valid as far as it was launched and its tokens are kept (22862).

        [0, committed)                stays
        [committed, ceil(allocated))  stays: only the next match knows from where on it will write
        """
        kv = run.kv
        kv.kv_committed_len = min(kv.kv_committed_len, run.launched_len, len(run.tokens))
        kv.state_len = run.launched_len
        self.take_back(slot, kv)

    def take_back(self, slot: SessionSlot, kv: KvRecord) -> None:
        """The slot holds a record from now on: the end of a lend, or what a first turn has made."""
        slot.kv = kv
        slot.lent = False

    def end_turn(self, slot: SessionSlot) -> None:
        """The turn in flight has left; a close that has waited for it happens now (22213)."""
        slot.turn = None
        if slot.closing:
            self.close(slot)

    def close(self, slot: SessionSlot) -> None:
        """The session is gone, with all it holds."""
        self.wipe(slot)
        del self.slots[slot.name]

    def wipe(self, slot: SessionSlot) -> None:
        """Release what the slot holds; its tokens stay, and the next turn prefills them again."""
        kv, slot.kv = slot.kv, None
        slot.lent = False
        if kv is not None:
            release_kv_cache(kv, self.inner, self.pool, self.allocator)

    def idle(self) -> Iterator[tuple[str, KvRecord]]:
        """The slots that hold memory themselves. A lent one does not: its turn counts it (22213)."""
        for name, slot in self.slots.items():
            if slot.kv is not None and not slot.lent:
                yield name, slot.kv
