"""Making room: the order in which memory is freed if an operation lacks room."""

from collections.abc import Iterable

from kvref.scheduler.release import Release
from kvref.scheduler.req import Req
from kvref.scheduler.shortage import NOTHING, Shortage, evicted, released, shortage
from kvspec.events import Abort, Evict, Refusal, Submit
from kvspec.rules import Violation


class MakingRoom(Release):
    """The answers to a refusal for lack of room (CAP-1), the cheapest first."""

    def _make_room(self, refusal: Refusal, batch: Iterable[tuple[Req, int]] = ()) -> bool:
        """Free the cheapest memory until `refusal` is answered, but not that of `batch`. Returns whether any was."""
        short = shortage(refusal)
        made = False
        if short.window > 0:
            slid = Shortage(window=self._hybrid.slide_all(self.running_batch, self.chunked_req))
            short = short.less(slid)
            made = slid != NOTHING
        while short.is_left:
            if short.is_evictable:
                gone = self._evict(short)
                made = made or gone != NOTHING
                short = short.less(gone)
                if not short.is_left:
                    break
            preempted = self._sessions.preempt_oldest(self._completed)
            if preempted is None:
                return self._end_lend({req for req, _ in batch}) or made
            short = short.less(released(preempted))
            made = True
        return made

    def _evict(self, short: Shortage) -> Shortage:
        """Evict the shortage, and a page for each running request: otherwise the next page border is short again."""
        growth = len(self.running_batch)
        pages = short.pages + growth if short.pages > 0 else 0
        window = short.window + growth if short.window > 0 else 0
        return evicted(self.step(Evict(pages, window, max(0, short.states))))

    def _end_lend(self, spared: set[Req]) -> bool:
        """End the lend of a waiting turn: back to the state before its match. Returns whether there was one.

        After the abort that ends the lend, the slot can be preempted.
        """
        for req in self.waiting_queue:
            if req.lent and req not in spared:
                break
        else:
            return False
        assert req.session is not None
        if req.session.closing:  # its slot goes with the turn: the client is gone
            self._abort(req)
            return True
        self.step(Abort(req.name))
        self.step(Submit(req.name, req.tokens_so_far(), req.session.name))
        req.lent = False
        if not req.ran:
            self._sessions.take_back(req.session, req.session.busy_until)
        req.ran = False
        return True

    def _retract_last(self, refusal: Refusal) -> None:
        """Retract the request that was admitted last, but never the only one."""
        if self.chunked_req is not None:
            self._retract(self.chunked_req)
        elif len(self.running_batch) > 1:
            self._retract(self.running_batch[-1])
        else:
            name = self.running_batch[0].name
            raise Violation("LIVE-1", f"{name} runs alone with all other memory free, but it cannot go on: {refusal}")
