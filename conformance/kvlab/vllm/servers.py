"""Drives a prefill and a decode server, each with its scheduler and worker, over a simulated network."""

import importlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from kvattach.hooks import Hooks
from kvattach.vllm.nixl import PACKAGE, over
from kvcheck import Finding
from kvlab.device import Stream, stood_in
from kvlab.hosts import One, Together
from kvlab.tokens import ignored
from kvlab.traffic import last_ones
from kvlab.vllm import counts
from kvlab.vllm.driver import DRAIN, Drive, StuckError
from kvlab.vllm.driver import driven as driven_alone
from kvlab.vllm.engine import configured, make_request
from kvlab.vllm.network import KINDS, SERVERS, Network, named
from kvlab.vllm.nixl import Worker
from kvlab.vllm.workload import Workload
from kvspec.memory.events import Begin, End, MemoryEvent, OpId, Receive, Use

TICK = 1.5
"""The most seconds of the network's time between two turns of servers."""
DOWN = 60.0
"""The most seconds until a dead server is started again."""
LATER = {named(server, 2): server for server in SERVERS}
"""The name of each server in its second life -> the server."""


class Reaching:
    """The trace of a server. A peer keeps its name after a restart; here its memory is named after the life reached."""

    def __init__(self, trace: One, network: Network) -> None:
        self._trace, self._network = trace, network
        self._reached: dict[OpId, str] = {}
        self.header = trace.header

    def emit(self, *events: MemoryEvent) -> None:
        """Emit events."""
        for event in events:
            if isinstance(event, Begin) and event.at == "transfer":
                self._reached[event.id] = self._network.reached
                _rename([use for pair in event.copies for use in pair], self._network.reached)
            elif isinstance(event, End) and event.id in self._reached:
                _rename(event.unwritten, self._reached.pop(event.id))
        self._trace.emit(*events)


def _rename(uses: list[Use], life: str) -> None:
    """Rename a server's memory in these uses to that of one of its lives."""
    server = life.partition(".")[0]
    for use in uses:
        use.pool = use.pool and use.pool.replace(f"{server}/", f"{life}/")
        use.holder = use.holder and use.holder.replace(f"{server}/", f"{life}/")


@dataclass
class Server(Drive):
    """One of the two servers. It runs only while `at_work`, with its own hooks and stream, as in a process."""

    network: Network = field(kw_only=True)
    trace: Any = field(kw_only=True)
    prompts: dict[str, list[int]] = field(default_factory=dict)
    """Request -> its prompt."""
    ended: list[tuple[str, Any]] = field(default_factory=list)
    """Requests that have ended, with the transfer parameters for the other server."""

    def __post_init__(self) -> None:
        from kvattach.vllm.hooks import Attached

        self.hooks = Attached(self.trace).hooks
        watch_leases(self.hooks)
        self.stream = Stream()
        try:
            self.network.here, Stream.current = self.work.server, self.stream
            super().__post_init__()
            self._worker = Worker(self.work, *configured(self.work), self.scheduler)
        finally:
            self.hooks.detach()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Make this the current server, with its hooks attached."""
        self.network.here, Stream.current = self.work.server, self.stream
        self.hooks.attach()
        try:
            yield
        finally:
            self.hooks.detach()

    def add(self, name: str, prompt: list[int], params: dict[str, Any] | None) -> None:
        """Add a request; `params` are its transfer parameters."""
        self.prompts[name] = prompt
        tokens = 1 if self.work.server == "prefill" else self._dice.randrange(1, 9)
        self._tokens.arrive(name, prompt, tokens)
        request = make_request(self.work, name, list(prompt), tokens)
        request.kv_transfer_params = params
        self._engine(self.scheduler.add_request, request)

    def turn(self) -> None:
        """Run one turn of its engine, which may have nothing to do."""
        self._worker.get_on()
        if self._dice.random() < self.work.abort / 2:
            self._abort()
        self._step()

    def _abort(self) -> None:
        # Decode waits forever for the pages of an aborted request of prefill.
        if not (self.work.steady and self.work.connector == "push" and self.work.server == "prefill"):
            super()._abort()

    def _standing(self, left: dict[str, Any]) -> str:
        return "each finished" if all(one.is_finished() for one in left.values()) else super()._standing(left)

    def dies(self) -> None:
        """The server's process dies."""
        with self.at_work():
            self._worker.dies()

    @property
    def done(self) -> bool:
        """Whether the server has nothing to do."""
        return not self._in_flight and not self.scheduler.has_requests()

    def _answered(self, outputs: dict[int, Any]) -> None:
        super()._answered(outputs)
        for answer in outputs.values():
            self.ended += [(one.request_id, one.kv_transfer_params) for one in answer.outputs if one.finish_reason]


class Pair:
    """A prefill and a decode server, and the router that sends a request first to prefill, then to decode."""

    def __init__(self, work: Workload, together: Together, report: Callable[[Finding], None] = ignored) -> None:
        self.work, self.network = work, Network(work)
        self._together, self._report = together, report
        self._dice = random.Random(work.seed + 5)
        self._deaths = {server: self._dice.randrange(1, work.requests) for server in work.restarts}
        """Server -> the number of requests after which it dies."""
        self._births: dict[str, float] = {}
        """Dead server -> the time at which it is started again."""
        self._happened = Counter[str]()
        """The numbers of launches and preemptions of dead servers, and of deaths."""
        self._arrived = 0
        self._both: set[str] = set()
        """Requests that the router sent to both at once."""
        self._routed: list[tuple[float, str, list[int], Any]] = []
        """Requests in flight to decode, with their arrival times."""
        self.servers = [self._started(server) for server in SERVERS]

    def _started(self, server: str) -> Server:
        trace = Reaching(self._together.of(self.network.life(server)), self.network)
        return Server(self.work.of(server), self._report, network=self.network, trace=trace)

    def run(self, steps: int = 5000) -> Counter[str]:
        """Run to the end.

        Raises:
            StuckError: requests are left after `steps` turns, or `DRAIN` turns after the last fault.
            EngineGaveUp: an engine raised an error.
            RuntimeError: a hook has failed.
        """
        done, calm = 0, False
        while done < steps:
            left = sum(len(server.scheduler.requests) for server in self.servers)
            if self._arrived >= self.work.requests and left <= last_ones(self.work.running) and not calm:
                calm, steps = True, min(steps, done + DRAIN)
                self._calm_down()
            self._turn()
            done += 1
            if calm and not (self._routed or self._births) and all(server.done for server in self.servers):
                return sum((server.happened for server in self.servers), self._happened + Counter(drained=1))
        standing = [
            f"{one.work.server}: {one._standing(one.scheduler.requests)}" for one in self.servers if not one.done
        ]
        raise StuckError(f"requests are left after {done} turns: {'; '.join(standing)}")

    def _calm_down(self) -> None:
        """From now on no request is aborted, and the network does not fail."""
        self.work = replace(self.work, abort=0.0, failing=0.0, late=0.0, lost=0.0, doubled=0.0)
        self.network.work = self.work
        for server in self.servers:
            server.work = replace(server.work, abort=0.0)

    def _turn(self) -> None:
        self.network.now += self._dice.random() * TICK
        self._restart()
        prefill, decode = self.servers
        server = self._dice.choice(self.servers)
        if server.work.server in self._births:
            return
        with server.at_work():
            if server is prefill and self._arrived < self.work.requests and self._dice.random() < 0.5:
                self._arrive(prefill)
            if server is decode:
                for routed in [one for one in self._routed if one[0] <= self.network.now]:
                    self._routed.remove(routed)
                    decode.add(*routed[1:])
            server.turn()
        if server.hooks.problem is not None:
            raise RuntimeError(server.hooks.problem)
        for name, params in prefill.ended:
            if name not in self._both:
                # Without parameters decode computes the whole prompt.
                self._route(name, msgspec.json.decode(msgspec.json.encode(params)))
        prefill.ended.clear()

    def _restart(self) -> None:
        """Let servers die, or start them again. Requests of a dead server are lost, and so are those that reach it."""
        for place, server in enumerate(SERVERS):
            if self._deaths.get(server, self._arrived + 1) <= self._arrived:
                del self._deaths[server]
                self.servers[place].dies()
                self.network.dies(server)
                self._births[server] = self.network.now + self._dice.random() * DOWN
                self._happened += self.servers[place].happened + Counter(deaths=1)
            elif self._births.get(server, self.network.now + 1) <= self.network.now:
                del self._births[server]
                self.servers[place] = self._started(server)
        if "decode" in self._births:
            self._routed = [one for one in self._routed if one[0] > self.network.now]

    def _route(self, name: str, params: dict[str, Any] | None) -> None:
        """Send a request to decode, under its name there: each server appends its own suffix."""
        arrives, prompt = self.network.now + self.network.takes(), self.servers[0].prompts[name]
        self._routed.append((arrives, name.replace("-0", "-1"), prompt, params))

    def _arrive(self, prefill: Server) -> None:
        self._arrived += 1
        document = list(self._dice.choice(self.work.documents or ((1, 2, 3, 4, 5, 6, 7, 8),)))
        prompt = document[: self._dice.randrange(1, len(document) + 1)]
        prompt += [self._dice.randrange(1, 9) for _ in range(self._dice.randrange(8))]
        prompt = prompt[: self.work.longest // 2]
        while not self.work.whole and self.work.leaves_out(len(prompt)):
            prompt.append(1)
        name = f"r{self._arrived}-{self._arrived:08x}"
        prefill.add(name, prompt, {"do_remote_decode": True, "do_remote_prefill": False})
        # Both may be in a deadlock then: each keeps pages for requests that do not fit the other.
        if self.work.connector == "push" and not self.work.steady and self._dice.random() < 0.5:
            self._both.add(name)
            place = {"remote_engine_id": "prefill", "remote_host": "localhost", "remote_port": 0, "tp_size": 1}
            self._route(name, {"do_remote_prefill": True, "remote_request_id": name, **place})


def watch_leases(hooks: Hooks) -> None:
    """Emit the order by the drive's common clock: a transfer that ended before a lease is ordered before its end."""
    worker = importlib.import_module(f"{PACKAGE}.base_worker").NixlBaseConnectorWorker

    def ended(before: set[str], _: None, worker: Any, done_sending: set[str]) -> None:
        for request in done_sending - before:
            hooks.emit(Receive(over(worker.engine_id, request)))

    hooks.hook(worker, "_reap_expired_send_leases", before=lambda _, done: set(done), after=ended)


def driven(work: Workload, hooks: Hooks, report: Callable[[Finding], None] = ignored) -> Counter[str]:
    """Drive one workload.

    Two servers have their own hooks instead of `hooks`, and both use the trace of `hooks`; so does the older model
    runner. `report` takes findings on tokens.

    Raises:
        StuckError, EngineGaveUp, RuntimeError: as `Pair.run`.
    """
    import torch

    if work.counts:
        return counts.driven(work, hooks, report)
    if work.connector not in KINDS:
        return driven_alone(work, report)
    hooks.detach()
    try:
        with stood_in(torch):
            return Pair(work, Together(hooks.trace, SERVERS, LATER), report).run()
    finally:
        hooks.attach()
