"""The scheduler's streaming sessions: turns in order, and idle KV in the order of preemption."""

from kvref.scheduler.req import Req, Session
from kvspec.events import CloseSession, OpenSession, Preempt, ReleaseAnswer, Step, Submit


class SessionController:
    """Opens sessions, submits their turns one after the other, and closes them after the last."""

    def __init__(self, step: Step) -> None:
        """No session is open."""
        self._step = step
        self._sessions: dict[str, Session] = {}
        self._idle: dict[Session, None] = {}
        """Sessions whose slot holds KV that is not lent, least recently used first."""

    def get(self, name: str) -> Session:
        """The session `name`; its next turn opens it."""
        return self._sessions.setdefault(name, Session(name))

    def next_turn(self, session: Session) -> Req | None:
        """Submit the next turn and return it, or close the session after its last."""
        if session.turn is not None:
            return None
        if session.turns:
            if not session.is_open:
                self._step(OpenSession(session.name))
                session.is_open = True
            req = session.turn = session.turns.popleft()
            self._step(Submit(req.name, req.tokens, session.name))
            return req
        if session.complete:
            if session.is_open:
                self.close(session)
            del self._sessions[session.name]
        return None

    def lend(self, req: Req) -> None:
        """Record that a turn has matched: the slot's KV is now the turn's. If the match is empty, so is the slot."""
        assert req.session is not None
        had_kv = req.session in self._idle
        self._idle.pop(req.session, None)
        req.lent = (req.lent or had_kv) and req.prefix_len > 0

    def take_back(self, session: Session, newest_launch: int) -> None:
        """Record that the slot holds the session's KV again; launches up to `newest_launch` may read its row."""
        session.busy_until = newest_launch
        self._idle[session] = None

    def forget_kv(self, session: Session) -> None:
        """Record that the session's KV was released."""
        self._idle.pop(session, None)

    def end_turn(self, session: Session) -> None:
        """End the turn. A session that was closed during the turn ends with it."""
        session.turn = None
        if session.closing:
            session.closing = session.is_open = False
            self.forget_kv(session)

    def close(self, session: Session) -> None:
        """Close a session; with a turn in flight its memory is released when the turn ends (SESS-4)."""
        self._step(CloseSession(session.name))
        if session.turn is not None:
            session.closing = True
        else:
            session.is_open = False
            self.forget_kv(session)

    def closable(self, *, in_flight: bool) -> Session | None:
        """An open session with, or without, a turn in flight."""
        for session in self._sessions.values():
            if session.is_open and not session.closing and (session.turn is not None) == in_flight:
                return session
        return None

    def preempt_oldest(self, completed: int) -> ReleaseAnswer | None:
        """Preempt the least recently used idle slot whose row no launch reads; `None` if there is none.

        Slots whose row a later launch than `completed` reads are skipped: the row would be withheld. They are also the
        most recently used.
        """
        for session in self._idle:
            if session.busy_until <= completed:
                del self._idle[session]
                return self._step(Preempt(session.name))
        return None
