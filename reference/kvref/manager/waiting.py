"""Operations on requests that wait."""

from kvref.manager.state import ManagerState
from kvref.request import Request, SessionSlot
from kvspec.events import Done, MatchAnswer, Refusal, StateAnswer
from kvspec.tokens import Element, Tokens


class Waiting(ManagerState):
    """Up to the moment before the first `extend`."""

    def open_session(self, session: str) -> Done:
        """Open a streaming session.

        Raises:
            Refusal: it is open already.
        """
        if session in self.session_cache.slots:
            raise Refusal("OP-1", f"session {session} is open already")
        self.session_cache.open(session)
        return Done()

    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        """Queue a request; it has matched nothing and holds nothing yet.

        Raises:
            Refusal: the name is taken, the tokens are none, too many or malformed, or no turn of the session.
        """
        if req in self.requests:
            raise Refusal("OP-1", f"there is a request {req} already")
        try:
            sequence = Tokens(self.config.page_size, tokens)
        except ValueError as error:
            raise Refusal("OP-1", str(error)) from None
        if not len(sequence):
            raise Refusal("OP-1", f"request {req} has no tokens")
        if len(sequence) > self.config.max_context_len:
            raise Refusal("LEN-1", f"{len(sequence)} tokens exceed the context of {self.config.max_context_len}")
        slot = None if session is None else self._slot_for_turn(session, sequence)
        self.requests[req] = Request(req, sequence, slot)
        if slot is not None:
            slot.turn = req
        return Done()

    def _slot_for_turn(self, session: str, tokens: Tokens) -> SessionSlot:
        """The slot of a session that `tokens` may continue, or a refusal (20476, 22862)."""
        slot = self._slot(session)
        if slot.closing:
            raise Refusal("OP-1", f"session {session} is closing")
        if slot.turn is not None:
            raise Refusal("SESS-1", f"session {session} has a turn in flight: {slot.turn}")
        if not _begins_with(tokens, slot.history):
            raise Refusal("SESS-6", f"the tokens do not begin with the history of session {session}")
        return slot

    def match_prefix(self, req: str) -> MatchAnswer:
        """Match a waiting request's prefix; it may be matched again (20476).

        Raises:
            Refusal: the request is not waiting.
        """
        request = self._request(req)
        if req in self.running:
            raise Refusal("OP-1", f"request {req} is running")
        match = self.session_cache.match_prefix(request)
        request.prefix_len = match.prefix_len
        request.resumed = match.lent is not None
        if match.lent is not None:
            self.holders[req] = match.lent
        return MatchAnswer(
            match.prefix_len, match.protected_len, self._freed(), self._window_freed(), self._states_freed()
        )

    def take_state(self, req: str) -> StateAnswer:
        """Give a matched, waiting request the state slot that it will compute in (17850).

        Raises:
            Refusal: there are no states, or the request has one, runs or has not matched, or no slot is free.
        """
        request = self._request(req)
        if not self.config.num_states:
            raise Refusal("OP-1", "there are no recurrent states")
        if req in self.holders or request.state is not None:
            raise Refusal("OP-1", f"request {req} has a state slot already")
        if request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        self._check_room(states=1)
        return StateAnswer(self.pool.states.alloc_early(request))

    def free_state(self, req: str) -> StateAnswer:
        """Free the state slot of a waiting request that was not admitted (17850).

        Raises:
            Refusal: the request has none.
        """
        request = self._request(req)
        if request.state is None:
            raise Refusal("OP-1", f"request {req} has no state slot without a row")
        answer = StateAnswer(request.state)
        self.pool.states.free_early(request)
        self.pool.states.drain_freed()
        return answer


def _begins_with(tokens: Tokens, history: Tokens) -> bool:
    """Whether a turn's tokens begin with its session's history (SESS-6)."""
    full, rest = len(history.pages), history.rest
    if tokens.pages[:full] != history.pages:
        return False
    following = tokens.pages[full] if len(tokens.pages) > full else tuple(tokens.rest)
    return not rest or (not isinstance(following, str) and list(following[: len(rest)]) == rest)
