"""Operations on requests that wait."""

from kvcuda.device_manager.state import ManagerState
from kvcuda.records import Request
from kvspec.events import Done, MatchAnswer, Refusal, StateAnswer
from kvspec.tokens import Element, Tokens


class Waiting(ManagerState):
    """From `submit` to the moment before the first `extend`."""

    def open_session(self, session: str) -> Done:
        """Open a streaming session.

        Raises:
            Refusal: it is open already.
        """
        self.sessions.open(session)
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
        slot = None if session is None else self.sessions.slot_for_turn(session, sequence)
        self.requests[req] = Request(req, sequence, slot)
        if slot is not None:
            slot.turn = req
        return Done()

    def match_prefix(self, req: str) -> MatchAnswer:
        """Match a waiting request's prefix; it may be matched again (20476).

        Raises:
            Refusal: the request is not waiting.
        """
        request = self._request(req)
        if req in self.running:
            raise Refusal("OP-1", f"request {req} is running")
        states = self.states.pushed
        match = self.sessions.match(request)
        request.prefix_len = match.prefix_len
        request.resumed = match.lent is not None
        if match.lent is not None:
            self.holders[req] = match.lent
        return MatchAnswer(match.prefix_len, match.protected_len, states_freed=self.states.since(states))

    def take_state(self, req: str) -> StateAnswer:
        """Give a matched, waiting request the state slot that it will compute in, before it has a row (17850).

        Raises:
            Refusal: there are no recurrent states, the request has a slot or has not matched, or no slot is free.
        """
        request = self._request(req)
        if not self.states.size:
            raise Refusal("OP-1", "there are no recurrent states")
        if req in self.holders or request.state:
            raise Refusal("OP-1", f"request {req} has a state slot already")
        if request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        if not self.states.available:
            raise Refusal("CAP-1", "no state slot is free", states_short=1)
        request.state = self.states.take()
        return StateAnswer(request.state)

    def free_state(self, req: str) -> StateAnswer:
        """Free the state slot of a request that was not admitted (17850).

        Raises:
            Refusal: the request took none, or has a row by now.
        """
        request = self._request(req)
        if not request.state:
            raise Refusal("OP-1", f"request {req} has no state slot without a row")
        return StateAnswer(self._give_state_back(request))
