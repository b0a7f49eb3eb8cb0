"""Random traffic that overlaps: streams run ahead, transfers complete late or fail, requests leave at any moment.

Each stream completes its operations in order, and the host sees completions at any later moment. Each step is drawn.
The weights of the steps, and the families of prompts, are drawn once for each walk, so that walks differ in kind.
"""

from random import Random

from kvref.tiers.engine import TieredEngine
from kvref.tiers.state import Emit, Sizes
from kvspec.memory.events import Failed, Idle

STEPS = (
    "submit",
    "admit",
    "forward",
    "see_pass",
    "see_transfer",
    "leave",
    "retract",
    "evict",
    "evict_host",
    "store",
)
"""The methods that a step is drawn from."""


class Driver:
    """One walk of an engine, which is made from its sizes and from `emit`."""

    def __init__(self, seed: int, emit: Emit, engine: type[TieredEngine] = TieredEngine) -> None:
        """Draw the kind of the walk."""
        self.random = random = Random(seed)
        self.sizes = Sizes(
            page_size=random.choice((1, 2, 2, 4)),
            device_pages=random.randint(5, 11),
            host_pages=random.randint(3, 12),
            overlap=random.randint(1, 3),
            chunk=random.randint(2, 7),
            write_through=random.random() < 0.7,
            storage=random.random() < 0.8,
        )
        self.emit = emit
        self.engine = engine(self.sizes, emit)
        self.families = [[random.randrange(3) for _ in range(12)] for _ in range(random.randint(1, 2))]
        self.weights = [random.choice((1, 2, 6)) for _ in STEPS]
        self.fails = random.choice((0.0, 0.4))
        self.made = 0

    def walk(self, steps: int) -> None:
        """Take so many steps, end all requests, and emit `Idle`.

        If the engine fails, the walk ends with `Failed`.
        """
        try:
            for _ in range(steps):
                getattr(self, self.random.choices(STEPS, self.weights)[0])()
                self.engine.count()
            self.end()
        except Exception as error:
            self.emit(Failed("assertion", f"{type(error).__name__}: {error}"))

    def end(self) -> None:
        """End all requests, complete all operations in flight, and evict the cache."""
        for name in list(self.engine.requests):
            self.engine.leave(name)
        while self.engine.passes or self.engine.transfers.in_flight:
            self.see_pass()
            self.see_transfer()
        while self.engine.evict() or self.engine.transfers.in_flight:
            self.see_transfer()
        while self.engine.evict_host():
            self.engine.count()
        self.engine.count()
        self.engine.check_evicted()
        self.emit(Idle())

    def prompt(self) -> list[int]:
        """A prompt that shares a prefix with others."""
        family = self.random.choice(self.families)
        own = [self.random.randrange(3) for _ in range(self.random.randint(0, 2))]
        return family[: self.random.randint(1, 10)] + own

    def submit(self) -> None:
        """Submit a request, or prefetch from the storage before one."""
        tokens = self.prompt()
        if self.random.random() < 0.5 and self.engine.prefetch(tokens):
            return
        if len(self.engine.requests) < 5:
            self.made += 1
            self.engine.submit(f"r{self.made}", tokens, len(tokens) + self.random.randint(1, 5))

    def admit(self) -> None:
        """Admit a waiting request, if there is room."""
        waiting = [name for name, request in self.engine.requests.items() if request.run is None]
        if waiting:
            self.engine.admit(self.random.choice(waiting))

    def forward(self) -> None:
        """Queue a pass over some of the running requests."""
        running = [name for name, request in self.engine.requests.items() if request.run is not None]
        self.engine.queue_pass([name for name in running if self.random.random() < 0.8])

    def see_pass(self) -> None:
        """Let the host see the oldest pass complete, after the loads that it waited for."""
        if self.engine.passes:
            id = next(iter(self.engine.passes))
            for load in [load for load in self.engine.transfers.in_flight if load < id]:
                if load in self.engine.transfers.in_flight:
                    self.see(load)
            self.engine.see_pass(id)

    def see_transfer(self) -> None:
        """Let the host see the oldest transfer complete."""
        if self.engine.transfers.in_flight:
            self.see(next(iter(self.engine.transfers.in_flight)))

    def see(self, id: int) -> None:
        """Let the host see a transfer complete; a load or a prefetch fails sometimes."""
        may_fail = self.engine.transfers.in_flight[id].kind in ("load", "prefetch")
        self.engine.see_transfer(id, failed=may_fail and self.random.random() < self.fails)

    def leave(self) -> None:
        """Abort a request."""
        if self.engine.requests:
            self.engine.leave(self.random.choice(list(self.engine.requests)))

    def retract(self) -> None:
        """Retract a request; it waits again."""
        if self.engine.requests and self.random.random() < 0.3:
            self.engine.retract(self.random.choice(list(self.engine.requests)))

    def evict(self) -> None:
        """Evict some device pages."""
        for _ in range(self.random.randint(1, 4)):
            self.engine.evict()

    def evict_host(self) -> None:
        """Evict some host pages."""
        for _ in range(self.random.randint(0, 2)):
            self.engine.evict_host()

    def store(self) -> None:
        """Copy a host page to the storage."""
        self.engine.store()
