"""Defects of the state slots of models with recurrent states."""

from typing import Literal

from msgspec.structs import replace

from kvconform.gallery.mutants.bug import Bug, StateEngine, TrustingStatePool
from kvref.mamba_radix_cache import MambaRadixCache
from kvref.manager.prefill import Prefill
from kvref.radix_cache import CachedState, MatchResult, RadixCache
from kvref.request import KvRecord, Request
from kvref.tree_node import TreeNode
from kvspec.events import Figures, MatchAnswer, ReleaseAnswer
from kvspec.tokens import Page, Tokens

Mode = Literal["idle", "busy"]


class _GivesAndKeeps(MambaRadixCache):
    def cache_finished_req(self, kv: KvRecord, tokens: Tokens, length: int) -> CachedState | None:
        cached = super().cache_finished_req(kv, tokens, length)
        if cached is not None:
            kv.states.append(cached.slot)
        return cached


class _StateFreedWithTheRow(StateEngine):
    tree_class = _GivesAndKeeps


class _ForgetsEarlyStates(TrustingStatePool):
    def free_early(self, request: Request) -> None:
        request.state = None


class _StateOfTheRejectedLeaked(StateEngine):
    states_class = _ForgetsEarlyStates


class _SecondLendLosesTheBorders(StateEngine):
    def match_prefix(self, req: str) -> MatchAnswer:
        request = self.requests.get(req)
        slot = None if request is None else request.slot
        lent = slot.kv if slot is not None and slot.lent else None
        answer = super().match_prefix(req)
        if lent is not None:
            self.pool.states.free(lent.states[1:])
            self.pool.states.drain_freed()
            del lent.states[1:]
            lent.tracked.clear()
        return answer


class _MatchesBeyondStates(MambaRadixCache):
    def match_prefix(self, key: list[Page]) -> MatchResult:
        return RadixCache.match_prefix(self, key)


class _MatchWithoutAState(StateEngine):
    tree_class = _MatchesBeyondStates

    def _source_of_state(self, prefill: Prefill) -> int:
        base = prefill.base
        has_none = isinstance(base, MatchResult) and base.last_node.mamba_value is None
        return 1 if has_none else super()._source_of_state(prefill)


class _NeverLooksForAState(MambaRadixCache):
    def _lacks_state(self, kv: KvRecord) -> bool:
        return kv.cache_protected_len in kv.tracked


class _StatePublishedTwice(StateEngine):
    tree_class = _NeverLooksForAState


class _LocksNoStates(MambaRadixCache):
    def inc_lock_ref(self, node: TreeNode) -> None:
        RadixCache.inc_lock_ref(self, node)

    def dec_lock_ref(self, node: TreeNode) -> None:
        RadixCache.dec_lock_ref(self, node)

    def _take_state(self, kv: KvRecord) -> int:
        slot = super()._take_state(kv)
        self.mamba_protected_size -= 1
        self.mamba_evictable_size += 1
        self._states.offer(kv.last_node)
        return slot


class _StateLockForgotten(StateEngine):
    tree_class = _LocksNoStates


class _DonatesTheWorkingSlot(TrustingStatePool):
    def donate(self, kv: KvRecord, border: int) -> int:
        del kv.tracked[border]
        return kv.states.pop(0)


class _WorkingSlotPublished(StateEngine):
    states_class = _DonatesTheWorkingSlot


class _KeepsInTheWorkingSlot(TrustingStatePool):
    def track(self, kv: KvRecord, start: int, end: int, page_size: int) -> None:
        super().track(kv, start, end, page_size)
        border = end - end % page_size
        if border > start and self.tracking_states:
            slot, kv.tracked[border] = kv.tracked[border], kv.states[0]
            kv.states = [slot, *(other for other in kv.states if other != slot)]


class _ComputingAndTrackingSwapped(StateEngine):
    states_class = _KeepsInTheWorkingSlot


class _WritesTheOtherTrackingSlot(TrustingStatePool):
    def track(self, kv: KvRecord, start: int, end: int, page_size: int) -> None:
        super().track(kv, start, end, page_size)
        if end - end % page_size > start and len(kv.tracked) == 2:
            older, newer = sorted(kv.tracked)
            kv.tracked[older], kv.tracked[newer] = kv.tracked[newer], kv.tracked[older]


class _TrackingSlotsSwapped(StateEngine):
    states_class = _WritesTheOtherTrackingSlot


class _OverwritesTheNewerBorder(TrustingStatePool):
    def track(self, kv: KvRecord, start: int, end: int, page_size: int) -> None:
        border = end - end % page_size
        if border <= start or not self.tracking_states:
            return
        unused = [slot for slot in kv.states[1:] if slot not in kv.tracked.values()]
        kv.tracked[border] = unused[0] if unused else kv.tracked.pop(max(kv.tracked))


class _NewerBorderOverwritten(StateEngine):
    states_class = _OverwritesTheNewerBorder


class _ResumedFromTheWorkingState(StateEngine):
    def _source_of_state(self, prefill: Prefill) -> int:
        base = prefill.base
        return base.states[0] if isinstance(base, KvRecord) else super()._source_of_state(prefill)


class _SessionStatesNotCounted(StateEngine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        return replace(figures, states_sessions=0) if figures.states_available is not None else figures


class _CloseKeepsTheStates(StateEngine):
    def close_session(self, session: str) -> ReleaseAnswer:
        slot = self.session_cache.slots.get(session)
        if slot is not None and slot.kv is not None and slot.turn is None:
            slot.kv.states = []
        return super().close_session(session)


BUGS = (
    Bug(
        name="state-freed-with-the-row",
        title="A finished request gives its last state to the store, and frees it with its row all the same.",
        source=("17850",),
        rule="MAMBA-1",
        symptom="The state of a cached prefix is that of another request: wrong answers from the second turn on.",
        factory=_StateFreedWithTheRow,
        also=("MAMBA-2", "MAMBA-4"),
        pool="recurrent_states",
    ),
    Bug(
        name="state-of-the-rejected-leaked",
        title="A request that took its state before it had a row, and was not admitted, leaves without giving it back.",
        source=("17850",),
        rule="MAMBA-2",
        symptom="Under load the state slots become fewer until nothing is admitted.",
        factory=_StateOfTheRejectedLeaked,
        also=("MAMBA-1", "ACC-3"),
        pool="recurrent_states",
    ),
    Bug(
        name="second-lend-loses-the-borders",
        title="The first lend takes the states of page borders from the slot, and a turn that is put off loses them.",
        source=("20476",),
        rule="MAMBA-1",
        symptom="A turn that is matched again has fewer state slots than its session had, and goes on from none.",
        factory=_SecondLendLosesTheBorders,
        also=("SESS-2",),
        pool="recurrent_states",
    ),
    Bug(
        name="match-without-a-state",
        title="The prefix store matches as far as pages are cached, whether or not there is a state.",
        source=("17850",),
        rule="MAMBA-3",
        symptom="A request goes on with a state of zeros and answers as if it had not seen its prompt.",
        factory=_MatchWithoutAState,
        also=("STORE-5",),
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="state-published-twice",
        title="The store takes the state at the end of a published prefix though it has one already.",
        source=("17850",),
        rule="MAMBA-4",
        symptom="With every request that repeats a prompt one state slot is gone.",
        factory=_StatePublishedTwice,
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="state-lock-forgotten",
        title="A lock on a prefix does not cover the state at its end.",
        source=("17850",),
        rule="MAMBA-5",
        symptom="The state that a running request went on from is evicted under it.",
        factory=_StateLockForgotten,
        also=("ACC-3",),
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="working-state-published",
        title="The store takes the slot in which the request computes, not the one that has kept the border's state.",
        source=("17850",),
        rule="DATA-2",
        symptom="A request that matches the prefix goes on from a state that has seen tokens of another answer.",
        factory=_WorkingSlotPublished,
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="computing-and-tracking-swapped",
        title="A launch that passes a page border keeps its state where the request computes, which goes on elsewhere.",
        source=("17850",),
        rule="DATA-2",
        symptom="From the first page border on answers are those to a prompt that begins in its middle.",
        factory=_ComputingAndTrackingSwapped,
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="tracking-slots-swapped",
        title="Of two tracking slots the newer border's state is written to the one that keeps the older border.",
        source=("17850",),
        rule="DATA-2",
        symptom="The state published for a prefix is that of a shorter one.",
        factory=_TrackingSlotsSwapped,
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="newer-border-overwritten",
        title="A launch that passes a third page border gives up the newer of the two that are kept.",
        source=("17850",),
        rule="MAMBA-3",
        symptom="A turn that is retracted goes back much further than it must.",
        factory=_NewerBorderOverwritten,
        also=("MAMBA-4",),
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="resumed-from-the-working-state",
        title="A turn that goes back to a page border goes on from the state that stands past it.",
        source=("17850",),
        rule="DATA-2",
        symptom="After a retract the last tokens count twice in the state, and the answer changes.",
        factory=_ResumedFromTheWorkingState,
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="session-states-not-counted",
        title="The leak check has no term for the state slots that idle sessions keep.",
        source=("17850",),
        rule="ACC-3",
        symptom='"Mem Leak Detected" in the first idle moment with an open session.',
        factory=_SessionStatesNotCounted,
        pool="recurrent_states",
        synthetic=True,
    ),
    Bug(
        name="close-keeps-the-states",
        title="Closing a session frees its pages and its row, and forgets its state slots.",
        source=("17850",),
        rule="MAMBA-2",
        symptom="Three state slots are gone with every session that was opened.",
        factory=_CloseKeepsTheStates,
        also=("MAMBA-1", "ACC-3"),
        pool="recurrent_states",
    ),
)
