"""The operations of the Hypothesis state machine. Each first carries out the operations that it requires."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from kvconform.features import needs_of_config, under
from kvconform.fuzzing import generate
from kvconform.fuzzing.run import First, Run, Tally
from kvconform.fuzzing.style import Draw, T, prompt
from kvconform.fuzzing.swarm import swarm
from kvconform.vectors.runner import Factory
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    Config,
    Decode,
    Evict,
    Extend,
    Finish,
    FreeState,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Preempt,
    Retract,
    Submit,
    SwaEvict,
    TakeState,
    Verify,
)
from kvspec.model.records import Passage
from kvspec.model.state import State


class Drawn:
    """Choices by Hypothesis, which shrinks them towards the first option."""

    def __init__(self, data: st.DataObject) -> None:
        """Draw from `data`."""
        self._data = data

    def integer(self, low: int, high: int) -> int:
        """A number in `low..high`."""
        return self._data.draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[self._data.draw(st.integers(0, len(options) - 1))]


TURN = st.integers(1, 9)
"""The number of tokens that a turn adds."""
DRAFTED = st.sampled_from((0, 4, 9))
"""The number of positions of a turn's speculative step; 0: no such step."""
MATCHES = st.integers(0, 2)
AHEAD = st.integers(0, 2)


class KVCacheMachine(RuleBasedStateMachine):
    """The common part of all machines; `machine` adds the implementation to check.

    Each operation has its own rule, which first carries out the required operations: a finish completes the request's
    launches, an extend matches first. So it is possible in each run, regardless of the rules that Hypothesis leaves
    out.
    """

    factory: Factory
    draw_config: Callable[[Draw], Config] | None
    lacks: frozenset[str]
    """The features that the implementation declares as lacking; they are never requested."""
    tally: Tally
    run: Run

    requests: Bundle[str] = Bundle("requests")
    sessions: Bundle[str] = Bundle("sessions")

    def __init__(self) -> None:
        """Begin; the sizes are drawn later."""
        super().__init__()
        self.names = count()
        self.begun = False

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Draw the sizes and the style, and make a fresh implementation."""
        cls, draw = type(self), Drawn(data)
        config = None if cls.draw_config is None else cls.draw_config(draw)
        drawn = swarm(draw, cls.lacks, config)
        drawn = drawn._replace(config=under(cls.factory, drawn.config))
        assume(not needs_of_config(drawn.config) & cls.lacks)
        self.run = Run(cls.factory, drawn, cls.lacks, cls.tally)
        self.begun = True

    @initialize(target=sessions)
    def first_sessions(self) -> Any:
        """Sessions for every run; each is opened with its first turn."""
        return multiple("s", "t")

    @property
    def state(self) -> State:
        """The model's state."""
        return self.run.state

    def do(self, *ops: Operation[Any]) -> None:
        """Carry operations out; a refusal is an answer."""
        for op in ops:
            self.run.perform(op)

    def launch_all(self) -> None:
        """Launch all prepared positions."""
        if self.state.prepared:
            self.do(Launch(max(self.state.flights, default=0) + 1, list(self.state.prepared)))

    def settle(self, req: str) -> None:
        """Launch the prepared positions of a request, complete all launches, and verify its steps."""
        self.launch_all()
        for oldest, passages in list(self.state.flights.items()):
            due = [one.req for one in passages if one.samples and _in_run(self.state, one)]
            self.do(Complete(oldest, dict.fromkeys(due, 0)))
        for _ in self.state.speculating.get(req, ()):
            self.do(Verify(req, 1, [0]))

    def admit(self, reqs: Iterable[str], end: int = 0) -> list[str]:
        """Match waiting requests and prefill them in one batch, the first up to `end`. Returns those that run then."""
        state = self.state
        waiting = [req for req in reqs if req in state.requests and not state.requests[req].running]
        for req in waiting:
            if state.requests[req].prefix_len is None:
                self.do(MatchPrefix(req))
        ends = {req: len(state.requests[req].tokens) for req in waiting}
        if waiting and end:
            begin = state.requests[waiting[0]].prefix_len or 0
            ends[waiting[0]] = min(begin + end, ends[waiting[0]])
        if waiting:
            self.do(Extend([*ends.items()]))
        return [req for req in reqs if req in state.requests and state.requests[req].running]

    @rule(target=sessions)
    def open_session(self) -> str:
        """Open a session."""
        name = f"s{next(self.names)}"
        self.do(OpenSession(name))
        return name

    @rule(target=requests, data=st.data())
    def submit(self, data: st.DataObject) -> str:
        """Submit a request."""
        req = f"r{next(self.names)}"
        self.do(Submit(req, prompt(Drawn(data), self.run.swarm.config, self.run.swarm.style)))
        return req

    @rule(target=requests, session=sessions, more=TURN, drafts=DRAFTED, matches=MATCHES, ahead=AHEAD)
    def submit_turn(self, session: str, more: int, drafts: int, matches: int, ahead: int) -> Any:
        """End a session's turn, submit the next one, match it, and perhaps retract it once.

        A session without history gets its first turn.
        """
        if session not in self.state.sessions:
            self.do(OpenSession(session))
        found = self.state.sessions.get(session)
        if found is None:  # the implementation has no sessions
            return multiple()
        if found.turn is None and not len(found.history):
            self.do(Submit(f"{session} first", [0] * more, session))
        turn = self.state.sessions[session].turn
        if turn is not None:
            self.end_of(turn, drafts)
        req, found = f"r{next(self.names)}", self.state.sessions.get(session)
        history = [] if found is None else found.history.elements()
        self.do(Submit(req, [*history, *[0] * more], session), *[MatchPrefix(req)] * matches)
        if ahead:
            self.retry(req, drafts, ahead)
        return self.left(req)

    @rule(session=sessions, drafts=DRAFTED, ahead=AHEAD)
    def retry_turn(self, session: str, drafts: int, ahead: int) -> None:
        """A session's turn runs, is retracted with so many steps in flight, and matches again."""
        found = self.state.sessions.get(session)
        if found is not None and found.turn is not None:
            self.retry(found.turn, drafts, ahead)

    def retry(self, req: str, drafts: int, ahead: int) -> None:
        """A request runs, is retracted with so many steps in flight, and matches again."""
        if req in self.admit([req]):
            self.run_on(req, drafts)
            for _ in range(ahead):
                self.do(Decode([req]))
                self.launch_all()
            self.do(Retract(req), MatchPrefix(req))

    @rule(end=st.sampled_from((0, 2, 8)))
    def extend_turns(self, end: int) -> None:
        """Prefill all waiting turns in one batch, and publish it."""
        for req in self.admit([req for req, one in self.state.requests.items() if one.session is not None], end):
            self.settle(req)
            self.do(CacheUnfinished(req, req in self.state.mid_prefill))

    @rule(req=requests)
    def match_prefix(self, req: str) -> None:
        """Match a request, perhaps again."""
        self.do(MatchPrefix(req))

    @rule(reqs=st.lists(requests, min_size=1, max_size=3, unique=True), end=st.sampled_from((0, 0, 1, 3, 8)))
    def extend(self, reqs: list[str], end: int) -> None:
        """Prefill a batch. Requests between chunks continue alone."""
        for req in reqs:
            if req in self.state.mid_prefill:
                self.settle(req)
                self.do(Extend([(req, len(self.state.requests[req].tokens))]))
        self.admit([req for req in reqs if req not in self.state.mid_prefill], end)

    @rule(reqs=st.lists(requests, min_size=1, max_size=3, unique=True), n=st.sampled_from((1, 1, 4, 7)))
    def decode(self, reqs: list[str], n: int) -> None:
        """Launch all prepared positions, and prepare a step of running requests."""
        running = self.admit(reqs)
        self.launch_all()
        ready = [req for req in running if req not in self.state.mid_prefill]
        if ready:
            self.do(Decode(ready, n))

    @rule(launches=st.integers(1, 3))
    def launch(self, launches: int) -> None:
        """Launch all prepared positions, and further steps of them ahead."""
        for _ in range(launches):
            reqs = [req for req in self.state.prepared if req not in self.state.mid_prefill]
            self.launch_all()
            if reqs and launches > 1:
                self.do(Decode(reqs))

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """The oldest launch completes."""
        if (op := generate.complete(self.state, Drawn(data))) is not None:
            self.do(op)

    @rule(req=requests, accepted=st.integers(1, 7), kept=st.integers(1, 7))
    def verify(self, req: str, accepted: int, kept: int) -> None:
        """Verify the oldest step of a request; make one if there is none."""
        if req not in self.state.speculating and req in self.admit([req]) and not self.state.config.num_states:
            self.settle(req)
            self.do(Decode([req], max(2, accepted)))
        self.launch_all()
        for _ in range(len(self.state.flights)):
            op = generate.complete(self.state, First())
            if op is not None and not any(step.completed for step in self.state.speculating.get(req, ())):
                self.do(op)
        self.do(Verify(req, accepted, [0] * min(accepted, kept)))

    @rule(req=requests)
    def cache_unfinished(self, req: str) -> None:
        """Publish the prefill of a request."""
        self.admit([req])
        self.settle(req)
        self.do(CacheUnfinished(req, req in self.state.mid_prefill))

    @rule(target=requests, req=consumes(requests), at_once=st.booleans())
    def finish(self, req: str, at_once: bool) -> Any:
        """A request finishes, perhaps with launches in flight."""
        self.admit([req])
        self.launch_all() if at_once else self.settle(req)
        self.do(Finish(req))
        return self.left(req)

    def run_on(self, req: str, drafts: int) -> None:
        """A running request does all its work, perhaps with a speculative step of which one token is kept."""
        self.settle(req)
        if drafts and req not in self.state.mid_prefill and not self.state.config.num_states:
            self.do(Decode([req], drafts))
            self.settle(req)

    def end_of(self, req: str, drafts: int) -> None:
        """End a turn: it finishes if possible, and is otherwise aborted."""
        if req in self.admit([req]) and req not in self.state.mid_prefill:
            self.run_on(req, drafts)
            self.do(CacheUnfinished(req), Finish(req))
        if req in self.state.requests:
            self.do(Abort(req))

    def left(self, req: str) -> Any:
        """The request for its bundle, if it still exists."""
        return req if req in self.state.requests else multiple()

    @rule(req=requests)
    def retract(self, req: str) -> None:
        """A running request is retracted."""
        self.admit([req])
        self.do(Retract(req))

    @rule(target=requests, req=consumes(requests))
    def abort(self, req: str) -> Any:
        """A request is aborted, in any phase."""
        self.do(Abort(req))
        return self.left(req)

    @rule(session=sessions)
    def close_session(self, session: str) -> None:
        """A session is closed."""
        self.do(CloseSession(session))

    @rule(session=sessions)
    def preempt(self, session: str) -> None:
        """The memory of a session is released."""
        self.do(Preempt(session))

    @rule(n=st.sampled_from((1, 2, 1000)), other=st.integers(0, 2))
    def evict(self, n: int, other: int) -> None:
        """Cached pages and those of a hybrid pool are evicted."""
        config = self.state.config
        self.do(Evict(n, other if config.sliding_window else 0, other if config.num_states else 0))

    @rule(req=requests)
    def swa_evict(self, req: str) -> None:
        """The window of a request advances."""
        if self.state.config.sliding_window and req in self.admit([req]):
            self.settle(req)
            self.do(SwaEvict(req))

    @rule(req=requests)
    def take_state(self, req: str) -> None:
        """A request takes its state before its row, or frees it."""
        if self.state.config.num_states:
            self.do(
                TakeState(req) if req in self.state.requests and not self.state.requests[req].state else FreeState(req)
            )

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Carry out a proposal of the run's generators: the scheduler's next operation, or one at a wrong time."""
        self.run.step(Drawn(data))

    def teardown(self) -> None:
        """Release everything, and check the figures of an empty pool."""
        if self.begun and self.run.failure is None:
            self.run.end(reuse=True)


def _in_run(state: State, passage: Passage) -> bool:
    """Whether a request is still in the run of a launch."""
    request = state.requests.get(passage.req)
    return request is not None and request.running and request.run == passage.run
