"""How fast real traffic replays, what share of that is checking, and what a decode step costs in a larger pool.

    python benchmarks/replay.py conversation_trace.jsonl [--sessions] [--limit N]

Seconds are processor time of one process. A busy machine moves figures more than ratios.
"""

import gc
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from kvcheck import Checker
from kvconform.oracle.fastpath import QuickModel
from kvconform.protocol import Implementation, perform
from kvconform.proxy import OracleProxy
from kvconform.traffic import mooncake
from kvref.manager import Manager
from kvref.scheduler import Scheduler
from kvspec.events import Complete, Config, Decode, Evict, Extend, Finish, Launch, MatchPrefix, Step, Submit
from kvspec.tokens import Element

POOLS = (10_000, 100_000, 1_000_000)
"""Pages."""
BATCH = 256
"""Requests that decode together."""
PROMPT_PAGES = 10
STEPS = 128
"""Decode steps a round: each request takes two pages of 64."""
ROUNDS = 9


def main(
    file: Annotated[Path, typer.Argument(help="A trace of the Mooncake project.")],
    sessions: Annotated[bool, typer.Option("--sessions")] = False,
    limit: Annotated[int | None, typer.Option()] = None,
    num_pages: Annotated[int, typer.Option()] = 16_000,
) -> None:
    entries = mooncake.read(file, limit)
    memory = Config(64, num_pages, 256, num_pages * 64)
    bare = replay_seconds(entries, memory, sessions, partial(perform, Manager(memory)))
    checked = replay_seconds(entries, memory, sessions, OracleProxy(Manager(memory), QuickModel(memory)))
    checker = replay_seconds(
        entries, memory, sessions, OracleProxy(Manager(memory), QuickModel(memory, checker=Checker))
    )
    print(f"replay of {len(entries):,} requests, {num_pages:,} pages, sessions {sessions}")
    print(f"  reference alone    {bare:7.1f} s, {mooncake.duration(entries) / bare:6.0f} times faster than recorded")
    print(
        f"  under the model    {checked:7.1f} s, {mooncake.duration(entries) / checked:6.0f} times faster than recorded"
    )
    print(f"  share of checking  {1 - bare / checked:7.0%}")
    print(f"  and with the checker{checker:7.1f} s, {checker / checked:6.2f} times as long as under the model alone")
    print(f"decode step of {BATCH} requests, the median of {ROUNDS} rounds, pools in turns")
    for name, cost in (
        ("reference alone", decode_costs(checked=False)),
        ("under the model", decode_costs(checked=True)),
    ):
        for pages, seconds in cost.items():
            ratio = seconds / cost[POOLS[0]]
            print(f"  {name}, {pages:>9,} pages  {seconds * 1e6:7.1f} us  {ratio:5.2f} times that of {POOLS[0]:,}")


def replay_seconds(entries: list[mooncake.Entry], memory: Config, sessions: bool, step: Step) -> float:
    requests = mooncake.requests(entries, memory.page_size, sessions=sessions)
    start = time.process_time()
    Scheduler(step, memory, requests).run()
    return time.process_time() - start


def decode_costs(*, checked: bool) -> dict[int, float]:
    """Seconds of one decode step for each pool size, measured side by side: what slows one round slows all pools."""
    pools = {pages: Pool(pages, checked) for pages in POOLS}
    rounds: dict[int, list[float]] = {pages: [] for pages in POOLS}
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for pages, pool in pools.items():
            rounds[pages].append(pool.decode_round())
    gc.enable()
    return {pages: median(seconds) for pages, seconds in rounds.items()}


class Pool:
    """A pool that is nearly full of cached prefixes, and a batch that decodes in what is left."""

    def __init__(self, num_pages: int, checked: bool) -> None:
        memory = Config(64, num_pages, BATCH, num_pages * 64)
        manager: Implementation = Manager(memory)
        self.step: Step = OracleProxy(manager, QuickModel(memory)) if checked else partial(perform, manager)
        self.launches = 0
        self.token = 0
        self._fill((num_pages - BATCH * (PROMPT_PAGES + STEPS * (ROUNDS + 1) // 64 + 2)) // 1000)
        self.names = [f"r{number}" for number in range(BATCH)]
        for name in self.names:
            self._prefill(name, [f"{name}.{page}" for page in range(PROMPT_PAGES)])
        self.decode_round()

    def _fill(self, prefixes: int) -> None:
        """Leave prefixes of a thousand pages each in the cache, and evict a few again."""
        for number in range(prefixes):
            self._prefill(f"old{number}", [f"old{number}.{page}" for page in range(1000)])
            self.step(Finish(f"old{number}"))
        if prefixes:
            self.step(Evict(100))

    def _prefill(self, name: str, tokens: list[Element]) -> None:
        self.step(Submit(name, tokens))
        self.step(MatchPrefix(name))
        self.step(Extend([(name, 64 * len(tokens))]))
        self._launch([name])

    def _launch(self, names: list[str]) -> None:
        self.launches += 1
        self.token += 1
        self.step(Launch(self.launches, names))
        self.step(Complete(self.launches, dict.fromkeys(names, self.token)))

    def decode_round(self) -> float:
        """Seconds of one of `STEPS` decode steps."""
        start = time.process_time()
        for _ in range(STEPS):
            self.step(Decode(self.names))
            self._launch(self.names)
        return (time.process_time() - start) / STEPS


if __name__ == "__main__":
    typer.run(main)
