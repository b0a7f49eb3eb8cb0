"""Defects of speculative steps that are prepared before the previous one is verified (28754)."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.request import Run
from kvspec.events import DecodeAnswer


class _RoomForOneStep(Engine):
    def _room_end(self, run: Run, n: int) -> int:
        return run.kv.kv_committed_len + n


class _StepAheadForgotten(Engine):
    def _verified(self, run: Run) -> None:
        run.unverified.clear()
        run.verifiable = 0
        for launch in self.launches:
            launch.forget(run.name)


class _CountedBeforeItsVerify(Engine):
    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        answer = super().decode(reqs, n)
        for req in reqs:
            run = self.running[req]
            if run.unverified:
                run.kv.kv_committed_len += 1
        return answer


BUGS = (
    Bug(
        name="room-for-one-step",
        title="A speculative step that is prepared before the last one is verified gets room past the committed "
        "positions only.",
        source=("28754",),
        rule="SPEC-2",
        also=("LEN-1",),
        symptom="Under overlap the drafts of a step run past the last page: an illegal access, or KV of others.",
        factory=_RoomForOneStep,
        traffic=False,
    ),
    Bug(
        name="counted-before-its-verify",
        title="Preparing the next step counts a position of the last one as committed, which its verify counts again.",
        source=("28754",),
        rule="SPEC-2",
        symptom="Committed runs ahead of the tokens by one a step, and the leak check fails at the end.",
        factory=_CountedBeforeItsVerify,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="step-ahead-forgotten",
        title="A verify takes the step behind it for verified too.",
        source=("28754",),
        rule="SPEC-1",
        symptom="Every second speculative step is computed for nothing, and its tokens are missing.",
        factory=_StepAheadForgotten,
        also=("SPEC-2",),
        traffic=False,
        synthetic=True,
    ),
)
