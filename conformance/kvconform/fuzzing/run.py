"""One run: a fresh implementation, random operations, and the release of everything at the end."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvcheck import Checker
from kvconform.features import needs_now
from kvconform.fuzzing import generate
from kvconform.fuzzing.reach import met
from kvconform.fuzzing.style import Draw, T
from kvconform.fuzzing.swarm import Swarm
from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken, make
from kvconform.vectors.runner import Factory, carry_out
from kvspec.events import (
    Abort,
    CloseSession,
    Config,
    Evict,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Report,
    Submit,
)
from kvspec.invariants import check
from kvspec.model.state import State


class Failure(NamedTuple):
    """A run that failed."""

    config: Config
    operations: Sequence[Operation[Any]]
    """All operations on one fresh implementation, with its answers; the last one fails."""
    finding: RuleBroken | ImplementationFailed


class Tally:
    """Counts over many runs."""

    def __init__(self) -> None:
        """Begin with zero counts."""
        self.runs = 0
        self.failure: Failure | None = None
        """The latest run that failed."""
        self.operations: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()

    @property
    def steps(self) -> int:
        """The total number of operations."""
        return self.operations.total()


class First:
    """Always takes the first choice, for operations that must be carried out."""

    def integer(self, low: int, high: int) -> int:
        """The lowest."""
        return low

    def choice(self, options: Sequence[T]) -> T:
        """The first."""
        return options[0]


class Run:
    """One run of an implementation, checked after each operation, with a snapshot."""

    def __init__(self, factory: Factory, swarm: Swarm, lacks: frozenset[str], tally: Tally) -> None:
        """Make a fresh implementation; features that it lacks are never requested. Count in `tally`."""
        self.swarm = swarm
        self.failure: Failure | None = None
        self.history: list[Operation[Any]] = []
        self._lacks = lacks
        self._tally = tally
        tally.runs += 1
        self.model = QuickModel(swarm.config, checker=Checker)
        try:
            implementation = make(factory, swarm.config)
        except ImplementationFailed as finding:
            tally.failure = Failure(swarm.config, [], finding)
            raise
        self._checked = OracleProxy(implementation, self.model, record=self.history.append, snapshot_every=1)

    @property
    def state(self) -> State:
        """The model's state."""
        return self.model.state

    def step(self, draw: Draw, op: Operation[Any] | None = None) -> None:
        """Carry out this operation, or one that a generator proposes, if any."""
        op = op or draw.choice(self.swarm.bag)(self.state, draw, self.swarm.style)
        if op is not None:
            self.perform(op)

    def perform(self, op: Operation[Any]) -> None:
        """Carry out one operation, if the implementation has all features that it needs now.

        Raises:
            RuleBroken: its answer is not allowed; `failure` has the run. ImplementationFailed: it gave no answer.
        """
        if self._lacks and needs_now(self.state, op) & self._lacks:
            return
        self._tally.operations[str(op.__struct_config__.tag)] += 1
        try:
            carry_out(self._checked, op)
            check(self.state)
        except (RuleBroken, ImplementationFailed) as finding:
            if not self.history or self.history[-1] is not finding.op:
                self.history.append(finding.op or op)
            self._tally.failure = self.failure = Failure(self.swarm.config, self.history, finding)
            raise
        if op.refused is None:
            self._tally.reached.update(met(self.state, op))

    def end(self, *, reuse: bool) -> None:
        """Release everything, and check the figures of an empty pool; with `reuse` each name is used again before."""
        if self._lacks and self.state.prepared:
            self.perform(Launch(max(self.state.flights, default=0) + 1, list(self.state.prepared)))
        while (due := generate.complete(self.state, First())) is not None:
            self.perform(due)
        for op in self._endings(reuse=reuse):
            self.perform(op)
        if not self._requests_hold:
            self.perform(Report("idle"))
        self._tally.checked += self.model.state.checked
        self._tally.reached += self.model.state.reached

    @property
    def _requests_hold(self) -> bool:
        return any(request.record is not None for request in self.state.requests.values())

    def _endings(self, *, reuse: bool) -> Iterator[Operation[Any]]:
        """The end of each request and session; reused names end a second time."""
        state = self.state
        for req in list(state.requests):
            yield Abort(req)
            if reuse and req not in state.requests:
                yield from _passes_by(Submit(req, [0]))
        if not self._requests_hold:
            yield Report("idle")  # sessions hold and lock pages
        for name, session in list(state.sessions.items()):
            if reuse and session.turn is None:
                yield from _passes_by(Submit("again", [*session.history.elements(), 0], name))
            yield CloseSession(name)
            if reuse and name not in state.sessions:
                yield OpenSession(name)
                yield from _passes_by(Submit("again", [0], name))
                yield CloseSession(name)
        yield Evict(state.config.num_pages)


def _passes_by(submit: Submit) -> Iterator[Operation[Any]]:
    """A request that ends before it has run."""
    return iter((submit, MatchPrefix(submit.req), Abort(submit.req)))
