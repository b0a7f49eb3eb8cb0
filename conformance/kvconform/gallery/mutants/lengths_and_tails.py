"""Defects of the three lengths, and of the tail that a resumed turn leaves behind."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.request import KvRecord, Run, SessionSlot
from kvref.session_cache import SessionCache, SessionMatch
from kvspec import lengths
from kvspec.events import DecodeAnswer


class _UnalignedProtected(SessionCache):
    def _protected_len(self, kv: KvRecord) -> int:
        return kv.kv_committed_len


class _ProtectedFromUnalignedPrefix(Engine):
    session_class = _UnalignedProtected


class _KeepsOverAllocated(SessionCache):
    def _orphaned(self, kv: KvRecord, prefix_len: int) -> range:
        return lengths.tail(prefix_len, kv.kv_committed_len, self.inner.page_size)


class _SpeculativeTailOrphaned(Engine):
    session_class = _KeepsOverAllocated


class _KeepsCommitted(SessionCache):
    def _orphaned(self, kv: KvRecord, prefix_len: int) -> range:
        return lengths.tail(kv.kv_committed_len, kv.kv_allocated_len, self.inner.page_size)


class _RetractTailOrphaned(Engine):
    session_class = _KeepsCommitted


class _FreesPartialPage(SessionCache):
    def _orphaned(self, kv: KvRecord, prefix_len: int) -> range:
        tail = super()._orphaned(kv, prefix_len)
        return range(prefix_len // self.inner.page_size, tail.stop) if prefix_len < kv.kv_allocated_len else tail


class _TailFreedFromInsideAPage(Engine):
    session_class = _FreesPartialPage


class _FreesTheLastPage(SessionCache):
    def _orphaned(self, kv: KvRecord, prefix_len: int) -> range:
        orphaned = super()._orphaned(kv, prefix_len)
        first = max(orphaned.start - 1, kv.cache_protected_len // self.inner.page_size)
        return orphaned if orphaned or not prefix_len % self.inner.page_size else range(first, orphaned.stop)


class _TailFreedWithoutAGap(Engine):
    session_class = _FreesTheLastPage


class _ReservesTwice(SessionCache):
    def _lend(self, slot: SessionSlot, kv: KvRecord, key_len: int) -> SessionMatch:
        return super()._lend(slot, kv, max(key_len - 1, kv.cache_protected_len))


class _PrefixShortenedTwice(Engine):
    session_class = _ReservesTwice


class _ReservesInTheStore(SessionCache):
    def _lend(self, slot: SessionSlot, kv: KvRecord, key_len: int) -> SessionMatch:
        match = super()._lend(slot, kv, key_len)
        return match._replace(prefix_len=match.prefix_len - (match.prefix_len == match.protected_len))


class _ResumedBelowProtected(Engine):
    session_class = _ReservesInTheStore


class _SavesOvershoot(SessionCache):
    def save(self, slot: SessionSlot, run: Run) -> None:
        run.kv.kv_committed_len = min(run.kv.kv_committed_len, run.launched_len)
        self.take_back(slot, run.kv)


class _OvershootSaved(Engine):
    session_class = _SavesOvershoot


class _PlainStepOverAllocates(Engine):
    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        answer = super().decode(reqs, n)
        for kv in (self.running[req].kv for req in reqs if n == 1):
            room = len(self.pool.req_to_token[kv.req_pool_idx]) * self.config.page_size
            kv.kv_allocated_len = min(kv.kv_allocated_len + 1, room)
        return answer


BUGS = (
    Bug(
        name="protected-from-unaligned-prefix",
        title="A resumed turn takes the whole restored prefix, not its page-aligned part, for the prefix store's.",
        source=("20070", "22862"),
        rule="LEN-2",
        symptom="Streaming sessions crash on models with page_size > 1: the protected length is no whole number of "
        "pages, and the partial page belongs to the store and to the session.",
        factory=_ProtectedFromUnalignedPrefix,
        also=("STORE-2",),
    ),
    Bug(
        name="speculative-tail-orphaned",
        title="A resume frees nothing of what speculative decoding allocated past the committed tokens.",
        source=("22862",),
        rule="TAIL-1",
        symptom="Each turn leaks the drafts of the turn before: the next prefill overwrites the row entries, and "
        "no table names the pages any more. The pool runs dry over hours.",
        factory=_SpeculativeTailOrphaned,
    ),
    Bug(
        name="retract-tail-orphaned",
        title="A resume frees only what is allocated past the committed tokens, though it begins one token earlier.",
        source=("22862",),
        rule="TAIL-1",
        symptom="A retracted turn matches one token less than it committed, because the last is recomputed: one token "
        "leaks at each retry. The idle check finds some 14 tokens missing under retract pressure.",
        factory=_RetractTailOrphaned,
    ),
    Bug(
        name="tail-freed-from-inside-a-page",
        title="The freed tail begins inside a page: the page's committed tokens are freed with it.",
        source=("22862",),
        rule="TAIL-2",
        symptom="The allocator frees whole pages. The last page of the conversation is handed to another request, and "
        "the session goes on with that one's text.",
        factory=_TailFreedFromInsideAPage,
    ),
    Bug(
        name="tail-freed-without-a-gap",
        title="A resume frees its slot's last page if that is not full, though nothing is allocated past the prefix.",
        source=("22862",),
        rule="TAIL-2",
        symptom="The common turn, without drafts and retracts, loses the page in which its conversation ended.",
        factory=_TailFreedWithoutAGap,
        synthetic=True,
    ),
    Bug(
        name="prefix-shortened-twice",
        title="A resume keeps one more token back for the logits, though the key was shortened for them already.",
        source=("22862",),
        rule="SESS-2",
        symptom="A retried turn starts one token too early, and once more at each retry that follows.",
        factory=_PrefixShortenedTwice,
    ),
    Bug(
        name="resumed-below-protected",
        title="A resume keeps one more token back for the logits even where the slot holds only the shared prefix.",
        source=("22862",),
        rule="LEN-3",
        symptom="The turn writes its first position into a page of the prefix store: requests that have locked that "
        "prefix read it. Since the fix the engine asserts that this does not happen.",
        factory=_ResumedBelowProtected,
    ),
    Bug(
        name="plain-step-over-allocates",
        title="A decode step of one token allocates two positions of its page.",
        source=("994",),
        rule="LEN-1",
        symptom="A request that speculates nothing leaves with more allocated than committed, which engines assert "
        "cannot be.",
        factory=_PlainStepOverAllocates,
        synthetic=True,
    ),
    Bug(
        name="overshoot-saved",
        title="A session keeps what speculative decoding committed past the tokens that the client got.",
        source=("22862",),
        rule="DATA-1",
        symptom="The session's committed length runs ahead of its history: the next turn takes KV of tokens that were "
        "never returned for its own.",
        factory=_OvershootSaved,
    ),
)
