"""Random traffic that overlaps: streams run ahead, transfers complete late or fail, requests leave at any moment.

Each stream completes its operations in order, and the host looks at them when it likes. What it does next is drawn; how
likely each step is, and how prompts branch, is drawn once for each walk, so that walks differ in kind.
"""

from random import Random

from kvref.tiers.engine import TieredEngine
from kvref.tiers.state import Sizes, Tell
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
"""What happens next is one of these methods."""


class Driver:
    """One walk. `engine` is made from its sizes and from where it tells its events."""

    def __init__(self, seed: int, tell: Tell, engine: type[TieredEngine] = TieredEngine) -> None:
        """Draw what kind of walk it is."""
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
        self.tell = tell
        self.engine = engine(self.sizes, tell)
        self.families = [[random.randrange(3) for _ in range(12)] for _ in range(random.randint(1, 2))]
        self.weights = [random.choice((1, 2, 6)) for _ in STEPS]
        self.fails = random.choice((0.0, 0.4))
        self.made = 0

    def walk(self, steps: int) -> None:
        """Take so many steps, then let all end, and tell that the engine is idle.

        An engine that fails tells so, and the walk is over.
        """
        try:
            for _ in range(steps):
                getattr(self, self.random.choices(STEPS, self.weights)[0])()
                self.engine.count()
            self.end()
        except Exception as error:
            self.tell(Failed("assertion", f"{type(error).__name__}: {error}"))

    def end(self) -> None:
        """Requests leave, what is in flight completes, and what is cached is evicted."""
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
        self.tell(Idle())

    def prompt(self) -> list[int]:
        """A prompt that shares a beginning with others."""
        family = self.random.choice(self.families)
        own = [self.random.randrange(3) for _ in range(self.random.randint(0, 2))]
        return family[: self.random.randint(1, 10)] + own

    def submit(self) -> None:
        """A request comes in, or the storage is asked before one does."""
        tokens = self.prompt()
        if self.random.random() < 0.5 and self.engine.prefetch(tokens):
            return
        if len(self.engine.requests) < 5:
            self.made += 1
            self.engine.submit(f"r{self.made}", tokens, len(tokens) + self.random.randint(1, 5))

    def admit(self) -> None:
        """A waiting request is let in, if there is room."""
        waiting = [name for name, request in self.engine.requests.items() if request.run is None]
        if waiting:
            self.engine.admit(self.random.choice(waiting))

    def forward(self) -> None:
        """A pass is queued over some that run."""
        running = [name for name, request in self.engine.requests.items() if request.run is not None]
        self.engine.queue_pass([name for name in running if self.random.random() < 0.8])

    def see_pass(self) -> None:
        """The host looks at the oldest pass. The loads that it waited for have completed by then."""
        if self.engine.passes:
            id = next(iter(self.engine.passes))
            for load in [load for load in self.engine.transfers.in_flight if load < id]:
                if load in self.engine.transfers.in_flight:
                    self.see(load)
            self.engine.see_pass(id)

    def see_transfer(self) -> None:
        """The host looks at the oldest transfer."""
        if self.engine.transfers.in_flight:
            self.see(next(iter(self.engine.transfers.in_flight)))

    def see(self, id: int) -> None:
        """A transfer has completed; a load or a prefetch fails sometimes."""
        may_fail = self.engine.transfers.in_flight[id].kind in ("load", "prefetch")
        self.engine.see_transfer(id, failed=may_fail and self.random.random() < self.fails)

    def leave(self) -> None:
        """A request is aborted."""
        if self.engine.requests:
            self.engine.leave(self.random.choice(list(self.engine.requests)))

    def retract(self) -> None:
        """A request is thrown out and waits again."""
        if self.engine.requests and self.random.random() < 0.3:
            self.engine.retract(self.random.choice(list(self.engine.requests)))

    def evict(self) -> None:
        """Room is made for others."""
        for _ in range(self.random.randint(1, 4)):
            self.engine.evict()

    def evict_host(self) -> None:
        """Room is made on the host."""
        for _ in range(self.random.randint(0, 2)):
            self.engine.evict_host()

    def store(self) -> None:
        """Something goes to the storage."""
        self.engine.store()
