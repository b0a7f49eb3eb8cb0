"""Defects of the leak check itself: figures that report false leaks, or miss leaks."""

from typing import Literal

from msgspec.structs import replace

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.launch import Launch
from kvref.request import KvRecord, Run
from kvspec.events import Figures, Refusal

Mode = Literal["idle", "busy"]


class _HeldNotRoundedUp(Engine):
    def _held_tokens(self, kv: KvRecord) -> int:
        return kv.kv_allocated_len - kv.cache_protected_len


class _IdleCheckForgetsSessionLocks(Engine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        return replace(figures, protected=0) if mode == "idle" else figures


class _IdleCheckForbidsSessionLocks(Engine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        if mode == "idle" and figures.protected:
            raise Refusal("STORE-2", f"{figures.protected} tokens of the tree are locked, but nothing runs")
        return figures


class _LentSlotCountedTwice(Engine):
    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        if self.config.turns_count_as == "sessions":
            return figures  # there a lent slot is the session's
        slots = [slot.kv for slot in self.session_cache.slots.values() if slot.kv is not None]
        return replace(figures, session_held=sum(map(self._held_tokens, slots)), rows_sessions=len(slots))


class _FinishedRequestCounted(Engine):
    over_run: tuple[Launch | None, int] = None, 0

    def _end_run(self, run: Run) -> None:
        if run.request.slot is not None:
            for launch in self.launches:
                if run.name in launch.sampled:
                    self.over_run = launch, self._held_tokens(run.kv)
        super()._end_run(run)

    def report(self, mode: Mode = "busy") -> Figures:
        figures = super().report(mode)
        launch, held = self.over_run
        return replace(figures, uncached=(figures.uncached or 0) + held) if launch in self.launches else figures


BUGS = (
    Bug(
        name="held-not-rounded-up",
        title="Memory that sessions and requests hold is counted in tokens, not in whole pages.",
        source=("20070",),
        rule="ACC-1",
        symptom="The sum is short of the pool by the unused rest of each last page: a leak is reported where none is.",
        factory=_HeldNotRoundedUp,
    ),
    Bug(
        name="idle-check-forgets-session-locks",
        title="The idle check takes it that nothing is locked when nothing runs.",
        source=("20070",),
        rule="ACC-1",
        symptom="Idle sessions hold locks on the prefix tree; their protected tokens are reported as leaked.",
        factory=_IdleCheckForgetsSessionLocks,
    ),
    Bug(
        name="idle-check-forbids-session-locks",
        title="The sanity check at idle insists that no tree node is locked.",
        source=("20070",),
        rule="OP-1",
        symptom="The server dies of an assertion in the first idle moment with an open session.",
        factory=_IdleCheckForbidsSessionLocks,
    ),
    Bug(
        name="lent-slot-counted-twice",
        title="A slot that is lent to a request is counted as the session's too.",
        source=("22213",),
        rule="SESS-3",
        symptom='"Mem Leak Detected" while a session\'s turn runs; the sum is more than the pool.',
        factory=_LentSlotCountedTwice,
    ),
    Bug(
        name="finished-request-counted",
        title="A turn that has handed its KV to the session is counted as long as a launch has it in its batch.",
        source=("22213",),
        rule="ACC-1",
        symptom="With overlap the busy check counts the same tokens for the batch and for the session.",
        factory=_FinishedRequestCounted,
    ),
)
