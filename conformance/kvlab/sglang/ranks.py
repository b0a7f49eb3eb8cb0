"""Ranks of one server with a host tier, each with its own scheduler, pages, tree and transfers.

Rank 0 hands its messages to all ranks, as in SGLang. One rank's thread runs at a time, up to its next collective, which
is complete when every rank has reached it. Launches and the lengths of matched prefixes must be the same on all ranks.
Transfers end at any time.
"""

import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


class _Follower:
    """The input of a rank other than the first: the messages of the first rank. Its answers are not sent."""

    def __init__(self, ranks: Ranks, rng: random.Random, tokens: Tokens) -> None:
        self._ranks, self._rng, self._tokens = ranks, rng, tokens
        self._pace = rng.choice((6, 12, 40))

    def receive(self, **_: Any) -> list[Any]:
        advance(self._rng, self._pace)
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
        try:
            messages = self._traffic.receive()
        except BaseException:
            self._ranks.meet("broadcast")
            raise
        return list(self._ranks.meet("broadcast", messages)[0])


@contextmanager
def _collectives(release: Release, ranks: Ranks) -> Iterator[None]:
    """Torch's collectives, carried out between the ranks' threads."""
    distributed = release.torch.distributed

    def all_reduce(tensor: Any, op: Any = None, group: Any = None, **_: Any) -> None:
        parts = ranks.meet(f"all_reduce of {tensor.numel()}", tensor.clone())
        least = op == distributed.ReduceOp.MIN
        assert least or op == distributed.ReduceOp.MAX, f"a reduction by {op}"
        reduced = release.torch.stack(parts)
        tensor.copy_((reduced.amin if least else reduced.amax)(dim=0))

    with Patches() as patches:
        patches.set(distributed, "get_world_size", lambda *_, **__: ranks.count)
        patches.set(distributed, "all_reduce", all_reduce)
        patches.set(distributed, "barrier", lambda *_, **__: ranks.meet("barrier"))
        yield


def run(
    release: Release,
    seed: int,
    trace: Trace,
    shape: driver.Shape | None = None,
    *,
    report: Callable[[Finding], None] = ignored,
) -> str:
    """Drive two or three ranks until all requests have ended, or until one raises; the same seed gives the same run.

    `report` takes findings on tokens. Returns the error of the release that ended the run, or an empty string.
    """
    rng = random.Random(f"{seed} ranks")
    shape = shape or replace(driver.Shape.drawn(rng), pauses=0.0)
    ranks = Ranks(rng.choice((2, 3)))
    trace.header(f"sglang, {ranks.count} ranks", {"kv": Pool(shape.page_size, shape.pages)})
    server, errors = driver.served(shape), dict[int, str]()

    def work(rank: int) -> None:
        """Run one rank to the end."""
        own = random.Random(f"{seed} rank {rank}")
        tokens = Tokens(seed, report, ends=shape.ends)
        memory = driver.memory_of(release, shape, ranks.count)
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
        traffic.is_idle = made.is_fully_idle
        error = until_done(made.event_loop_overlap if made.enable_overlap else made.event_loop_normal, (Exception,))
        if error:
            errors[rank] = error

    with driver.standing_in(release, shape, seed), _collectives(release, ranks), configured(release, server):
        apart = ranks.run(work)
    if errors:
        return next(iter(errors.values()))
    if apart:
        return f"{STUCK}: ranks wait for each other, {apart}"
    for rank in range(ranks.count):
        trace.emit(Idle(host=f"{GROUP}{rank}"))
    return ""
