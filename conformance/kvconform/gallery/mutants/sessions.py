"""Defects of streaming sessions: lending the slot, ending the lend, aborting, closing."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.request import KvRecord, Run, SessionSlot
from kvref.session_cache import SessionCache, SessionMatch
from kvspec.events import ReleaseAnswer


class _ForgetsWhatItLends(SessionCache):
    def _lend(self, slot: SessionSlot, kv: KvRecord, key_len: int) -> SessionMatch:
        match = super()._lend(slot, kv, key_len)
        slot.kv = None
        return match


class _DestructiveRestore(Engine):
    session_class = _ForgetsWhatItLends


class _PublishesChunks(SessionCache):
    def _is_published(self, run: Run) -> bool:
        return run.request.slot is None or not run.request.resumed


class _ChunkStashPublished(Engine):
    session_class = _PublishesChunks


class _PublishesLaterTurns(SessionCache):
    def _is_published(self, run: Run) -> bool:
        return run.request.slot is None or not run.mid_prefill


class _LaterTurnPublished(Engine):
    session_class = _PublishesLaterTurns


class _AbortSavesInflatedLengths(Engine):
    def abort(self, req: str) -> ReleaseAnswer:
        if req in self.running:
            self.requests[req].extended = self.requests[req].slot is None
        return super().abort(req)


class _AbortLeavesTheLendOpen(Engine):
    def abort(self, req: str) -> ReleaseAnswer:
        request = self.requests.get(req)
        answer = super().abort(req)
        if request is not None and request.slot is not None and request.resumed and not request.extended:
            request.slot.lent = True
        return answer


class _CloseFreesKvInUse(Engine):
    def close_session(self, session: str) -> ReleaseAnswer:
        answer = super().close_session(session)
        slot = self.session_cache.slots.get(session)
        if slot is None:
            return answer
        self.session_cache.wipe(slot)
        return ReleaseAnswer(self._freed())


BUGS = (
    Bug(
        name="destructive-restore",
        title="Lending a session's KV empties the slot, so a turn that is put off cannot match it again.",
        source=("20476",),
        rule="SESS-2",
        symptom="A chunked turn that the scheduler rejects falls through to the prefix tree at its next match: it "
        "loses its conversation's KV and takes locks that are never released.",
        factory=_DestructiveRestore,
        also=("LEN-2", "ROW-2", "CAP-1"),
    ),
    Bug(
        name="chunk-stash-published",
        title="The tokens that a session's turn has prefilled between two chunks go into the prefix tree.",
        source=("20476",),
        rule="SESS-6",
        symptom="The tree owns, and may evict, pages in the middle of a conversation that the slot counts as its own.",
        factory=_ChunkStashPublished,
    ),
    Bug(
        name="later-turn-published",
        title="A turn that continues a session's KV publishes it to the prefix tree, as a first turn does.",
        source=("20476",),
        rule="SESS-6",
        symptom="The lock that the session holds and the length that it believes to be protected diverge.",
        factory=_LaterTurnPublished,
    ),
    Bug(
        name="abort-saves-inflated-lengths",
        title="Aborting a running turn saves its KV to the session, with lengths past the last finished turn.",
        source=("22862",),
        rule="SESS-5",
        symptom="The next turn continues from KV of tokens that the client never got: it answers another question.",
        factory=_AbortSavesInflatedLengths,
        also=("ROW-1",),
    ),
    Bug(
        name="abort-leaves-the-lend-open",
        title="Aborting a turn that has matched, but never ran, leaves its session's slot marked as lent.",
        source=("22213", "22862"),
        rule="ROW-1",
        symptom="No figure counts the slot: the leak check fires, and the session can neither be preempted nor "
        "released.",
        factory=_AbortLeavesTheLendOpen,
    ),
    Bug(
        name="close-frees-kv-in-use",
        title="Closing a session frees its KV while its turn is in flight.",
        source=("22213",),
        rule="SESS-4",
        symptom="The running turn reads pages that others write; when it ends, they are freed a second time.",
        factory=_CloseFreesKvInUse,
    ),
)
