"""Replays real traffic through the scheduler, with every answer checked."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvcheck import Checker
from kvconform.errors import LoadError
from kvconform.findings.text import show_finding
from kvconform.levels.requests.minimise import Shortest, effort_for_one, kind, shortest_by
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken, make
from kvconform.signals import caught, until_interrupted
from kvconform.traces import codec
from kvconform.traffic import mooncake
from kvconform.vectors.runner import Factory, try_out
from kvref.scheduler import NotObserved, Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import (
    A,
    Config,
    Decode,
    Evict,
    Extend,
    MatchPrefix,
    Operation,
    Preempt,
    Report,
    Retract,
    Submit,
    SwaEvict,
)
from kvspec.pages import expand
from kvtrace.header import VERSION
from kvtrace.operations import Header

LONGEST = 5_000
"""The most operations with a search for a shorter list: each attempt carries all of them out again."""
CYCLES_A_LOOK = 50
"""Cycles of the scheduler between two updates of the progress."""


class Tally:
    """Passes operations on, and counts the numbers of the final table."""

    def __init__(self, proxy: OracleProxy, model: QuickModel) -> None:
        """Count the operations that `proxy` carries out and checks by `model`."""
        self.operations: Counter[type[Operation[Any]]] = Counter()
        """The operations that were not refused, by kind."""
        self.hit_tokens = 0
        """The number of prompt tokens that were cached when a request was first admitted."""
        self.evicted_pages = 0
        self.peak_pages = 0
        """The most pages that were not free."""
        self.peak_held = 0
        """The most pages that were neither free nor evictable: requests and sessions held them."""
        self.left_behind = 0
        """The number of window pages that running requests freed."""
        self.evicted_sides = 0
        self.evicted_states = 0
        self.peak_window_pages = 0
        self.peak_states = 0
        self._checked, self._model = proxy, model
        self._matched: dict[str, int] = {}
        """Request that was not admitted yet -> the length of its last match."""

    def __call__(self, op: Operation[A], /) -> A:
        """Carry `op` out, as a `kvspec.events.Step`."""
        answer = self._checked(op)
        self.operations[type(op)] += 1
        match op:
            case Extend():
                self.hit_tokens += sum(self._matched.pop(req, 0) for req, _ in op.reqs)
                self._measure()
            case Decode():
                self._measure()
            case Submit():
                self._matched[op.req] = 0
            case MatchPrefix():
                if op.req in self._matched and op.obs is not None:
                    self._matched[op.req] = op.obs.prefix_len or 0
            case Evict():
                if op.obs is not None:
                    self.evicted_pages += len(expand(op.obs.evicted))
                    self.evicted_sides += len(expand(op.obs.window_evicted or ()))
                    self.evicted_states += len(expand(op.obs.states_evicted or ()))
            case SwaEvict():
                if op.obs is not None:
                    self.left_behind += len(expand(op.obs.window_freed or ()))
        return answer

    def _measure(self) -> None:
        state = self._model.unsettled
        in_use = state.config.num_pages - state.free_pages
        self.peak_pages = max(self.peak_pages, in_use)
        self.peak_held = max(self.peak_held, in_use - state.store.evictable)
        self.peak_window_pages = max(self.peak_window_pages, len(state.window_owner))
        self.peak_states = max(self.peak_states, len(state.state_owner))


class CannotRunError(Exception):
    """No request can run: the memory does not fit the scheduler's mode. The message says why."""


class Replay:
    """One workload that runs through the scheduler and an implementation, checked by the model."""

    def __init__(
        self,
        entries: list[mooncake.Entry],
        memory: Config,
        factory: Factory,
        *,
        sessions: bool = False,
        scheduling: SchedulerConfig = SchedulerConfig(),  # noqa: B008 - it is immutable
        record: Callable[[Operation[Any]], object] | None = None,
        snapshot_every: int = 0,
        checker: bool = False,
    ) -> None:
        """Prepare to replay `entries`. With `checker`, each step's memory events are checked as well.

        Raises:
            ImplementationFailed: the implementation could not be made.
            CannotRunError: no request could run in this memory, or not in this mode.
        """
        self.entries = entries
        self.memory = memory
        self.sessions = sessions
        self.beginning: list[Operation[Any]] = []
        """The first operations, while they are few enough to search for the shortest that show a finding."""
        self._record = record
        model = QuickModel(memory, checker=Checker if checker else None)
        self.checked = OracleProxy(make(factory, memory), model, record=self._keep, snapshot_every=snapshot_every)
        self.tally = Tally(self.checked, model)
        requests = mooncake.requests(entries, memory.page_size, sessions=sessions)
        try:
            self.scheduler = Scheduler(self.tally, memory, requests, scheduling)
        except ValueError as error:
            raise CannotRunError(str(error)) from None

    def run(self, look: Callable[[], object] = lambda: None) -> RuleBroken | ImplementationFailed | None:
        """Replay all entries, up to the first finding; `look` is called now and then.

        Raises:
            NotObserved: the implementation's answers lack parts that scheduling needs.
        """
        cycles = 0
        try:
            with until_interrupted():
                while self.scheduler.cycle():
                    cycles += 1
                    if cycles % CYCLES_A_LOOK == 0:
                        look()
            if caught():
                return None
            self.tally(Report("idle"))
        except (RuleBroken, ImplementationFailed) as finding:
            return finding
        return None

    def _keep(self, op: Operation[Any]) -> None:
        if self.checked.steps <= LONGEST:
            self.beginning.append(op)
        else:
            self.beginning.clear()
        if self._record is not None:
            self._record(op)


class Timed(NamedTuple):
    """The result of a replay, and its duration."""

    finding: RuleBroken | ImplementationFailed | None
    seconds: float


class Traffic(NamedTuple):
    """A workload to replay, its memory, and its scheduling."""

    file: Path
    entries: list[mooncake.Entry]
    memory: Config
    scheduling: SchedulerConfig
    sessions: bool
    """Whether requests that continue an earlier one are turns of one session."""
    checker: bool = False
    """Whether each operation's memory events are checked as well."""


def replay_and_show(traffic: Traffic, factory: Factory, impl: str, record: Path | None, snapshot_every: int) -> bool:
    """Replay traffic and print the results. Returns whether no rule was broken.

    Raises:
        CannotRunError: no request could run in this memory, or not in this mode. LoadError: the implementation's
        answers lack parts that scheduling needs.
    """
    file, memory = traffic.file, traffic.memory
    out = Console()
    writer = None if record is None else codec.TraceWriter(record, Header(VERSION, impl, memory))
    try:
        replay = Replay(
            traffic.entries,
            memory,
            factory,
            sessions=traffic.sessions,
            scheduling=traffic.scheduling,
            record=None if writer is None else writer.write,
            snapshot_every=snapshot_every,
            checker=traffic.checker,
        )
        timed = _timed(replay)
    except ImplementationFailed as failure:
        nothing = Shortest(None, "No operation was carried out.")
        show_finding(out, finding_of(failure, memory, place_of(failure, file), nothing))
        return False
    except NotObserved as error:
        raise LoadError(f"implementation {impl!r} cannot be replayed: {error}") from error
    finally:
        if writer is not None:
            writer.__exit__(None, None, None)
    out.print(_table(replay, timed))
    if timed.finding is not None:
        shortest, last = _shortest(replay, factory), timed.finding.op
        original = [(0, op) for op in replay.beginning] or ([] if last is None else [(0, last)])
        show_finding(out, finding_of(timed.finding, memory, place_of(timed.finding, file), shortest, original))
    elif not replay.scheduler.finished and not caught():
        raise CannotRunError("none of the requests fits into this memory: nothing was checked")
    return timed.finding is None


def _timed(replay: Replay) -> Timed:
    """Run a replay, with progress on standard error if that is a terminal."""
    text = "{task.fields[finished]:,} of {task.total:,} requests, {task.fields[steps]:,} operations, "
    columns = BarColumn(), TextColumn(text + "{task.fields[rate]:,.0f}/s"), TimeElapsedColumn()
    start = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=len(replay.entries), finished=0, steps=0, rate=0.0)

        def look() -> None:
            steps = replay.checked.steps
            rate = steps / (time.perf_counter() - start)
            done = replay.scheduler.finished
            progress.update(task, completed=done, finished=done, steps=steps, rate=rate)

        finding = replay.run(look)
    return Timed(finding, time.perf_counter() - start)


def _table(replay: Replay, timed: Timed) -> Table:
    """The workload of a replay, and its results."""
    tally, scheduler = replay.tally, replay.scheduler
    prompt_tokens = sum(entry.input_length for entry in replay.entries)
    recorded = mooncake.duration(replay.entries)
    table = Table("", "", title="Replay", box=box.SIMPLE, show_header=False)
    table.columns[1].justify = "right"
    turns = sum(before is not None for before in mooncake.previous_turns(replay.entries)) if replay.sessions else 0
    rows: list[tuple[str, str]] = [
        ("requests", f"{len(replay.entries):,}"),
        ("  of them further turns of a session", f"{turns:,}"),
        ("  finished", f"{scheduler.finished:,}"),
        ("  larger than the memory, not run", f"{len(scheduler.rejected):,}"),
        ("prompt tokens", f"{prompt_tokens:,}"),
        ("output tokens", f"{sum(entry.output_length for entry in replay.entries):,}"),
        ("cache hit tokens", f"{tally.hit_tokens:,} ({tally.hit_tokens / prompt_tokens:.1%})"),
        ("evicted pages", f"{tally.evicted_pages:,}"),
        *_hybrid_rows(replay),
        ("preempted sessions", f"{tally.operations[Preempt]:,}"),
        ("retracted requests", f"{tally.operations[Retract]:,}"),
        ("peak pages in use", f"{tally.peak_pages:,} of {replay.memory.num_pages:,}"),
        ("  held by requests and sessions", f"{tally.peak_held:,}"),
        ("events checked", f"{replay.checked.steps:,}"),
        ("seconds", f"{timed.seconds:.1f}"),
        ("times faster than recorded", f"{recorded / timed.seconds:,.0f}"),
        ("violations", "0" if timed.finding is None else "1, where it stopped"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _hybrid_rows(replay: Replay) -> list[tuple[str, str]]:
    """The results for the pools of hybrid models."""
    tally, memory = replay.tally, replay.memory
    rows = []
    if memory.sliding_window:
        rows += [
            ("window pages left behind", f"{tally.left_behind:,}"),
            ("window pages evicted from the store", f"{tally.evicted_sides:,}"),
            ("peak window pages in use", f"{tally.peak_window_pages:,} of {memory.num_window_pages:,}"),
        ]
    if memory.num_states:
        rows += [
            ("states evicted from the store", f"{tally.evicted_states:,}"),
            ("peak state slots in use", f"{tally.peak_states:,} of {memory.num_states:,}"),
        ]
    return rows


def _shortest(replay: Replay, factory: Factory) -> Shortest:
    """The shortest operations that show the finding, if the replay is short enough."""
    count = replay.checked.steps
    if count > LONGEST:
        return Shortest(
            None, f"{count:,} operations are too many to look for fewer that show it; --record writes them to a trace."
        )
    attempt = partial(try_out, config=replay.memory, factory=factory, snapshot_every=0)
    return shortest_by(replay.beginning, attempt, kind, effort_for_one(), keep=False)
