"""Ranks of one server with a host tier, each with its own scheduler, pages, tree and transfers.

Rank 0 hands its messages to all ranks, as in SGLang. One rank's thread runs at a time, up to its next collective, which
is complete when every rank has reached it. Launches and the lengths of matched prefixes must be the same on all ranks.
Transfers end at any time. With a storage each rank has its threads, too, which meet those of other ranks in groups of
their own.
"""

import copy
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from kvattach.hooks import Trace
from kvattach.patches import Patches
from kvattach.sglang.launches import spans
from kvattach.sglang.release import Release
from kvcheck import Finding
from kvlab.device import Stream, advance
from kvlab.sglang import driver
from kvlab.sglang.server import Worker, configured, scheduler
from kvlab.sglang.storage import Threads, here, storing
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import STUCK, Done, until_done
from kvlab.turns import Task, Turns
from kvspec.memory import Pool
from kvspec.memory.events import Decide, Idle

GROUP = "tp"
"""The group whose decisions must agree."""


def _counting() -> set[Any]:
    """The classes of the engine that number the objects they make."""
    return {
        value
        for name, module in list(sys.modules.items())
        if name.startswith(("sglang.srt.mem_cache.", "sglang.srt.managers."))
        for value in vars(module).values()
        if isinstance(value, type) and isinstance(vars(value).get("counter"), int)
    }


class _Globals:
    """The globals of a rank's process: its device, and the counters of the engine's classes."""

    def __init__(self, classes: set[Any]) -> None:
        """Save the globals as they are now."""
        self._counters = {one: one.counter for one in classes}
        self._device = Stream.current, Stream.all

    def restore(self) -> None:
        """Put the saved globals back."""
        for one, counter in self._counters.items():
            one.counter = counter
        Stream.current, Stream.all = self._device


class Ranks:
    """The ranks' threads, which meet in collectives."""

    def __init__(self, count: int) -> None:
        """Make `count` ranks; none of them runs yet."""
        self.count = count
        self._turns = Turns()
        self._at: dict[str, tuple[str, Any]] = {}
        """Rank -> the collective in which it waits, and its contribution."""
        self._met: list[Any] = []
        self._classes = _counting()

    def run(self, work: Callable[[int], None]) -> str:
        """Do the work of each rank. Returns the ranks that are in a deadlock; empty if there are none."""
        first = _Globals(self._classes)

        def begin(rank: int) -> None:
            first.restore()
            Stream.all = []
            Stream.current = Stream()
            work(rank)

        tasks = [Task(f"{GROUP}{rank}", "scheduler", partial(begin, rank)) for rank in range(self.count)]
        try:
            for task in tasks:
                self._turns.add(task)
            while True:
                while ready := self._turns.ready():
                    self._turns.turn(ready[0])
                if len({name for name, _ in self._at.values()}) != 1 or len(self._at) < self.count:
                    return ", ".join(f"{rank} in {name}" for rank, (name, _) in sorted(self._at.items()))
                self._met = [part for _, (_, part) in sorted(self._at.items())]
                self._at.clear()
        finally:
            self._turns.close()

    def meet(self, name: str, part: Any = None) -> list[Any]:
        """Called by a rank: wait for all ranks in a collective. Returns the contributions of all, by rank."""
        running, own = self._turns.running, _Globals(self._classes)
        assert running is not None
        rank = running.server
        self._at[rank] = name, part
        self._turns.wait(lambda: rank not in self._at)
        own.restore()
        return self._met


class _Groups:
    """The groups in which the ranks' storage threads meet, beside their schedulers."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        """Rank -> the number of its groups."""
        self._parts: dict[tuple[str, int], dict[int, Any]] = {}
        """Group and number of a collective -> the contribution of each rank."""
        self._times: dict[tuple[str, int], int] = {}
        """Group and rank -> the number of its collectives."""

    def make(self, **_: Any) -> str:
        """Called by a rank: the next group, which its storage's threads make in the same order on each rank."""
        rank = here().rank
        self._made[rank] = self._made.get(rank, 0) + 1
        return f"storage {self._made[rank]}"

    def meet(self, group: str, part: Any) -> list[Any]:
        """Called by a thread of a rank's storage: wait for that of each rank. Returns the contributions, by rank."""
        threads = here()
        number = self._times[group, threads.rank] = self._times.get((group, threads.rank), 0) + 1
        parts = self._parts.setdefault((group, number), {})
        parts[threads.rank] = part
        threads.pause(lambda: len(parts) == threads.ranks)
        return [part for _, part in sorted(parts.items())]


class _Follower:
    """The input of a rank other than the first: the messages of the first rank. Its answers are not sent."""

    def __init__(self, ranks: Ranks, rng: random.Random, tokens: Tokens) -> None:
        self._ranks, self._rng, self._tokens = ranks, rng, tokens
        self._pace = rng.choice((6, 12, 40))

    def receive(self, **_: Any) -> list[Any]:
        advance(self._rng, self._pace)
        here().advance()
        messages = self._ranks.meet("broadcast")[0]
        if messages is None:
            raise Done
        messages = copy.deepcopy(messages)
        for one in messages:
            if hasattr(one, "sampling_params"):
                sampling = one.sampling_params
                self._tokens.arrive(one.rid, [*one.input_ids], sampling.max_new_tokens, ends=not sampling.ignore_eos)
        return list(messages)

    def answered(self, name: str, tokens: Sequence[int], reason: Reason, most: int | None) -> None:
        """A request was answered; only the first rank sends the answer."""


class _Leader:
    """The first rank's traffic, which is passed on to the other ranks."""

    def __init__(self, ranks: Ranks, traffic: Any) -> None:
        self._ranks, self._traffic = ranks, traffic
        self.answered = traffic.answered

    def receive(self, **_: Any) -> list[Any]:
        here().advance()
        try:
            messages = self._traffic.receive()
        except BaseException:
            self._ranks.meet("broadcast")
            raise
        return list(self._ranks.meet("broadcast", messages)[0])


@contextmanager
def _collectives(release: Release, ranks: Ranks) -> Iterator[None]:
    """Torch's collectives, carried out between the ranks' threads."""
    distributed, groups = release.torch.distributed, _Groups()
    state = importlib.import_module("sglang.srt.distributed.parallel_state")

    def all_reduce(tensor: Any, op: Any = None, group: Any = None, **_: Any) -> None:
        own = tensor.clone()
        stored = here().current is not None
        parts = groups.meet(group, own) if stored else ranks.meet(f"all_reduce of {tensor.numel()}", own)
        least = op == distributed.ReduceOp.MIN
        assert least or op == distributed.ReduceOp.MAX, f"a reduction by {op}"
        reduced = release.torch.stack(parts)
        tensor.copy_((reduced.amin if least else reduced.amax)(dim=0))

    with Patches() as patches:
        patches.set(distributed, "get_world_size", lambda *_, **__: ranks.count)
        patches.set(distributed, "all_reduce", all_reduce)
        patches.set(distributed, "get_process_group_ranks", lambda _: [*range(ranks.count)])
        patches.set(state, "create_custom_parallel_group", groups.make)
        patches.set(distributed, "barrier", lambda *_, **__: ranks.meet("barrier"))
        yield


def run(
    release: Release,
    seed: int,
    trace: Trace,
    shape: driver.Shape | None = None,
    *,
    storage: bool = False,
    report: Callable[[Finding], None] = ignored,
) -> str:
    """Drive two or three ranks until all requests have ended, or until one raises; the same seed gives the same run.

    With `storage` each rank has one behind its host tier, whose threads get on at their own times. `report` takes
    findings on tokens. Returns the error of the release that ended the run, or an empty string.
    """
    rng = random.Random(f"{seed} ranks")
    shape = shape or replace(driver.Shape.drawn(rng), pauses=0.0)
    of_storage = random.Random(f"{seed} storage")
    policy = of_storage.choice(["best_effort", "wait_complete"]) if storage else ""
    if policy:
        # Pages have to leave the host before they come back from the storage.
        shape = replace(shape, host_pages=shape.pages, requests=shape.requests * 4, alphabet=of_storage.choice([2, 3]))
    ranks = Ranks(rng.choice((2, 3)))
    trace.header(f"sglang, {ranks.count} ranks", {"kv": Pool(shape.page_size, shape.pages)})
    server, errors = driver.served(shape), dict[int, str]()
    of_ranks = [Threads(random.Random(f"{seed} storage {rank}"), rank, ranks.count) for rank in range(ranks.count)]

    def work(rank: int) -> None:
        """Run one rank to the end."""
        of_ranks[rank].enter()
        own = random.Random(f"{seed} rank {rank}")
        tokens = Tokens(seed, report, ends=shape.ends)
        memory = driver.memory_of(release, shape, ranks.count, policy)
        traffic = driver.Talk(release, shape, own, tokens)
        watching = _Follower(ranks, own, tokens) if rank else _Leader(ranks, traffic)
        worker = Worker(release, memory, own, tokens, shape.overlap)
        driver.fence(memory, worker)

        def launched(batch: Any, _: list[int] | None) -> None:
            traffic.launched()
            parts = zip(batch.reqs, *spans(batch), strict=True)
            what = ", ".join(f"{req.rid} {start}-{stop}" for req, start, stop in parts)
            trace.emit(Decide(GROUP, f"launch {what}", host=f"{GROUP}{rank}"))

        worker.launched = launched
        made = scheduler(release, memory, worker, server, watching)
        made.enable_hicache_storage = bool(policy)
        traffic.is_idle = made.is_fully_idle
        error = until_done(made.event_loop_overlap if made.enable_overlap else made.event_loop_normal, (Exception,))
        if error:
            errors[rank] = error

    behind = storing(release, of_ranks) if policy else nullcontext()
    with driver.standing_in(release, shape, seed), _collectives(release, ranks), configured(release, server), behind:
        apart = ranks.run(work)
    if errors:
        return next(iter(errors.values()))
    if apart:
        return f"{STUCK}: ranks wait for each other, {apart}"
    for rank in range(ranks.count):
        trace.emit(Idle(host=f"{GROUP}{rank}"))
    return ""
