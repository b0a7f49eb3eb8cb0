"""Random overlapping walks over a release's host cache, in the order of its scheduler.

A walk schedules, launches on the forward stream, and takes in the results of the previous launch: one launch is in
flight while requests finish, publish and are retracted, prompts are cut into chunks, and pages are written to the host
and loaded back. Streams make progress at random.
"""

import inspect
import random
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream, advance, stood_in
from kvlab.sglang.memory import LAYERS, Shape, UnifiedMemory
from kvlab.sglang.radix_memory import RadixMemory, make
from kvlab.sglang.storage import Threads, abort, abort_chance, prefetch, prefetched, stored
from kvlab.sglang.tenants import Names, Tenants
from kvlab.stubs import Arguments
from kvlab.traffic import Traffic, until_done

MOST_STEPS = 5_000


@dataclass(eq=False)
class Turn:
    """A request of a walk."""

    req: Any
    tokens: list[int]
    output: int
    named: dict[str, Any]
    """Its extra key, salt and adapter, if any."""
    done: int = 0
    """The positions for which a launch has been queued."""
    gone: bool = False


@dataclass
class Batch:
    """The batch of one launch. It has attributes of the release's own batch."""

    reqs: list[Any]
    prefix_lens: list[int]
    seq_lens: list[int]
    turns: list[Turn]
    hicache_consumer_index: int = -1


class Worker:
    """Stands in for `TpModelWorker`: a forward pass waits for its load layer by layer, and samples."""

    def __init__(self, memory: UnifiedMemory | RadixMemory) -> None:
        """Make the forward stream of one memory."""
        self._counter = memory.controller.layer_done_counter
        self.forward_stream = Stream()
        self.rows_read = Event()
        """The last launch has read its rows. A walk waits only for this, so that transfers are close to launches."""
        self.reads_rows: Callable[[list[Any], list[int]], None] = lambda *_: None
        self.launched: Callable[[list[Any], list[int], list[int]], object] = lambda *_: None

    def forward_batch_generation(self, batch: Batch) -> None:
        """Queue one forward pass."""
        self.reads_rows(batch.reqs, batch.seq_lens)
        self.rows_read.record()
        self._counter.set_consumer(batch.hicache_consumer_index)
        for layer in range(LAYERS):
            self._counter.wait_until(layer)
            Stream.current.queue()
        self.launched(batch.reqs, batch.prefix_lens, batch.seq_lens)


def barrier(scheduler: str) -> str:
    """The point at which the overlapping loop in a scheduler's source waits for the launch in flight to read its rows.

    "schedule": before it schedules; "results": before it takes in results, which is earlier; empty: never.
    """
    loop = scheduler.partition("def event_loop_overlap")[2].partition("\n    def ")[0]
    waits = max(loop.find("self._apply_war_barrier()"), loop.find("self.schedule_stream.wait_stream"))
    if waits < 0:
        return ""
    return "schedule" if waits < loop.find("self.run_batch(") else "results"


class Walk:
    """One walk."""

    def __init__(self, release: Release, seed: int, threads: Threads | None = None, *, renews: bool = False) -> None:
        """Make a memory so small that pages are evicted and loaded back.

        `threads` are those of its storage, if any; `renews`: whether new weights are loaded.
        """
        self._threads, self._release = threads, release
        self._renews = renews and release.weight_updater is not None
        rng = random.Random(seed)
        page_size = rng.choice([1, 2, 4])
        pages = rng.randint(10, 30)
        host_pages, many = pages * 2 + rng.randint(0, 20), 1
        if threads is not None and not release.reserves:
            # A prefetch takes host pages for what it has found alone. So many requests have to push pages off the host.
            host_pages, many = pages // 2, 4
        self._shape = Shape(
            page_size=page_size,
            pages=pages,
            host_pages=host_pages,
            rows=2 + pages % 5,
            context=pages * page_size + page_size,
            write_policy=rng.choice(["write_through", "write_through", "write_through_selective", "write_back"]),
            prefetch_policy="" if threads is None else threads.rng.choice(["best_effort", "wait_complete"]),
        )
        requests, alphabet = many * rng.randint(10, 40), rng.choice([2, 3, 50])
        self._chunk = page_size * rng.choice([1, 2, 4, 50])
        self._overlap = rng.random() < 0.8
        self._retracts = rng.choice([0.0, 0.05])
        self._rng = rng
        self.memory = make(release, self._shape)
        self.worker = Worker(self.memory)
        # As the scheduler of releases that have these fences.
        for fence in ("load_fence_stream", "write_fence_stream"):
            if hasattr(self.memory.controller, fence):
                setattr(self.memory.controller, fence, self.worker.forward_stream)
        self._barrier = barrier((release.root / "srt" / "managers" / "scheduler.py").read_text(encoding="utf-8"))
        names = random.Random(f"{seed} names")
        self._tenants = Tenants(release, names, Names.drawn(names))
        self._traffic = Traffic(rng, requests, pages * page_size // 2, alphabet, stems=4)
        self._waiting: deque[Turn] = deque()
        self._running: list[Turn] = []
        self._chunked: Turn | None = None
        self._flying: deque[tuple[Batch, Event]] = deque()
        self.idled: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Walk until all requests have finished."""
        again = self._traffic.left // 2
        self._serve()
        if self._renews:
            self._load_weights()
            self._traffic.left = again
            self._serve()

    def _load_weights(self) -> None:
        """The server loads other weights, and flushes its cache as its release does."""

        def flushed(**_: Any) -> bool:
            self.memory.cache.reset()
            self.memory.rows.clear()
            self.memory.allocator.clear()
            return True

        updater = object.__new__(self._release.weight_updater)
        updater.flush_cache = flushed
        flush = updater.flush_cache_after_weight_update
        outcome = (True, "") if "success" in inspect.signature(flush).parameters else ()
        flush(Arguments(flush_cache=True), *outcome)

    def _serve(self) -> None:
        while self._traffic.left or self._waiting or self._running or self._chunked or self._flying:
            self._traffic.loop(MOST_STEPS)
            self.memory.cache.check_hicache_events()
            self.memory.cache.take_events()
            # The walk only needs the ids of adapters, and sends no messages.
            self._tenants.messages()
            least = int(not (self._waiting or self._running))
            for turn in self._traffic.arriving(self._request, least=least):
                self._wait(turn)
            if self._barrier == "schedule":
                Stream.current.wait_event(self.worker.rows_read)
            batch = self._schedule()
            if batch is not None:
                self._launch(batch)
                if self._barrier == "results":
                    Stream.current.wait_event(self.worker.rows_read)
            while len(self._flying) > (1 if self._overlap and batch else 0):
                self._take_in(*self._flying.popleft())
            advance(self._rng, 6)
            if self._threads is not None:
                self._threads.advance()
                self._abort(self._threads.rng)
        self.idle()

    def idle(self) -> None:
        """Complete all transfers."""
        for _ in range(3):
            for stream in Stream.all:
                stream.synchronize()
            if self._threads is not None:
                self._threads.finish()
            self.memory.cache.check_hicache_events()
        self.memory.cache.take_events()
        self.idled()

    def _request(self) -> Turn:
        longest = self._traffic.longest
        output = self._traffic.length(3)
        tokens = self._traffic.prompt(self._rng.randint(2, max(2, longest - output)))
        rid = f"r{self._traffic.number()}"
        named = self._tenants.named(rid)
        return Turn(self.memory.request(rid, tokens, named), tokens, output, named)

    def _wait(self, turn: Turn, *, first: bool = False) -> None:
        """A request enters the queue."""
        if self._threads is not None:
            prefetch(self.memory, turn.req)
        self._waiting.insert(0 if first else len(self._waiting), turn)

    def _abort(self, rng: random.Random) -> None:
        """Abort requests that wait for a prefetch, now and then."""
        for turn in [*self._waiting]:
            if rng.random() < abort_chance(self.memory, turn.req):
                self._waiting.remove(turn)
                abort(self.memory, turn.req)
                self._tenants.answered(turn.req.rid.rstrip("'"))

    def _schedule(self) -> Batch | None:
        prefill = self._prefill() if self._chunked or self._rng.random() < 0.7 else None
        return prefill or self._decode()

    def _prefill(self) -> Batch | None:
        memory, batch = self.memory, Batch([], [], [], [])
        if self._chunked is not None:
            # The previous chunk is published while its launch may still be in flight.
            memory.next_chunk(self._chunked.req, self._chunked.done)
            if not self._add(self._chunked, batch):
                self._retract(self._chunked)
        while self._waiting and self._chunked is None and len(self._running) < self._shape.rows:
            turn = self._waiting[0]
            if self._threads is not None and not prefetched(memory, turn.req):
                break
            memory.match(turn.req)
            need = memory.pages(len(turn.tokens)) * self._shape.page_size + self._shape.page_size * len(self._running)
            if need > memory.room:
                break
            self._waiting.popleft()
            turn.done = memory.admit(turn.req)
            memory.start(turn.req)
            if not self._add(turn, batch):
                self._retract(turn)
                break
        if not batch.turns:
            # A queued load starts nevertheless, with the next batch that runs.
            return None
        batch.hicache_consumer_index = memory.cache.ready_to_load_host_cache()
        return batch

    def _add(self, turn: Turn, batch: Batch) -> bool:
        """Add one chunk of a prompt to the batch. Returns whether there was room."""
        upto = min(len(turn.tokens), turn.done + self._chunk)
        if not self.memory.extend(turn.req, upto):
            return False
        batch.reqs.append(turn.req)
        batch.turns.append(turn)
        batch.prefix_lens.append(turn.done)
        batch.seq_lens.append(upto)
        turn.done = upto
        self._chunked = turn if upto < len(turn.tokens) else None
        if self._chunked is None:
            self._running.append(turn)
        return True

    def _decode(self) -> Batch | None:
        if self._running and self._rng.random() < self._retracts:
            self._retract(self._rng.choice(self._running))
        batch = Batch([], [], [], [])
        for turn in list(self._running):
            if not self._room_for_one(turn):
                continue
            batch.reqs.append(turn.req)
            batch.turns.append(turn)
            batch.prefix_lens.append(turn.done)
            turn.done += 1
            batch.seq_lens.append(turn.done)
        keep = [index for index, turn in enumerate(batch.turns) if not turn.gone]
        for name in ("reqs", "turns", "prefix_lens", "seq_lens"):
            setattr(batch, name, [getattr(batch, name)[index] for index in keep])
        return batch if batch.turns else None

    def _room_for_one(self, turn: Turn) -> bool:
        """Make room for one more token; if needed, retract the newest requests. Returns whether this one remains."""
        while not turn.gone and not self.memory.extend(turn.req, turn.done + 1):
            self._retract(self._running[-1])
        return not turn.gone

    def _retract(self, turn: Turn) -> None:
        """Free its pages, which a launch may still write, and queue it again."""
        turn.gone = True
        if turn in self._running:
            self._running.remove(turn)
        if turn is self._chunked:
            self._chunked = None
        self.memory.let_go(turn.req, publish=False)
        req = self.memory.request(turn.req.rid + "'", [*turn.req.origin_input_ids, *turn.req.output_ids], turn.named)
        self._wait(Turn(req, turn.tokens, turn.output, turn.named), first=True)

    def _launch(self, batch: Batch) -> None:
        schedule, forward = Stream.current, self.worker.forward_stream
        forward.wait_stream(schedule)
        Stream.current = forward
        try:
            self.worker.forward_batch_generation(batch)
            done = Event()
            done.record()
        finally:
            Stream.current = schedule
        self._flying.append((batch, done))

    def _take_in(self, batch: Batch, done: Event) -> None:
        done.synchronize()
        for turn, upto in zip(batch.turns, batch.seq_lens, strict=True):
            if turn.gone or upto < len(turn.tokens):
                continue
            (token,) = self._traffic.tokens(1)
            turn.tokens.append(token)
            self.memory.grow(turn.req, token)
            turn.output -= 1
            if turn.output <= 0 or self._rng.random() < 0.05:
                turn.gone = True
                self._running.remove(turn)
                self.memory.let_go(turn.req, publish=True)
                self._tenants.answered(turn.req.rid.rstrip("'"))
            elif upto > batch.prefix_lens[batch.turns.index(turn)] + 1:
                self.memory.publish(turn.req, upto)
        flush = getattr(self.memory.cache, "flush_pending_backups", None)
        if flush is not None:
            flush()


def run(
    release: Release, seed: int, attached: Attached | None = None, *, storage: bool = False, renews: bool = False
) -> str:
    """One walk, with or without a storage behind the host tier; the same seed gives the same walk.

    If it `renews`, new weights are loaded when all requests have finished, and further requests follow.
    Returns the error of the release that ended it, or an empty string.
    """
    behind = stored(release, seed) if storage else nullcontext()
    with stood_in(release.torch, seed), Patches() as patches, behind as threads:
        for module in release.modules_with_device:
            patches.set(module, "device_module", release.torch.cuda)
        walk = Walk(release, seed, threads, renews=renews)
        if attached is not None:
            attached.watch(walk.memory)
            walk.worker.reads_rows, walk.worker.launched = attached.reads_rows, attached.launch
            walk.idled = attached.idle
        with walk.memory.configured():
            return until_done(walk.run)
