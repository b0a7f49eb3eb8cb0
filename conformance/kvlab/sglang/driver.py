"""Runs a release's own scheduler, in either of its loops, on random requests, aborts, pauses and flushes.

The scheduler, its batches and policy, tables, allocators, tree, host pool and transfer controller are the release's.
Stubs replace the parts that need a GPU or another process: a forward pass samples at random, and streams and events are
those of `kvlab.device`, which make progress at random.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.launches import kept_states, spans, verified_states
from kvattach.sglang.release import Release
from kvcheck import Finding
from kvlab.device import advance, stood_in
from kvlab.sglang import memory as memories
from kvlab.sglang.pictures import PLACEHOLDER, SENTINELS, illustrated
from kvlab.sglang.pools import PoolMemory, Pools
from kvlab.sglang.radix_memory import make
from kvlab.sglang.server import AnyMemory, Worker, arguments, configured, request, scheduler
from kvlab.sglang.sessions import Clients
from kvlab.sglang.tenants import Names, Tenants
from kvlab.stubs import Arguments
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import STUCK, PausingTraffic, until_done

MOST_LOOPS = 10_000
STILL = 300
"""The server is stuck after so many loops without a launch, unless it is paused."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one run; lengths in tokens."""

    page_size: int
    pages: int
    host_pages: int
    write_policy: str
    requests: int
    running: int
    chunk: int
    budget: int
    alphabet: int
    prompts: int
    """The number of longest prompts that fill the memory."""
    outputs: int
    """The number of longest outputs that fill the memory."""
    ends: float
    """The probability that a token ends its request."""
    overlap: bool
    mixed: bool
    """Whether prefill launches also decode."""
    policy: str
    priorities: bool
    """Whether a request preempts requests of lower priority."""
    conservativeness: float
    retracts: int
    """Running requests are retracted every so many launches, even if there is room; 0: only without room."""
    aborts: float
    pauses: float
    """The probability of a pause request; running requests stay, or are all retracted."""
    pools: Pools | None = None
    """The pools of a memory without a host tier; `None`: plain pages with a host tier."""
    sessions: int = 0
    """The number of clients with streaming sessions."""
    steps: int = 0
    """Speculative steps: drafts that are computed in sequence for a request's next step; 0: none."""
    patient: bool = False
    """Whether clients wait for answers forever, and keep their sessions open."""
    names: Names = field(default_factory=Names)
    images: float = 0.0
    """The probability that a prompt has images; turns of sessions have none."""
    updates: float = 0.0
    """The probability that the weights are updated during a pause, with or without a flush."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory small enough for evictions and retractions, and an alphabet small enough for shared prefixes."""
        page_size = rng.choice([1, 2, 4])
        pages = rng.randint(10, 30) * (4 if page_size == 1 else 1)
        priorities = rng.random() < 0.2
        return cls(
            page_size=page_size,
            pages=pages,
            host_pages=pages * 2 + rng.randint(0, 20),
            write_policy=rng.choice(["write_through", "write_through", "write_through_selective", "write_back"]),
            requests=rng.randint(8, 20),
            running=rng.randint(2, 8),
            chunk=page_size * rng.choice([1, 2, 4, 50]) if rng.random() < 0.8 else -1,
            budget=rng.choice([16, 64, 256]),
            alphabet=rng.choice([2, 3, 50, 50]),
            prompts=rng.choice([2, 3, 8]),
            outputs=rng.choice([2, 3, 6]),
            ends=rng.choice([0.0, 0.02, 0.1]),
            overlap=rng.random() < 0.8,
            mixed=rng.random() < 0.3,
            policy="fcfs" if priorities else rng.choice(["lpm", "fcfs", "dfs-weight", "lof"]),
            priorities=priorities,
            conservativeness=rng.choice([0.0, 0.0, 0.1, 1.0]),
            retracts=rng.choice([0, 0, 0, 2, 5]),
            aborts=rng.choice([0.0, 0.05, 0.2]),
            pauses=rng.choice([0.0, 0.05, 0.1]),
        )

    def without_host(self, rng: random.Random, release: Release) -> "Shape":
        """The same without a host tier, and with random pools."""
        pools = Pools.drawn(
            rng,
            self.pages,
            self.page_size,
            self.running,
            overlap=self.overlap,
            states=release.state_allocator is not None,
        )
        return replace(self, pools=pools, host_pages=0, write_policy="")

    def with_names(self, rng: random.Random) -> "Shape":
        """The same, at random with adapters and keys of requests, and with updates of weights."""
        return replace(self, names=Names.drawn(rng), updates=rng.choice([0.0, 0.3]))

    def with_images(self, rng: random.Random) -> "Shape":
        """The same, at random with images."""
        return replace(self, images=rng.choice([0.0, 0.8]))

    def with_clients(self, rng: random.Random) -> "Shape":
        """The same, at random with clients in sessions, with drafts, or with both."""
        sessions, steps = rng.choice([0, 0, 1, 3]), rng.choice([0, 0, 1, 3])
        pools = self.pools
        if pools is not None and not pools.take_drafts:
            return replace(self, sessions=sessions)
        pools = pools and pools.with_drafts(steps, self.page_size)
        return replace(self, pools=pools, sessions=sessions, steps=steps, mixed=self.mixed and not steps)


class Talk(PausingTraffic):
    """The scheduler's input: requests, aborts, pauses and the sessions of clients."""

    def __init__(self, release: Release, shape: Shape, rng: random.Random, tokens: Tokens) -> None:
        pages = shape.pages if shape.pools is None else shape.pools.fewest(shape.pages)
        longest = pages * shape.page_size - 2 * shape.page_size
        super().__init__(rng, shape.requests, longest, shape.alphabet, running=shape.running, stems=6)
        self._release, self._shape, self._tokens = release, shape, tokens
        self.texts = tokens.texts
        self._still = self._waited = 0
        self.clients = Clients(release, rng, shape.sessions)
        self._updates = random.Random(f"{tokens.seed} updates")
        self._flushes = random.Random(f"{tokens.seed} flushes")
        self._images = random.Random(f"{tokens.seed} images of requests")
        self.tenants = Tenants(release, random.Random(f"{tokens.seed} tenants"), shape.names)
        self._talks = shape.sessions > 0
        self.is_idle: Callable[[], bool] = lambda: False
        self.idles: Callable[[], None] = lambda: None
        self.looks: Callable[[], None] = lambda: None
        self.announces: Callable[[], object] = lambda: None

    def receive(self, **_: Any) -> list[Any]:
        """The messages since the last call."""
        self.looks()
        self.announces()
        self.loop(MOST_LOOPS)
        self._waited += 1
        self._still = 0 if self.paused else self._still + 1
        if self.live and self._still > STILL:
            raise RuntimeError(STUCK)
        advance(self.rng, 6)
        idle = self.is_idle()
        if self.idle(idle):
            if self._talks:
                self._talks, self._idled = False, 0
                return self.clients.leave()
            self.idles()
            self.end()
        messages = self.tenants.messages() + self._talk() + self._flush(idle=idle) + self.arriving(self._request)
        if self.live and not self.calm and self.rng.random() < self._shape.aborts:
            # The oldest requests are likely to be running.
            among = self.live[: self.rng.choice([2, len(self.live)])]
            messages.append(self._release.messages.AbortReq(rid=self.rng.choice(among)))
        return messages + self._update() + self.pausing(self._release.messages, self._shape.pauses, flushes=0.3)

    def _update(self) -> list[Any]:
        """An update of the weights during a pause. The server may refuse the flush that it requests."""
        if not self.paused or self._updates.random() >= self._shape.updates:
            return []
        flushes = self._updates.random() < 0.7
        return [self._release.messages.UpdateWeightFromDiskReqInput(model_path="", flush_cache=flushes)]

    def _flush(self, *, idle: bool) -> list[Any]:
        """Now and then a flush of the cache, while the server is idle."""
        return [self._release.messages.FlushCacheReqInput()] if idle and self._flushes.random() < 0.3 else []

    def _talk(self) -> list[Any]:
        """The messages of clients with sessions, except their turns. Sessions may hold memory that requests need."""
        if not self._shape.sessions:
            return []
        if self._waited > STILL // 2 and not self._shape.patient:
            return self.clients.leave()
        return self.clients.messages(more=self.left > 0)

    def _request(self) -> Any:
        rng, shape = self.rng, self._shape
        output, prompt = self.length(shape.outputs), self.length(shape.prompts)
        tokens = self.prompt(prompt, None if rng.random() < 0.5 else prompt - 1)
        # The dot ends the name: an abort applies to all requests with its name as a prefix.
        rid = f"r{self.number()}."
        self.live.append(rid)
        priority = rng.randint(0, 3) if shape.priorities else None
        session = self.clients.turn(rid)
        if session is not None:
            tokens = tokens[: 1 + len(tokens) // 3]
        ends = rng.random() >= 0.1
        said = [] if session is None else self.clients.text(session)
        # A continued chat may contain images.
        tokens = padded = [token if token < SENTINELS else PLACEHOLDER for token in tokens]
        images = None
        if session is None and self._images.random() < shape.images:
            tokens, padded, images = illustrated(self._release, tokens, self._images)
        self._tokens.arrive(rid, said + padded, output, ends=ends)
        return request(
            self._release,
            rid,
            tokens,
            output=output,
            ignore_eos=not ends,
            priority=priority,
            session=session,
            images=images,
            **self.tenants.named(rid, session and session.id),
        )

    def answered(self, name: str, tokens: Sequence[int], reason: Reason, most: int | None) -> None:
        """A request got an answer, its last if there is a `reason`."""
        self._tokens.answer(name, tokens, "stream_output", reason, most=most)
        if reason:
            self.tenants.answered(name)
            self.clients.answered(name, self._tokens.text(name) if reason == "done" else None)
            self.finished(name)

    def launched(self) -> None:
        """A forward pass was queued."""
        self._still = self._waited = 0


def run(
    release: Release,
    seed: int,
    attached: Attached | None = None,
    shape: Shape | None = None,
    *,
    host: bool = True,
    report: Callable[[Finding], None] = ignored,
) -> str:
    """Drive one scheduler until all requests have ended, or until it raises; the same seed gives the same run.

    `host` adds a host tier; without it the pools are random. `report` takes findings on tokens. Returns the error of
    the release that ended the run, or an empty string.
    """
    rng = random.Random(seed)
    drawn = Shape.drawn(rng)
    if not host:
        drawn = drawn.without_host(rng, release)
    if release.drives_sessions:
        drawn = drawn.with_clients(random.Random(f"{seed} sessions"))
        drawn = drawn.with_names(random.Random(f"{seed} names"))
        drawn = drawn.with_images(random.Random(f"{seed} images"))
    shape = shape or drawn
    tokens = Tokens(seed, report, ends=shape.ends)
    with standing_in(release, shape, seed), _made(release, shape, rng, tokens, attached) as made:
        loop = made.event_loop_overlap if made.enable_overlap else made.event_loop_normal
        return until_done(loop, (Exception,))


@contextmanager
def standing_in(release: Release, shape: Shape, seed: int) -> Iterator[None]:
    """Replace CUDA by the simulated device, and set the environment of a server of this shape."""
    with stood_in(release.torch, seed), Patches() as patches:
        for module in release.modules_with_device:
            patches.set(module, "device_module", release.torch.cuda)
        if release.relay is not None:
            # As on CUDA, a separate stream copies lengths to the host.
            patches.set(release.relay, "_is_cuda", True)
        # The release's switch for its own tests.
        patches.set(release.scheduler, "TEST_RETRACT", bool(shape.retracts))
        patches.set(release.scheduler, "TEST_RETRACT_INTERVAL", shape.retracts or 1)
        with patch.dict(os.environ, {} if shape.pools is None else shape.pools.environment):
            yield


def served(shape: Shape) -> Arguments:
    """The arguments of a server of this shape."""
    return arguments(
        chunked_prefill_size=shape.chunk,
        disable_overlap_schedule=not shape.overlap,
        disable_radix_cache=shape.pools is not None and not shape.pools.cached,
        enable_hierarchical_cache=shape.pools is None,
        enable_lora=shape.names.adapters > 0,
        enable_mixed_chunk=shape.mixed,
        enable_priority_scheduling=shape.priorities,
        hicache_write_policy=shape.write_policy,
        mamba=Arguments() if shape.pools is None else shape.pools.arguments,
        max_prefill_tokens=shape.budget,
        max_running_requests=shape.running,
        page_size=shape.page_size,
        pp_max_micro_batch_size=shape.running,
        priority_scheduling_preemption_threshold=1,
        schedule_conservativeness=shape.conservativeness,
        schedule_policy=shape.policy,
        speculative_algorithm="STANDALONE" if shape.steps else None,
        speculative_eagle_topk=1 if shape.steps else None,
        speculative_num_draft_tokens=shape.steps + 1 if shape.steps else None,
        speculative_num_steps=shape.steps or None,
    )


@contextmanager
def _made(
    release: Release, shape: Shape, rng: random.Random, tokens: Tokens, attached: Attached | None
) -> Iterator[Any]:
    """The scheduler, with its memory and worker."""
    server = served(shape)
    traffic = Talk(release, shape, rng, tokens)
    drafts = shape.steps + 1 if shape.steps else 0

    def reads_rows(batch: Any) -> None:
        if attached is None:
            return
        if drafts and not batch.forward_mode.is_extend():
            attached.reads_drafts(batch.reqs, drafts, batch.seq_lens)
        else:
            attached.reads_rows(batch.reqs, spans(batch)[1])

    def launched(batch: Any, verified: list[int] | None) -> Callable[[], None] | None:
        traffic.launched()
        if attached is None:
            return None
        if verified is not None:
            kept = verified_states(release.verifying, batch, verified, drafts)
            accepted = release.torch.tensor(verified)
            return attached.verify(batch.reqs, drafts, batch.seq_lens, accepted, kept)
        starts, stops = spans(batch)
        return attached.launch(batch.reqs, starts, stops, kept_states(batch, stops))

    with configured(release, server), traffic.clients.timed():
        memory = memory_of(release, shape)
        worker = Worker(release, memory, rng, tokens, shape.overlap, drafts)
        worker.reads_rows, worker.launched = reads_rows, launched
        fence(memory, worker)
        made = scheduler(release, memory, worker, server, traffic)
        traffic.is_idle = made.is_fully_idle
        if shape.sessions:
            traffic.clients.taken = partial(_taken, made.session_controller.sessions)
        if attached is not None:
            attached.watch(memory)
            traffic.idles, traffic.announces = attached.idle, memory.cache.take_events
            if memory.host is None:
                # There are no transfers to check.
                traffic.looks = attached.looked
        yield made


def _taken(sessions: Mapping[str, Any], name: str, rid: str) -> list[int] | None:
    """The server's text of a session if this is its last turn, otherwise `None`."""
    node = sessions[name].req_nodes.get(rid) if name in sessions else None
    return None if node is None else [*node.req.origin_input_ids, *node.req.output_ids]


def fence(memory: AnyMemory, worker: Worker) -> None:
    """As the scheduler of releases that have these fences: let transfers and launches wait for each other."""
    for name in ("load_fence_stream", "write_fence_stream"):
        if hasattr(memory.controller, name):
            setattr(memory.controller, name, worker.forward_stream)


def memory_of(release: Release, shape: Shape, ranks: int = 1, policy: str = "") -> AnyMemory:
    """The memory of a server of this shape, or of one of its `ranks`; with a policy it has a storage, too."""
    sizes = memories.Shape(
        page_size=shape.page_size,
        pages=shape.pages,
        rows=shape.running + 1,
        context=shape.pages * shape.page_size + shape.page_size,
        host_pages=shape.host_pages,
        write_policy=shape.write_policy,
        prefetch_policy=policy,
        ranks=ranks,
    )
    return make(release, sizes) if shape.pools is None else PoolMemory(release, shape.pools, sizes)
