"""Defects of reused names: a session with its next turn, a name that is used again."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.request import SessionSlot
from kvref.session_cache import SessionCache
from kvspec.events import Config, Done, Refusal, ReleaseAnswer
from kvspec.tokens import Element, Tokens


class _RetractedTurnKeepsTheMark(Engine):
    def abort(self, req: str) -> ReleaseAnswer:
        request = self.requests.get(req)
        slot = None if request is None or req in self.running or not request.extended else request.slot
        answer = super().abort(req)
        if slot is not None and not slot.closing:
            slot.turn = req
        return answer


class _RefusedSubmitMarksTheSession(Engine):
    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        slot = None if session is None else self.session_cache.slots.get(session)
        try:
            return super().submit(req, tokens, session)
        except Refusal as refusal:
            if slot is not None and slot.turn is None and refusal.refused.rule in ("OP-1", "LEN-1"):
                slot.turn = req
            raise


class _RefusedSubmitKeepsTheName(Engine):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._refused: set[str] = set()

    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        if req in self._refused:
            raise Refusal("OP-1", f"there is a request {req} already")
        try:
            return super().submit(req, tokens, session)
        except Refusal as refusal:
            if refusal.refused.rule == "LEN-1":
                self._refused.add(req)
            raise


class _RetractDropsTheOutput(Engine):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._prompts: dict[str, list[Element]] = {}

    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        done = super().submit(req, tokens, session)
        self._prompts[req] = tokens
        return done

    def retract(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        answer = super().retract(req)
        prompt = Tokens(self.config.page_size, self._prompts[req])
        if run is not None and run.request.slot is not None and run.kv.cache_protected_len < len(prompt):
            run.request.tokens = prompt
        return answer


class _HistoryNotCompared(Engine):
    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        slot = None if session is None else self.session_cache.slots.get(session)
        if slot is None or slot.closing or slot.turn is not None or req in self.requests:
            return super().submit(req, tokens, session)
        history, slot.history = slot.history, Tokens(self.config.page_size)
        try:
            return super().submit(req, tokens, session)
        finally:
            slot.history = history


class _LosesTheClose(SessionCache):
    def end_turn(self, slot: SessionSlot) -> None:
        if slot.closing and slot.kv is None:
            slot.turn, slot.closing = None, False
        else:
            super().end_turn(slot)


class _DeferredCloseLostOnAbort(Engine):
    session_class = _LosesTheClose


class _AbortWipesWaitingTurns(Engine):
    def abort(self, req: str) -> ReleaseAnswer:
        request = self.requests.get(req)
        if request is not None and req not in self.running:
            request.extended = True
        return super().abort(req)


BUGS = (
    Bug(
        name="retracted-turn-keeps-the-mark",
        title="Aborting a turn that waits again after a retract leaves it as its session's turn in flight.",
        source=("20476",),
        rule="SESS-1",
        symptom="The session refuses every further turn, and holds no memory that a leak check could miss.",
        factory=_RetractedTurnKeepsTheMark,
        synthetic=True,
    ),
    Bug(
        name="refused-submit-marks-the-session",
        title="A turn whose tokens are refused stays noted as its session's.",
        source=("20476",),
        rule="SESS-1",
        symptom="One turn that is too long, and the session refuses the next one, too.",
        factory=_RefusedSubmitMarksTheSession,
        also=("OP-1",),
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="refused-submit-keeps-the-name",
        title="A request that was refused is remembered by its name, which no request can use any more.",
        source=("994",),
        rule="OP-1",
        symptom="A client that tries again with a shorter prompt gets the answer that its request is there already.",
        factory=_RefusedSubmitKeepsTheName,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="retract-drops-the-output",
        title="A retracted turn waits again with its prompt alone: the tokens that it had sampled are gone.",
        source=("994",),
        rule="OP-1",
        symptom="The client gets a second, different continuation behind the tokens that it has already.",
        factory=_RetractDropsTheOutput,
        also=("SESS-2",),
        synthetic=True,
    ),
    Bug(
        name="history-not-compared",
        title="A turn is accepted whose tokens do not begin with its session's history.",
        source=("22862",),
        rule="SESS-6",
        symptom="The turn goes on from the KV of other tokens than its own.",
        factory=_HistoryNotCompared,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="deferred-close-lost-on-abort",
        title="A close that waits for its turn is forgotten when the turn is aborted.",
        source=("22213", "21875"),
        rule="SESS-4",
        symptom="Sessions stay open that their clients have closed; opening one of them again is refused.",
        factory=_DeferredCloseLostOnAbort,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="abort-wipes-waiting-turns",
        title="Aborting a turn that has never run wipes its session's KV as if it had.",
        source=("22862", "22790"),
        rule="SESS-5",
        symptom="A client that cancels a queued turn pays for the whole conversation's prefill again.",
        factory=_AbortWipesWaitingTurns,
        synthetic=True,
    ),
)
