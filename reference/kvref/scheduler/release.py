"""The end of a run: requests finish, are retracted or aborted."""

from kvref.scheduler.req import Req, Session
from kvref.scheduler.state import SchedulerState
from kvspec.events import Abort, Finish, Retract


class Release(SchedulerState):
    """The operations that end a run, and the bookkeeping of each."""

    def _finish(self, done: set[Req]) -> None:
        finished = [req for req in self.running_batch if req in done]
        self._leave(done)
        for req in finished:
            self.step(Finish(req.name))
            self._last_finished = req.name
            self.finished += 1
            self._end(req, keeps_kv=True)

    def _abort(self, req: Req) -> None:
        """Abort a request whose client is gone. If a turn has run, its session's KV is freed with it (22862)."""
        self.step(Abort(req.name))
        self.aborted.append(req.name)
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
        self._leave({req})
        session = req.session
        if session is not None and req.ran:
            self._sessions.forget_kv(session)
        self._end(req, keeps_kv=req.lent and not req.ran)

    def _retract(self, req: Req) -> None:
        self.step(Retract(req.name))
        self._leave({req})
        if req.session is not None:
            self._sessions.take_back(req.session, self._launches)
        self.waiting_queue.appendleft(req)
        self.new_token_ratio = self.config.init_new_token_ratio
        self._decode_due = True

    def _leave(self, reqs: set[Req]) -> None:
        """Remove requests from the running batch."""
        self.running_batch = [req for req in self.running_batch if req not in reqs]
        if self.chunked_req in reqs:
            self.chunked_req = None
        self._batch_is_full = False
        for flight in self._flights:
            flight.left.update(reqs)

    def _end(self, req: Req, *, keeps_kv: bool) -> None:
        """Forget a request; its session goes on with its next turn, if there is one."""
        self._received -= 1
        session = req.session
        if session is not None:
            if keeps_kv:
                self._sessions.take_back(session, self._launches)
            self._sessions.end_turn(session)
            self._await_next_turn(session)

    def _await_next_turn(self, session: Session) -> None:
        req = self._sessions.next_turn(session)
        if req is not None:
            self.waiting_queue.append(req)
