"""Random traffic through `kvref.scheduler`: with overlap, and with late completions in any order."""

from collections.abc import Iterator
from random import Random

from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvref.tiers.manager import RowedEngine, TieredManager
from kvref.tiers.state import Emit, Sizes
from kvspec.events import Config
from kvspec.memory.events import Failed, Idle
from kvspec.tokens import Element


class Scheduled:
    """One run of an engine, which is made from its sizes and from `emit`."""

    def __init__(self, seed: int, emit: Emit, engine: type[RowedEngine] = RowedEngine) -> None:
        """Draw the kind of the run."""
        self.random = random = Random(seed)
        page_size, pages = random.choice((1, 2, 2, 4)), random.randint(8, 16)
        self.config = Config(page_size, pages, random.randint(2, 4), page_size * pages)
        self.emit = emit
        sizes = Sizes(
            page_size,
            pages,
            host_pages=random.randint(3, 12),
            write_through=random.random() < 0.7,
            storage=random.random() < 0.8,
        )
        self.manager = TieredManager(self.config, sizes, emit, random, engine)
        self.mode = SchedulerConfig(
            max_prefill_tokens=random.randint(4, 20),
            chunked_prefill_size=random.randint(3, 9),
            overlap=random.randint(1, 3),
            completion_seed=seed + 1,
            mixed_chunk=random.random() < 0.3,
            retract_interval=random.choice((0, 0, 3)),
            abort_interval=random.choice((0, 0, 4)),
        )

    def requests(self, count: int) -> Iterator[GenerateReq]:
        """Prompts that share prefixes, and their sampled tokens."""
        draw = self.random
        families = [[draw.randrange(3) for _ in range(12)] for _ in range(draw.randint(1, 2))]
        longest = max(1, self.config.max_context_len // 3)
        for number in range(count):
            prompt: list[Element] = [*draw.choice(families)[: draw.randint(1, longest)], draw.randrange(3)]
            yield GenerateReq(f"r{number}", prompt, [draw.randrange(3) for _ in range(draw.randint(1, 6))])

    def run(self, count: int) -> None:
        """Run so many requests to their end, and emit `Idle`.

        If the engine fails, the run ends with `Failed`.
        """
        try:
            Scheduler(self.manager, self.config, self.requests(count), self.mode).run()
            self.manager.drain()
            self.emit(Idle())
        except Exception as error:
            self.emit(Failed("assertion", f"{type(error).__name__}: {error}"))
