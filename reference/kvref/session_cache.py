"""Streaming sessions around the prefix store: the KV of a conversation stays in a slot between two turns.

A decorator around the tree, which has no sessions: it serves the turns of sessions and passes everything else on. The
record of a slot is *lent* to the turn in flight. The slot keeps a reference, so that a turn that is not admitted can
match again (20476). While it is lent, the record counts as the turn's (22213).
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
    """The match of a request. Lengths in tokens."""

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
        """Match a request's prefix, never its last token, whose logits are needed.

        A turn whose slot holds KV resumes at its end. If none of the KV can be kept, the slot releases it, and the turn
        matches as any other request.
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
        """Lend the slot's record; a second lend to the same turn gives the same answer (20476)."""
        slot.lent = True
        prefix_len = min(kv.kv_committed_len, key_len)
        self._free_tail(kv, prefix_len)
        rewind(kv, prefix_len)
        return SessionMatch(prefix_len, self._protected_len(kv), kv)

    def _protected_len(self, kv: KvRecord) -> int:
        """The store's part of a record: whole pages, unlike the prefix_len that is lent with it (20070)."""
        return kv.cache_protected_len

    def _free_tail(self, kv: KvRecord, prefix_len: int) -> None:
        """Free the pages that the next extend would orphan, and cut the lengths (22862).

        The extend overwrites the row from `prefix_len` on, so the pages there are freed now or never:

        [0, prefix_len)                    kept
        [prefix_len, ceil(prefix_len))     kept: the rest of a page that holds kept tokens too
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
        """Publish the pages that a run's last extend wrote, unless they are the session's own."""
        if not self._is_published(run):
            return None
        return self.inner.cache_unfinished_req(run.kv, run.tokens, run.seq_len)

    def _is_published(self, run: Run) -> bool:
        """Whether a run's last extend is published: of a session only the last chunk of a first turn (20476).

        A later turn resumes from the slot. An earlier chunk of a first turn is published with `publishes_chunks`.
        """
        waits_for_last = run.mid_prefill and not self.publishes_chunks
        return run.request.slot is None or not (run.request.resumed or waits_for_last)

    def save(self, slot: SessionSlot, run: Run) -> None:
        """Return the turn's memory to the slot, valid as far as it was launched and its tokens are kept (22862).

        [0, committed)                kept
        [committed, ceil(allocated))  kept: only the next match decides where its turn writes
        """
        kv = run.kv
        kv.kv_committed_len = min(kv.kv_committed_len, run.launched_len, len(run.tokens))
        kv.state_len = run.launched_len
        self.take_back(slot, kv)

    def take_back(self, slot: SessionSlot, kv: KvRecord) -> None:
        """Give a record to the slot: at the end of a lend, or of a first turn."""
        slot.kv = kv
        slot.lent = False

    def end_turn(self, slot: SessionSlot) -> None:
        """End the turn in flight, and close the session if a close has waited for it (22213)."""
        slot.turn = None
        if slot.closing:
            self.close(slot)

    def close(self, slot: SessionSlot) -> None:
        """Remove the session, and release its memory."""
        self.wipe(slot)
        del self.slots[slot.name]

    def wipe(self, slot: SessionSlot) -> None:
        """Release the slot's memory. The session keeps its tokens, and the next turn prefills them again."""
        kv, slot.kv = slot.kv, None
        slot.lent = False
        if kv is not None:
            release_kv_cache(kv, self.inner, self.pool, self.allocator)

    def idle(self) -> Iterator[tuple[str, KvRecord]]:
        """The slots that hold memory themselves. A lent record counts as its turn's (22213)."""
        for name, slot in self.slots.items():
            if slot.kv is not None and not slot.lent:
                yield name, slot.kv
