"""Random walks through an engine's states, restricted to the engine's features.

Unlike `kvconform.fuzzing.machine` this continues after a finding: a release has more than one, and each is reported
once. Each walk leaves out some kinds of operations, and some walks the figures beside each snapshot, so that a frequent
finding does not hide later ones.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from kvconform.features import needs_now, needs_of_config, under
from kvconform.fuzzing import generate
from kvconform.fuzzing.generate import GENERATORS, Generator
from kvconform.fuzzing.style import Chance
from kvconform.fuzzing.swarm import memory
from kvconform.levels.requests.minimise import effort_for_one, kind, shrink
from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken, make
from kvconform.vectors.runner import Counterexample, Evidence, Factory, carry_out, try_out, unanswered
from kvspec.events import Abort, CloseSession, Config, Evict, Launch, Operation, Refusal, Report, Snapshot
from kvspec.model.state import State

STEPS = 80
"""The number of proposals in one walk."""

LEFT_OUT = 0.25
"""The probability that a walk leaves out a kind of operation."""


class Walker:
    """Walks, and collects findings and evidence."""

    def __init__(self, factory: Factory, lacks: frozenset[str], seed: int) -> None:
        """Walk on fresh instances that `factory` makes, without operations that need lacking features."""
        self._factory = factory
        self._lacks = lacks
        self._chance = Chance(seed)
        self.walks = 0
        self.operations = 0
        self.evidence = Evidence.together([])

    def findings(self, seconds: float) -> Iterator[tuple[Counterexample, Config]]:
        """Walk for so many seconds, and yield each new kind of finding with the shortest operations that show it."""
        deadline = time.monotonic() + seconds
        seen: Counter[object] = Counter()
        while time.monotonic() < deadline:
            figures = self._chance.random.random() >= LEFT_OUT
            found = self._walk(figures=figures)
            if found is None:
                continue
            config, operations, finding = found
            what = kind(Counterexample(operations, finding))
            seen[what] += 1
            # One kind may have several causes: examine it again now and then.
            if seen[what] not in (1, 2, 4, 8, 16, 32):
                continue
            counterexample = shortest(operations, config, self._factory, self._lacks, figures=figures)
            if counterexample is not None:
                yield counterexample, config

    def _walk(self, *, figures: bool) -> tuple[Config, list[Operation[Any]], RuleBroken | ImplementationFailed] | None:
        config = under(self._factory, memory(self._chance))
        while needs_of_config(config) & self._lacks:
            config = under(self._factory, memory(self._chance))
        generators = self._some_generators()
        model, done = QuickModel(config), list[Operation[Any]]()
        try:
            proxy = OracleProxy(make(self._factory, config), model, snapshot_every=1, figures=figures)
            for op in self._proposals(model.state, generators):
                if needs_now(model.state, op) & self._lacks:
                    continue
                self.operations += 1
                done.append(op)
                carry_out(proxy, op)
        except (RuleBroken, ImplementationFailed) as finding:
            return config, done, finding
        finally:
            self.walks += 1
            self.evidence = Evidence.together([self.evidence, Evidence.of(model)])
        return None

    def _some_generators(self) -> list[Generator]:
        kept = [
            generator
            for generator in GENERATORS
            if generator is generate.advance or self._chance.random.random() >= LEFT_OUT
        ]
        return [generator for generator in kept for _ in range(GENERATORS[generator])]

    def _proposals(self, state: State, generators: list[Generator]) -> Iterator[Operation[Any]]:
        for _ in range(STEPS):
            op = self._chance.choice(generators)(state, self._chance)
            if op is not None and not isinstance(op, Snapshot):
                yield op
        yield from self._ending(state)

    def _ending(self, state: State) -> Iterator[Operation[Any]]:
        """Release everything; the figures must then be those of an empty pool."""
        if state.prepared:
            yield Launch(max(state.flights, default=0) + 1, list(state.prepared))
        while (op := generate.complete(state, self._chance)) is not None:
            yield op
        for req in list(state.requests):
            yield Abort(req)
        for name in list(state.sessions):
            yield CloseSession(name)
        yield Evict(state.config.num_pages)
        if all(request.record is None for request in state.requests.values()):
            yield Report("idle")


def shortest(
    operations: Sequence[Operation[Any]],
    config: Config,
    factory: Factory,
    lacks: frozenset[str],
    *,
    figures: bool = True,
) -> Counterexample | None:
    """The fewest operations that still show the finding of `operations`, without lacking features."""
    attempt = partial(_try_supported, config=config, factory=factory, lacks=lacks, figures=figures)
    found = shrink(operations, attempt, kind, effort_for_one())
    return None if found is None else found.counterexample


def _try_supported(
    operations: Sequence[Operation[Any]], config: Config, factory: Factory, lacks: frozenset[str], *, figures: bool
) -> Counterexample | None:
    return try_out(operations, config, factory, figures=figures) if supported(operations, config, lacks) else None


def supported(operations: Sequence[Operation[Any]], config: Config, lacks: frozenset[str]) -> bool:
    """Whether none of the operations needs a lacking feature."""
    model = QuickModel(config)
    for op in operations:
        if needs_now(model.state, op) & lacks:
            return False
        try:
            model.step(unanswered(op))
        except Refusal:
            continue
    return True
