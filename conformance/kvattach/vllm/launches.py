"""Launches and transfers of vLLM: `schedule()` queues them, and `update_from_output` ends them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvattach.hooks import Hooks
from kvattach.vllm.residency import POOL, Group, Run
from kvattach.vllm.states import Move, States
from kvspec.memory.events import Begin, Deliver, End, Unmap, Use

STREAM = "gpu"


class Attached(Protocol):
    """The part of the scheduler's hooks that launches use."""

    hooks: Hooks
    groups: list[Group]
    runs: dict[str, Run]

    def emit(self, *events: Any) -> None:
        """Emit events, once there is a scheduler."""
        ...

    def owns(self, scheduler: Any) -> bool:
        """Whether the events are about a scheduler's memory."""
        ...

    def count(self) -> None:
        """Emit the engine's own figures."""
        ...

    def in_use(self, page: int) -> bool:
        """Whether a page has references."""
        ...

    def idle(self, scheduler: Any) -> None:
        """If no request is left, only holders that wait for a launch may hold anything."""
        ...


@dataclass
class Launch:
    """One pass in flight."""

    id: str
    runs: dict[str, tuple[Run, int, int, bool]]
    """Request -> its run, the first token that may be written, the number of drafts, whether it gets a token."""
    loads: list["Load"] = field(default_factory=list)
    """Loads that are part of the step."""
    behind: list[str] = field(default_factory=list)
    """Operations between the pass and its sampling."""


@dataclass
class Load:
    """Tokens that a connector loads into the pages of one run."""

    id: str
    run: Run
    uses: list[Use]
    asynchronous: bool
    lost: set[int] = field(default_factory=set)
    """Pages that could not be loaded."""

    @property
    def unwritten(self) -> list[Use]:
        """The pages that were not loaded."""
        lost = [page for use in self.uses for page in use.pages if page in self.lost]
        return [Use(pool=POOL, pages=[page], holder=self.run.name) for page in lost]


class Launches:
    """The scheduler's launches, and its connector's transfers."""

    def __init__(self, attached: Attached) -> None:
        """Begin with nothing in flight."""
        self._attached = attached
        self.planning = False
        """Whether pages are now published before they are written."""
        self._numbers = 0
        self._copied: set[int] = set()
        """Targets of copies before the next pass."""
        self._flying: dict[int, Launch] = {}
        """Identity of the scheduler's output -> its launch."""
        self._asked: dict[str, tuple[int, bool]] = {}
        """Request -> the first token that its connector can load, and whether the load is asynchronous."""
        self._starting: list[Load] = []
        self._loads: dict[str, Load] = {}
        """Request -> its load in flight."""
        self._sends: dict[str, str] = {}
        self._states = States()
        self._unmoved: tuple[Launch, list[Use | None], list[Use | None]] | None = None
        """A pass that is queued when its accepted drafts are known."""
        self._flat = False
        """Whether a token's slot in a table is its position, and no group has states or is rebuilt after a hit."""
        self._rebuilt = 0
        """The number of tokens of a hit that are recomputed, for the groups that are not cached."""
        self._connector: Any = None

    def hook(self, scheduler: Any) -> None:
        """Hook the functions that schedule and that get results."""
        hooks = self._attached.hooks
        hooks.hook(scheduler, "schedule", before=self._schedules, after=self._scheduled)
        hooks.hook(scheduler, "update_from_output", before=self._completed, after=self._updated)
        hooks.hook(scheduler, "_update_from_kv_xfer_finished", before=self._transferred)

    def start(self, scheduler: Any, observed: bool) -> None:
        """A new scheduler was made, with its own connector. Nothing is in flight.

        The events of a connector with `observed` copies are emitted elsewhere.
        """
        self._flying.clear()
        self._asked.clear()
        self._loads.clear()
        self._sends.clear()
        self._starting = []
        self._states.clear()
        connector, hooks = scheduler.connector, self._attached.hooks
        self._pages_known = connector is not None
        self._connector = connector
        self._rebuilt = getattr(scheduler, "prefix_replay_tokens", 0)
        groups = self._attached.groups
        self._flat = not self._rebuilt and all(not one.state and one.size == one.page_size for one in groups)
        if connector is not None and not observed:
            hooks.hook(connector, "get_num_new_matched_tokens", after=self._matched)
            hooks.hook(connector, "update_state_after_alloc", before=self._loads_next)
            for name in ("request_finished", "request_finished_all_groups"):
                if hasattr(connector, name):
                    hooks.hook(connector, name, after=self._finished)

    # Launches

    def _schedules(self, scheduler: Any, *_: Any, **__: Any) -> None:
        self.planning = self._attached.owns(scheduler)

    def _scheduled(self, _: None, output: Any, scheduler: Any, *__: Any, **___: Any) -> None:
        """Queue the scheduled step: rows go to the workers, then loads and zeros, then the pass."""
        self.planning = False
        attached = self._attached
        if not attached.owns(scheduler):
            return
        self._numbers += 1
        launch = Launch(f"step {self._numbers}", {})
        computed = self._rows(output)
        self._start_loads(launch)
        self._zeros(launch.id, output)
        reads: list[Use | None] = []
        writes: list[Use | None] = []
        states: list[tuple[Use | None, Use]] = []
        drafted, lookahead = output.scheduled_spec_decode_tokens, scheduler.num_lookahead_tokens
        moves = hasattr(scheduler, "kvspec_moved")
        for name, tokens in output.num_scheduled_tokens.items():
            run = attached.runs[name]
            start, stop = computed[name], computed[name] + tokens
            samples, known = not run.request.is_prefill_chunk, len(run.request._all_token_ids) + run.sampling
            if self._flat and not (drafted or lookahead or run.drafts):
                # Nearly all passes take this path. It makes no call per group, since each request would pay for it.
                launch.runs[name] = run, start, 0, samples
                run.sampling += samples
                if stop > known:
                    writes += self._of_no_token(scheduler, run, max(start, known), stop)
                    stop = known
                for group, table, pages in zip(attached.groups, run.tables, run.rows, strict=True):
                    first = group.first_read(start) if group.bounded else 0
                    end = min(stop, pages * group.size)
                    if first < start:
                        reads.append(Use(table, start=first, stop=start))
                    if start < end:
                        writes.append(Use(table, start=start, stop=end))
                continue
            drafts, certain = len(drafted.get(name, ())), max(0, start - run.drafts)
            launch.runs[name] = run, certain, drafts, samples
            run.sampling += samples
            end = stop
            if stop > known and not (drafts or run.drafts or lookahead):
                writes += self._of_no_token(scheduler, run, max(start, known), stop)
                stop = known
            for group in attached.groups:
                if not group.state:
                    kept = self._kept(run, group, start, stop)
                    reads.append(run.reads(group, start, certain if kept == start else kept))
                    writes += self._writes(scheduler, run, group, kept, stop, drafts)
                elif not moves:
                    states.append(run.states(group, start, end, known))
            run.drafts += drafts
        if moves:  # a driver will report the accepted drafts
            scheduler.kvspec_moved, self._unmoved = self._moved, (launch, reads, writes)
        else:
            self._queue(launch, reads, writes, states)
        self._flying[id(output)] = launch
        attached.count()

    def _queue(
        self, launch: Launch, reads: list[Use | None], writes: list[Use | None], states: list[tuple[Use | None, Use]]
    ) -> None:
        """Queue the pass after its effects on recurrent states."""
        if states:
            uses = [read for read, _ in states if read], [write for _, write in states]
            self._attached.emit(Begin(f"{launch.id} states", STREAM, *uses, reads_own_writes=False, at="states"))
        if launch.runs:
            uses = [use for use in reads if use], [use for use in writes if use]
            self._attached.emit(Begin(launch.id, STREAM, *uses, at="schedule"))

    def _moved(self, moves: Mapping[str, Move]) -> None:
        """A driver reports the accepted drafts of the scheduled pass: with them its states are known."""
        assert self._unmoved is not None
        launch, reads, writes = self._unmoved
        self._unmoved = None
        made, id = self._states.move(launch.id, self._attached.groups, self._attached.runs, moves), launch.id
        if made.before:
            self._attached.emit(Begin(f"{id} states before", STREAM, copies=made.before, at="preprocess_mamba"))
        if made.writes:
            uses = made.reads, made.writes
            self._attached.emit(Begin(f"{id} states", STREAM, *uses, reads_own_writes=False, at="states"))
        if made.after:
            self._attached.emit(Begin(f"{id} states after", STREAM, copies=made.after, at="postprocess_mamba"))
        self._queue(launch, reads, writes, [])

    def _start_loads(self, launch: Launch) -> None:
        """Queue requested loads. Synchronous ones belong to the launch."""
        for load in self._starting:
            self._attached.emit(Begin(load.id, None if load.asynchronous else STREAM, [], load.uses, at="load"))
            if load.asynchronous:
                self._loads[load.run.request.request_id] = load
            else:
                launch.loads.append(load)
        self._starting = []

    def _writes(self, scheduler: Any, run: Run, group: Group, start: int, stop: int, drafts: int) -> list[Use | None]:
        """The writes of a pass. After drafts in flight its position is not known; a drafter may write further."""
        if not (run.drafts or drafts or scheduler.num_lookahead_tokens):
            return [run.writes(group, start, stop)]
        further = stop + scheduler.num_lookahead_tokens
        beyond = run.writes(group, stop, further, at_most=True)
        if run.drafts:
            return [run.writes(group, max(0, start - run.drafts), stop, at_most=True), beyond]
        return [run.writes(group, start, stop - drafts), run.writes(group, stop - drafts, stop, at_most=True), beyond]

    def _kept(self, run: Run, group: Group, start: int, stop: int) -> int:
        """The first token that a pass over tokens `start` to `stop` writes in a group: cached ones are not written."""
        if not self._rebuilt or group.rebuilt or not run.request.replay_start:
            return start
        hit: int = run.request.replay_start + self._rebuilt
        return max(start, min(stop, hit))

    def _of_no_token(self, scheduler: Any, run: Run, start: int, stop: int) -> list[Use | None]:
        """The writes of a pass at positions without a token, for which no launch in flight samples one."""
        uses: list[Use | None] = []
        rows = scheduler.kv_cache_manager.get_block_ids(run.request.request_id)
        for group, row in zip(self._attached.groups, rows, strict=True):
            first = start // group.size
            pages, base = row[first : -(-stop // group.size)], first * group.page_size
            if pages and not group.state:
                labels = [f"no token of {run.table(group)}"] * len(pages)
                end = min(group.slot(stop) - base, len(pages) * group.page_size)
                uses.append(Use(None, POOL, pages, group.slot(start) - base, end, labels, run.name))
        return uses

    def _rows(self, output: Any) -> dict[str, int]:
        """Emit the tables that the workers get. Returns the position at which each request's pass begins."""
        attached, computed = self._attached, {}
        for new in output.scheduled_new_reqs:
            run = attached.runs[new.req_id]
            attached.emit(*run.hit(new.num_computed_tokens))
            self._row(run, new.block_ids, fresh=True)
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for name, pages, position in rows:
            computed[name] = position
            fresh = name in cached.resumed_req_ids
            if fresh:
                attached.emit(*attached.runs[name].hit(position))
            if pages or fresh:
                self._row(attached.runs[name], pages or (), fresh)
        return computed

    def _row(self, run: Run, pages: Any, fresh: bool) -> None:
        for group, more in zip(self._attached.groups, pages, strict=False):
            if fresh and run.rows[group.number]:
                self._attached.emit(Unmap(run.table(group)))
                run.rows[group.number] = 0
            if more:
                self._attached.emit(run.mapped(group, more))

    def _zeros(self, id: str, output: Any) -> None:
        """Emit the clearing of pages before the pass, on its stream."""
        # Targets of copies are cleared earlier, and pages that are freed in the same step have no holder: both are left
        # out.
        cleared = getattr(output, "new_block_ids_to_zero", None) or ()
        zeros = [page for page in cleared if page not in self._copied and self._attached.in_use(page)]
        self._copied.clear()
        if zeros:
            use = Use(pool=POOL, pages=[*zeros])
            self._attached.emit(Begin(f"{id} zeros", STREAM, [], [use], at="zero"))

    def copy(self, source: int, target: int, slots: int) -> None:
        """The first slots of a page, or all (0), are copied before the next scheduled pass, on its stream."""
        self._copied.add(target)
        uses = Use(pool=POOL, pages=[source], stop=slots), Use(pool=POOL, pages=[target], stop=slots)
        self._attached.emit(Begin(f"step {self._numbers + 1} copy {target}", STREAM, copies=[uses], at="copy"))

    def queue_behind(self, begun: Begin) -> None:
        """An operation is queued after the last pass. The host waits for the sampling after both."""
        self._attached.emit(begun)
        if self._flying:
            self._flying[next(reversed(self._flying))].behind.append(str(begun.id))

    def _completed(self, scheduler: Any, output: Any, result: Any) -> None:
        """The host has seen a pass complete, and with it the loads that were part of it."""
        attached = self._attached
        if not attached.owns(scheduler):
            return
        launch = self._flying.pop(id(output), None)
        transfers = result.kv_connector_output
        lost = set(transfers.invalid_block_ids or ()) if transfers else set()
        for load in self._loads.values():
            load.lost |= lost
            if transfers and load.run.request.request_id in (getattr(transfers, "failed_recving", None) or ()):
                load.lost |= {page for use in load.uses for page in use.pages if isinstance(page, int)}
        if launch is None:
            return
        for load in launch.loads:
            load.lost = lost
            attached.emit(End(load.id, unwritten=load.unwritten))
        if launch.runs:
            attached.emit(End(launch.id), *map(End, launch.behind))
        for run, _certain, drafts, samples in launch.runs.values():
            run.drafts -= drafts
            run.sampling -= samples
        self._delivering = launch

    def _updated(self, _: None, outputs: Any, scheduler: Any, *__: Any) -> None:
        """Tokens go to the clients."""
        attached = self._attached
        if not attached.owns(scheduler):
            return
        if self._pages_known:
            for answer in outputs.values():
                for one in answer.outputs:
                    if one.new_token_ids and one.request_id in self._delivering.runs:
                        attached.emit(Deliver(self._delivering.id, self._delivering.runs[one.request_id][0].name))
        attached.count()
        attached.idle(scheduler)

    # Transfers

    def _matched(self, _: None, answer: tuple[Any, bool], request: Any, num_computed_tokens: int, *__: Any) -> None:
        self._asked[request.request_id] = num_computed_tokens, bool(answer[1])

    def _loads_next(self, request: Any, blocks: Any, num_external_tokens: int, *_: Any) -> None:
        """Pages are allocated for tokens that the connector loads. The load begins with the next output."""
        asked = self._asked.pop(request.request_id, None)
        run = self._attached.runs.get(request.request_id)
        if asked is None or run is None or not num_external_tokens:
            return
        start, asynchronous = asked
        stop = start + num_external_tokens
        uses = []
        loaded = getattr(self._connector, "get_loaded_kv_cache_group_ids", None)
        numbers = range(len(self._attached.groups)) if loaded is None else loaded(request)
        for group, pages in zip(self._attached.groups, blocks.get_block_ids(), strict=True):
            if group.number not in numbers:
                continue
            first, last = start // group.size, -(-stop // group.size)
            while first < last and not pages[first]:
                first += 1
            if first < last:
                base = group.slot(first * group.size)
                begin = max(group.slot(start), base)
                labels = [run.label(group, index) for index in range(first, last)]
                uses.append(Use(None, POOL, pages[first:last], begin - base, group.slot(stop) - base, labels, run.name))
        self._starting.append(Load(f"load {run.name}", run, uses, asynchronous))

    def _finished(self, _: None, answer: tuple[bool, Any], request: Any, block_ids: Any, *__: Any) -> None:
        """A finished request's pages are sent, and held until then."""
        run = self._attached.runs.get(request.request_id)
        if not answer[0] or run is None or request.request_id in self._sends:
            return
        flying = [seen[1] for launch in self._flying.values() for seen in launch.runs.values() if seen[0] is run]
        known = min([request.num_computed_tokens, request.num_tokens - 1, *flying])
        pages = block_ids if isinstance(block_ids, tuple) else (block_ids,)
        uses = [run.sent(group, row, known) for group, row in zip(self._attached.groups, pages, strict=True)]
        self._sends[request.request_id] = f"send {run.name}"
        self._attached.emit(Begin(f"send {run.name}", None, [use for use in uses if use], at="request_finished"))

    def _transferred(self, scheduler: Any, output: Any) -> None:
        """End the transfers that the workers report as done."""
        if not self._attached.owns(scheduler):
            return
        for name in output.finished_recving or ():
            load = self._loads.pop(name, None)
            if load is not None:
                self._attached.emit(End(load.id, unwritten=load.unwritten))
        for name in output.finished_sending or ():
            if name in self._sends:
                self._attached.emit(End(self._sends.pop(name)))
