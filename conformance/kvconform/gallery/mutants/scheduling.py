"""Defects of the scheduler, and of its information about room."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.scheduler import Scheduler
from kvref.scheduler.req import Req
from kvspec.events import DecodeAnswer, Refusal


class _ReservationFromWrongLength(Engine):
    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        runs = [self.running[req] for req in reqs if req in self.running]
        tables = self.pool.req_to_token
        needed = sum(
            self.allocator.pages_missing(len(tables[run.kv.req_pool_idx]), len(run.tokens) + n) for run in runs
        )
        if needed > self.allocator.available:
            raise Refusal("CAP-1", f"{needed} pages are needed", pages_short=needed - self.allocator.available)
        return super().decode(reqs, n)


class _PrefillsWhatWasRetracted(Scheduler):
    def _prepare_prefill(self) -> list[tuple[Req, int]]:
        self._decode_due = False
        return super()._prepare_prefill()


BUGS = (
    Bug(
        name="reservation-from-wrong-length",
        title="The pages that the next decode step needs are counted from the tokens, not from the committed length.",
        source=("994",),
        rule="CAP-1",
        symptom="At page borders the count is a page off: requests are retracted though the step would have fitted.",
        factory=_ReservationFromWrongLength,
    ),
    Bug(
        name="endless-prefill-retract-loop",
        title="A retracted request is prefilled again before what runs has decoded.",
        source=("994",),
        rule="LIVE-1",
        symptom="With forced retracts the server is busy for ever: the same request is prefilled, retracted, and "
        "prefilled again, and no request gets another token.",
        scheduler=_PrefillsWhatWasRetracted,
    ),
)
