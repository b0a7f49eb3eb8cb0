"""A drive of SGLang's prefill and decode schedulers, and of the router that sends each request to both."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from kvattach.hooks import Hooks
from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.launches import spans
from kvattach.sglang.release import Release
from kvcheck import Finding
from kvlab.device import Event, Stream, advance, stood_in
from kvlab.hosts import Together
from kvlab.sglang.duo import Duo, arguments_of, environment, memory_of, worker_of
from kvlab.sglang.followed import Followed
from kvlab.sglang.network import SERVERS, Network, address
from kvlab.sglang.server import AnyMemory, Worker, configured, request, scheduler
from kvlab.sglang.transport import played
from kvlab.stubs import Arguments
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import STUCK, Traffic
from kvlab.turns import Task, Turns
from kvspec.memory.events import Failed

TICK, LONG_TICK = 0.4, 8.0
"""The most seconds of the network's time between two turns: normally, and while nothing is launched."""
QUIET = 25
"""After so many turns without a launch the drive only waits for time to pass."""
STAYS = 0.7
"""The probability that a server also has the next turn."""
MOST_TURNS = 20_000
DRAIN = 6_000
"""The most turns in which the last requests end: some wait for timeouts of minutes."""
DOWN = 120.0
"""The most seconds until a dead server is started again."""
LOOKS = 5
"""Loops of a server between two inspections of its bookkeeping."""


class HookFailed(Exception):
    """A hook has failed, which ends the drive."""


class Server:
    """One of the two servers. It runs with its own hooks and stream, as in a process."""

    def __init__(
        self, name: str, pair: "Pair", attached: Attached | None, memory: AnyMemory, worker: Worker, server: Arguments
    ) -> None:
        """Make the scheduler, which runs from the server's first turn on."""
        self.name, self.attached = name, attached
        self.stream = Stream.current
        self._pair = pair
        self.inbox: list[tuple[float, Any]] = []
        """Messages of the router and of clients, with their arrival times."""
        self.scheduler = scheduler(pair.release, memory, worker, server, self)
        self.still = 0

    @property
    def hooks(self) -> Hooks | None:
        """The hooks of this server."""
        return None if self.attached is None else self.attached.hooks

    def loop(self) -> None:
        """The scheduler's own loop."""
        made = self.scheduler
        kind = "overlap" if made.enable_overlap else "normal"
        getattr(made, f"event_loop_{kind}_disagg_{self.name}")()

    def receive(self, **_: Any) -> list[Any]:
        """The messages that have arrived, after turns of other threads."""
        self._pair.turns.wait()
        now = self._pair.network.now
        arrived = [one for one in self.inbox if one[0] <= now]
        self.inbox = [one for one in self.inbox if one[0] > now]
        if self.attached is not None:
            self.attached.looked()
        return [message for _, message in arrived]

    def answered(self, name: str, tokens: Sequence[int], reason: Reason, most: int | None) -> None:
        """A request was answered."""
        self._pair.answered(self.name, name, tokens, reason, most)

    @property
    def idle(self) -> bool:
        """Whether the server has nothing to do."""
        return not self.inbox and bool(self.scheduler.is_fully_idle())


class Pair:
    """The two servers, their network, and the router."""

    def __init__(
        self, release: Release, duo: Duo, seed: int, together: Together | None, report: Callable[[Finding], None]
    ) -> None:
        """The servers are made by `made`."""
        self.release, self.duo = release, duo
        self.rng = random.Random(f"{seed} pair")
        self.turns = Turns()
        self.network = Network(duo.faults, self.turns, seed)
        self.tokens = Tokens(seed, report, ends=duo.ends)
        self._together = together
        self.servers: dict[str, Server] = {}
        self._given = {server: arguments_of(duo, server) for server in SERVERS}
        self._configured = Arguments()
        """The configuration of the current server."""
        smallest = min(duo.prefill.pages, duo.decode.pages) * duo.page_size
        self.traffic = Traffic(self.rng, duo.requests, smallest // 2, duo.alphabet, running=duo.decode.running)
        self.traffic.texts = self.tokens.texts
        self._dice = random.Random(f"{seed} deaths")
        self._deaths = {server: self._dice.randrange(1, duo.requests) for server in duo.restarts}
        """Server -> the number of requests after which it dies."""
        self._births: dict[str, float] = {}
        """Dead server -> the time at which it is started again."""
        self._arrived = 0
        self._transfers: dict[str, Followed] = {}
        self._ended_transfers: dict[int, list[str]] = {}
        """Room -> messages that its transfers have ended."""
        self._here: Server | None = None
        self._calm = False
        self._turned = self._drained = self._still = 0

    @contextmanager
    def made(self) -> Iterator["Pair"]:
        """Both servers, while they are driven."""
        release = self.release
        with ExitStack() as stack:
            stack.enter_context(configured(release, self._configured))
            stack.enter_context(played(release.pair, self.network))
            stack.enter_context(patch.dict("os.environ", environment(self.duo)))
            stack.callback(self._leave)
            stack.callback(self.turns.close)
            for name in SERVERS:
                self._start(name)
            for server in self.servers.values():
                self.turns.add(Task(server.name, "scheduler", server.loop))
            self.network.over = self._over
            yield self

    def _start(self, name: str) -> None:
        """Make a server; its threads begin with their first turns."""
        self._leave()
        self._at_work(name, Stream())
        release, duo = self.release, self.duo
        memory = memory_of(release, duo, name)
        half = duo.half(name)
        worker = worker_of(release, duo, name, memory, self.rng, self.tokens)
        worker.launched = lambda *_: self.launched()
        attached = None if self._together is None else self._follow(name, worker, self._together)
        made = Server(name, self, attached, memory, worker, self._given[name])
        made.scheduler.model_config.get_total_num_kv_heads = lambda: 1
        made.scheduler.enable_decode_hicache = name == "decode" and half.host_pages > 0
        made.scheduler.polling_count, made.scheduler.polling_interval = 0, half.polls
        made.scheduler.init_disaggregation()
        self.servers[name] = made
        if attached is not None:
            attached.watch(memory, made.scheduler.req_to_metadata_buffer_idx_allocator.size)
            attached.hooks.detach()

    def _follow(self, name: str, worker: Worker, together: Together) -> Attached:
        """Hooks for one server, and for its launches."""
        life = self.network.life(name)
        attached = Attached(self.release, together.of(life), Stream, Event, LOOKS)
        self._transfers[name] = Followed(attached, life, self._ended_transfers)
        if name == "decode":
            self._transfers[name].knows(self.release)

        def reads_rows(batch: Any) -> None:
            attached.reads_rows(batch.reqs, spans(batch)[1])

        def launched(batch: Any, _: list[int] | None) -> None:
            self.launched()
            attached.launch(batch.reqs, *spans(batch))

        worker.reads_rows, worker.launched = reads_rows, launched
        return attached

    def launched(self) -> None:
        """A launch was queued."""
        self._still = 0

    def _over(self, number: int, written: bool) -> None:
        if self._together is not None:
            self._transfers["prefill"].over(f"write {number}", written=written)

    # Servers that die

    def _restart(self) -> None:
        """Let servers die at any moment, each once, and start dead servers again."""
        for name in SERVERS:
            if self._deaths.get(name, self._arrived + 1) <= self._arrived:
                del self._deaths[name]
                self._dies(name)
            elif self._births.get(name, self.network.now + 1) <= self.network.now:
                del self._births[name]
                self._lose(name)
                coming = self.servers[name].inbox
                self.network.starts(name)
                self._start(name)
                self.servers[name].inbox = coming
                self.turns.add(Task(name, "scheduler", self.servers[name].loop))

    def _dies(self, name: str) -> None:
        self.turns.end(name)
        self.network.dies(name)
        self._births[name] = self.network.now + self._dice.random() * DOWN
        if name in self._transfers:
            self._transfers[name].dies()
        if name == "decode":  # their process is dead
            self.release.pair.common.CommonKVReceiver.close_all_sockets()
        self._lose(name)

    def _lose(self, name: str) -> None:
        """A dead server loses the messages that have arrived. If it is decode, its clients lose their requests."""
        server, now = self.servers[name], self.network.now
        server.inbox = [one for one in server.inbox if one[0] > now]
        if name == "decode":
            aborts = self.release.messages.AbortReq
            coming = {message.rid for _, message in server.inbox if not isinstance(message, aborts)}
            for lost in set(self.traffic.live) - coming:
                self.traffic.finished(lost)

    # The router and the clients

    def answered(self, server: str, name: str, tokens: Sequence[int], reason: Reason, most: int | None) -> None:
        """A request got an answer from a server; the client listens only to decode."""
        if server == "decode":
            self.tokens.answer(name, tokens, "stream_output", reason, most=most)
            if reason:
                self.traffic.finished(name)

    def _arrive(self) -> None:
        rng, duo = self.rng, self.duo
        length = self.traffic.length(rng.choice([1, 2, 4]))
        output = rng.randint(1, max(1, self.traffic.longest // 2))
        number = self.traffic.number()
        rid = f"r{number}."
        tokens = self.traffic.prompt(length)
        self._arrived += 1
        ends = rng.random() >= 0.1
        self.tokens.arrive(rid, tokens, output, ends=ends)
        self.traffic.live.append(rid)
        for server in self.servers.values():
            made = request(self.release, rid, list(tokens), output=output, ignore_eos=not ends, priority=None)
            made.bootstrap_host, made.bootstrap_port, made.bootstrap_room = address("prefill"), 1, number
            when = self.network.now + rng.random() * 2.0
            if duo.late and rng.random() < 0.1 and not self._calm:
                when += rng.choice([20.0, 100.0, 400.0])
            server.inbox.append((when, made))

    def _talk(self) -> None:
        traffic, rng, duo = self.traffic, self.rng, self.duo
        if not self._calm and traffic.calm:
            self._calm = True
            self.network.calm_down()
            for server in self.servers.values():
                server.inbox = [(min(when, self.network.now), message) for when, message in server.inbox]
        if traffic.left and len(traffic.live) < 2 * duo.decode.running + 4 and rng.random() < duo.hurry:
            traffic.left -= 1
            self._arrive()
        if traffic.live and not traffic.calm and rng.random() < duo.aborts / 10:
            name = rng.choice(traffic.live)
            for where in rng.choice([[*self.servers], ["prefill"], ["decode"]]):
                message = self.release.messages.AbortReq(rid=name)
                self.servers[where].inbox.append((self.network.now + rng.random() * 3.0, message))

    def run(self) -> None:
        """Run to the end.

        Raises:
            RuntimeError: requests never end.
            HookFailed: a hook has failed.
        """
        while not self._ended():
            self._turned += 1
            self._drained += self._calm
            if self._turned > MOST_TURNS or self._drained > DRAIN:
                raise RuntimeError(f"{STUCK}: {self._standing()}")
            self._still += 1
            self.network.pass_time(self.rng.random() * self._tick())
            self._talk()
            self._restart()
            advance(self.rng, self.duo.pace)
            ready = self.turns.ready()
            if not ready:
                continue
            if self._here is not None and self.rng.random() < STAYS:
                ready = [task for task in ready if task.server == self._here.name] or ready
            task = self.rng.choice(ready)
            self._enter(self.servers[task.server])
            self.turns.turn(task)
            if self._here is not None and self._here.hooks is not None and self._here.hooks.problem is not None:
                raise HookFailed(self._here.hooks.problem)
        for server in self.servers.values():
            self._enter(server)
            self._idles(server)

    def _idles(self, server: Server | None) -> None:
        if server is not None and server.attached is not None:
            server.attached.looked()
            server.attached.idle()

    def gave_up(self, error: Exception) -> bool:
        """Report the engine's error that ended the run. Returns whether there are hooks to report it."""
        hooks = None if self._here is None else self._here.hooks
        if hooks is not None:
            said = f"{type(error).__name__}: {error}"
            if "leak detected" in said:  # it checks for leaks when it is idle
                self._idles(self._here)
            hooks.emit(Failed("stuck" if STUCK in said else "assertion", said))
        return hooks is not None

    def _tick(self) -> float:
        """The most seconds that may pass now: more while nothing is launched and no thread is ready."""
        if self._still < QUIET:
            return TICK
        awaited = [one[0] for server in self.servers.values() for one in server.inbox]
        awaited += self._births.values()
        return max(TICK, min([LONG_TICK, self.network.quiet(), *(moment - self.network.now for moment in awaited)]))

    def _standing(self) -> str:
        """The remaining requests, and the queues that they are in."""
        prefill, decode = (self.servers[name].scheduler for name in SERVERS)
        places = {
            "prefill waits": prefill.waiting_queue,
            "prefill bootstraps": prefill.disagg_prefill_bootstrap_queue.queue,
            "prefill sends": prefill.disagg_prefill_inflight_queue,
            "decode reserves": [one.req for one in decode.disagg_decode_prealloc_queue.queue],
            "decode receives": [one.req for one in decode.disagg_decode_transfer_queue.queue],
            "decode has retracted": decode.disagg_decode_prealloc_queue.retracted_queue,
            "decode waits": decode.waiting_queue,
            "decode runs": decode.running_batch.reqs,
        }
        said = [f"{where} {', '.join(req.rid for req in reqs)}" for where, reqs in places.items() if reqs]
        return "; ".join([f"{len(self.traffic.live)} are not answered", *said])

    def _ended(self) -> bool:
        if self.traffic.left or self.traffic.live or self._births:
            return False
        for server in self.servers.values():
            self._enter(server)
            if not server.idle:
                return False
        return not self.network.unsettled

    def _enter(self, server: Server) -> None:
        """Make this the current server, and attach its hooks."""
        if self._here is server:
            return
        self._leave()
        self._here = server
        self._at_work(server.name, server.stream)
        if server.hooks is not None:
            server.hooks.attach()

    def _leave(self) -> None:
        """Detach the hooks of the current server; then no server is current."""
        if self._here is None:
            return
        self._here.stream = Stream.current
        if self._here.hooks is not None:
            self._here.hooks.detach()
        self._here = None

    def _at_work(self, name: str, stream: Stream) -> None:
        self.network.here, Stream.current = name, stream
        vars(self._configured).clear()
        vars(self._configured).update(vars(self._given[name]))


def run(
    release: Release,
    seed: int,
    together: Together | None = None,
    duo: Duo | None = None,
    report: Callable[[Finding], None] = ignored,
) -> None:
    """Drive two servers until all requests have ended; the same seed gives the same run.

    An error of the engine ends the run. It becomes an event of the current server.

    Raises:
        HookFailed: a hook has failed.
    """
    duo = duo or Duo.drawn(random.Random(f"{seed} duo"))
    with stood_in(release.torch, seed), Patches() as patches:
        for module in release.modules_with_device:
            patches.set(module, "device_module", release.torch.cuda)
        with Pair(release, duo, seed, together, report).made() as pair:
            try:
                pair.run()
            except Exception as error:
                if isinstance(error, HookFailed) or not pair.gave_up(error):
                    raise
