"""Traffic through the reference scheduler, for finding the gallery's defects.

It runs every mode on small memories, checks every answer, and watches progress.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from kvcheck import Checker
from kvconform.features import needs_now
from kvconform.gallery.mutants.bug import Bug, Pool
from kvconform.oracle import Model
from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken, make
from kvconform.vectors.runner import Counterexample, Factory, unanswered
from kvref.scheduler import MIN_WAITING, Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import (
    A,
    Complete,
    Config,
    Finish,
    Launch,
    Operation,
    Refusal,
    Report,
    Snapshot,
    Step,
    Submit,
    Verify,
)
from kvspec.pages import ceil_pages
from kvspec.rules import Violation
from kvspec.tokens import Element

REQUESTS_A_RUN = 24
"""The number of requests of one run, on a fresh implementation."""
REPORT_EVERY = 4
"""Operations between two reports."""

_MODES = (
    SchedulerConfig(),
    SchedulerConfig(max_prefill_tokens=24, chunked_prefill_size=7, overlap=True),
    SchedulerConfig(max_prefill_tokens=16, chunked_prefill_size=5, mixed_chunk=True, abort_interval=5),
    SchedulerConfig(drafts=3, retract_interval=4, close_interval=9),
    SchedulerConfig(overlap=True, retract_interval=1),
    SchedulerConfig(max_prefill_tokens=24, chunked_prefill_size=9, overlap=True, retract_interval=1, abort_interval=7),
    SchedulerConfig(overlap=True, drafts=2, retract_interval=3, abort_interval=5, close_interval=7),
    SchedulerConfig(
        max_prefill_tokens=20, chunked_prefill_size=6, overlap=True, mixed_chunk=True, retract_interval=2, drafts=1
    ),
)
"""Switches of the scheduler that together reach every mode."""


class Replayed(NamedTuple):
    """The result of replaying traffic on a defect."""

    requests: int
    """The requests submitted until it was found, or in total."""
    run: "Run"
    """The last run."""
    shown: Counterexample | None
    """The operations of that run if it was found."""


class Run(NamedTuple):
    """Traffic for one fresh implementation."""

    config: Config
    mode: SchedulerConfig
    traffic: list[GenerateReq]


class LackingError(Exception):
    """An operation needs a feature that the implementation lacks."""


def replay(bug: Bug, runs: int, seed: int) -> Replayed:
    """Run synthetic traffic through the bug's scheduler on the bug's manager, up to the first finding."""
    requests = 0
    run = Run(Config(1, 1, 1, 1), _MODES[0], [])
    for number in range(runs):
        draw = random.Random(seed * 1_000_003 + number)
        config = with_pool(sizes(draw), bug.pool, draw)
        mode = mode_for(_MODES[number % len(_MODES)], config)
        run = Run(config, mode, list(traffic(draw, config)))
        operations, finding = carry_out(bug.factory, bug.scheduler, run)
        requests += sum(isinstance(op, Submit) for op in operations)
        if finding is not None:
            return Replayed(requests, run, Counterexample(operations, finding))
    return Replayed(requests, run, None)


def carry_out(
    factory: Factory,
    scheduling: type[Scheduler],
    run: Run,
    *,
    checker: bool = False,
    lacking: frozenset[str] = frozenset(),
) -> tuple[list[Operation[Any]], RuleBroken | ImplementationFailed | None]:
    """Run traffic to its end or the first finding. Returns all operations with their answers, and the finding.

    With `checker`, the memory events of each step are checked as well. The traffic ends if it needs a lacking feature.
    """
    operations: list[Operation[Any]] = []
    model = QuickModel(run.config, checker=Checker if checker else None)
    try:
        proxy = OracleProxy(make(factory, run.config), model, record=operations.append, snapshot_every=1)

        def supported(op: Operation[A], /) -> A:
            if lacking and needs_now(model.state, op) & lacking:
                raise LackingError
            return proxy(op)

        step = Reporting(Patient(supported, patience(run.config, run.mode)), model)
        scheduling(step, run.config, run.traffic, run.mode).run()
    except (RuleBroken, ImplementationFailed) as finding:
        return operations, finding
    except Refusal as refusal:
        reason = f"the scheduler asks for what must be refused: {refusal.refused.reason}"
        violation = Violation(refusal.refused.rule or "OP-1", reason)
        return operations, RuleBroken(violation, len(operations), operations[-1])
    except LackingError:
        pass
    except Violation as violation:
        return operations, RuleBroken(violation, len(operations), operations[-1])
    return operations, None


def shortest_loop(bug: Bug, run: Run) -> Counterexample | None:
    """The fewest requests that send a scheduler into an endless loop: the way into the loop, and one cycle.

    `None` if the run does not break LIVE-1, or ends without a loop.
    """
    kept = run.traffic
    for request in run.traffic:
        fewer = [one for one in kept if one is not request and (one.session is None or one.session != request.session)]
        if len(fewer) < len(kept) and _is_stuck(carry_out(bug.factory, bug.scheduler, run._replace(traffic=fewer))[1]):
            kept = fewer
    operations, finding = carry_out(bug.factory, bug.scheduler, run._replace(traffic=kept))
    if not _is_stuck(finding):
        return None
    acts = [op for op in operations if not isinstance(op, (Report, Snapshot))]
    asked = [_without_numbers(op) for op in acts]
    for length in range(1, len(acts) // 2):
        if asked[-length:] == asked[-2 * length : -length]:
            end = len(acts)
            while end > length and asked[end - 1] == asked[end - 1 - length]:
                end -= 1
            reason = (
                f"the last {length} events go round and round: they bring no token that a request keeps, and end none"
            )
            return Counterexample(acts[:end], RuleBroken(Violation("LIVE-1", reason), end, acts[end - 1]))
    return None


def _is_stuck(finding: RuleBroken | ImplementationFailed | None) -> bool:
    return isinstance(finding, RuleBroken) and finding.rule.id == "LIVE-1"


def _without_numbers(op: Operation[Any]) -> Operation[Any]:
    """The operation without launch numbers, which never repeat."""
    asked = unanswered(op)
    return replace(asked, launch=0) if isinstance(asked, (Complete, Launch)) else asked


def sizes(draw: random.Random) -> Config:
    """A memory that is too small for the traffic at once."""
    page_size = draw.choice((1, 4, 4, 16))
    return Config(
        page_size=page_size,
        num_pages=ceil_pages(draw.choice((64, 96, 160)), page_size),
        num_rows=draw.choice((2, 3, 5)),
        max_context_len=64,
        prefix_cache=draw.random() < 0.9,
    )


def with_pool(config: Config, pool: Pool, draw: random.Random) -> Config:
    """The same memory with a hybrid pool that is too small for the traffic at once."""
    match pool:
        case "sliding_window":
            return replace(
                config,
                sliding_window=draw.choice((config.page_size, 5, 24)),
                num_window_pages=ceil_pages(draw.choice((68, 96)), config.page_size) + 2,
            )
        case "recurrent_states":
            return replace(config, num_states=draw.choice((4, 7, 10)))
    return config


def mode_for(mode: SchedulerConfig, config: Config) -> SchedulerConfig:
    """The mode without features that this kind of memory lacks: recurrent states cannot undo speculative steps."""
    return dataclasses.replace(mode, drafts=0) if config.num_states else mode


def traffic(draw: random.Random, config: Config) -> Iterator[GenerateReq]:
    """Requests of two families that share prefixes; half of them are turns of sessions."""
    histories: dict[str, list[Element]] = {"s1": [], "s2": []}
    for number in range(1, REQUESTS_A_RUN + 1):
        session = draw.choice((None, None, *histories))
        outputs = [draw.randrange(2) for _ in range(draw.randint(1, 9))]
        prompt: list[Element] = [draw.randrange(2), *([0] * draw.randint(0, 3 * min(config.page_size, 8)))]
        if session is None:
            yield GenerateReq(f"r{number}", prompt, outputs)
            continue
        tokens = [*histories[session], *prompt]
        last_turn = len(tokens) + len(outputs) > config.max_context_len // 2
        yield GenerateReq(f"r{number}", tokens, outputs, session, last_turn)
        if last_turn:
            del histories[session]
            histories[f"s{number + 2}"] = []
        else:
            histories[session] = [*tokens, *outputs]


def patience(config: Config, mode: SchedulerConfig) -> int:
    """The most successive operations without progress.

    Between two tokens each row's request may prefill the longest prompt, chunk by chunk, once more if it is retracted;
    and before each of these launches everything that runs or waits may be matched, twice if there is no room at first.
    """
    chunk = min(mode.chunked_prefill_size, mode.max_prefill_tokens)
    launches = 2 * config.num_rows * (1 + ceil_pages(config.max_context_len, chunk))
    return launches * 2 * (config.num_rows + MIN_WAITING)


class Patient:
    """Passes operations on, and raises LIVE-1 if no request makes progress for many operations.

    A request makes progress when a token that it keeps arrives, and when it ends. A scheduler that needs more than
    `operations` for that undoes its own work.
    """

    def __init__(self, step: Step, operations: int) -> None:
        """Hand operations to `step`."""
        self._step = step
        self._patience = operations
        self._in_vain = 0

    def __call__(self, op: Operation[A], /) -> A:
        """Carry `op` out.

        Raises:
            Violation: LIVE-1, there were too many operations without progress.
        """
        self._in_vain += 1
        if self._in_vain > self._patience:
            raise Violation(
                "LIVE-1",
                f"{self._patience} operations in a row have brought no token that a request keeps, and ended none",
                expected="a token, or the end of a request",
                observed="none",
            )
        answer = self._step(op)
        if isinstance(op, (Verify, Finish)) or (isinstance(op, Complete) and op.sampled):
            self._in_vain = 0
        return answer


class Reporting:
    """Passes operations on, and requests the figures now and then, in mode idle if the system is idle."""

    def __init__(self, step: Step, model: Model) -> None:
        """Hand operations to `step`; `model` knows whether anything holds memory."""
        self._step = step
        self._model = model
        self._count = 0

    def __call__(self, op: Operation[A], /) -> A:
        """Carry `op` out."""
        answer = self._step(op)
        self._count += 1
        if self._count % REPORT_EVERY == 0 and not isinstance(op, Report):
            idle = all(request.record is None for request in self._model.state.requests.values())
            self._step(Report("idle" if idle else "busy"))
        return answer
