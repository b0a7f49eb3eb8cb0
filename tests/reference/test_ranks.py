"""Ranks of one engine with a host tier: what they decide together is the same, and what each decides alone is not.

Each rank has its own pages, tree and transfers, which are complete at its own times. Their files are checked as one.
"""

from pathlib import Path
from random import Random

import pytest

import kvcheck
from kvconform.traces.merging import MergedReader, Parts
from kvref.tiers.engine import Part, TieredEngine
from kvref.tiers.state import Sizes
from kvspec.memory.events import Decide, Event, Idle
from kvtrace.header import VERSION, MemoryHeader, encode

RANKS, STEPS, WALKS = 3, 120, 12


class Ranks:
    """A walk of several engines that get the same requests."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        pages, host_pages = self.random.randint(6, 11), self.random.randint(3, 6)
        self.sizes = Sizes(device_pages=pages, host_pages=host_pages, overlap=1, storage=False)
        self.families = [[self.random.randrange(3) for _ in range(12)] for _ in range(3)]
        self.reported: list[list[Event]] = [[] for _ in range(RANKS)]
        self.engines = [TieredEngine(self.sizes, reported.append) for reported in self.reported]
        self.made = 0
        self.often = [self.random.choice((0.05, 0.5)) for _ in self.engines]
        """Rank -> how often a transfer of its own is complete."""

    def walk(self) -> None:
        for _ in range(STEPS):
            self.random.choice((self.submit, self.abort, *[self.admit, self.forward, self.see_pass] * 2))()
            for engine, often in zip(self.engines, self.often, strict=True):
                if engine.transfers.in_flight and self.random.random() < often:
                    engine.see_transfer(next(iter(engine.transfers.in_flight)))
        for engine, reported in zip(self.engines, self.reported, strict=True):
            for name in [*engine.requests]:
                engine.leave(name)
            self.see_all(engine, 1 << 60)
            for id in [*engine.passes]:
                engine.see_pass(id)
            self.see_all(engine, 1 << 60)
            reported.append(Idle())

    def decide(self, what: dict[int, str]) -> None:
        """Rank -> what it decides."""
        for rank, words in what.items():
            self.reported[rank].append(Decide("tp", words))

    def submit(self) -> None:
        self.made += 1
        tokens = self.random.choice(self.families)[: self.random.randint(3, 11)]
        for engine in self.engines:
            engine.submit(f"r{self.made}", tokens, len(tokens) + 2)

    def abort(self) -> None:
        if self.random.random() < 0.3 and self.engines[0].requests:
            name = self.random.choice([*self.engines[0].requests])
            for engine in self.engines:
                if name in engine.requests:
                    engine.leave(name)

    def lengths(self, name: str) -> list[int]:
        """How many tokens of a request each rank takes from its cache: the fewest that one of them has."""
        return [min(self.found(engine, name) for engine in self.engines)] * RANKS

    def found(self, engine: TieredEngine, name: str) -> int:
        return len(engine.match(engine.requests[name].tokens[:-1])) * self.sizes.page_size

    def admitted(self, name: str, admitted: list[bool]) -> list[bool]:
        """Which ranks let a request run: all, or none."""
        return [all(admitted)] * RANKS

    def admit(self) -> None:
        waiting = [
            name
            for name in self.engines[0].requests
            if all(name in one.requests and one.requests[name].run is None for one in self.engines)
        ]
        if not waiting:
            return
        name = self.random.choice(waiting)
        lengths = self.lengths(name)
        each = [one.admit(name, length) for one, length in zip(self.engines, lengths, strict=True)]
        stay = self.admitted(name, each)
        for engine, runs, stays in zip(self.engines, each, stay, strict=True):
            if runs and not stays:
                engine.retract(name)
        self.decide({rank: f"admit {name}: {lengths[rank]} tokens" for rank, stays in enumerate(stay) if stays})

    def scheduled(self, parts: list[dict[str, Part]]) -> list[set[str]]:
        """The requests of each rank's next pass: those that have room on all."""
        return [set.intersection(*(set(one) for one in parts))] * RANKS

    def forward(self) -> None:
        if any(engine.passes for engine in self.engines):
            return
        parts = [
            {name: part for name, one in engine.requests.items() if (part := engine.plan(one)) is not None}
            for engine in self.engines
        ]
        names = self.scheduled(parts)
        for engine, planned, chosen in zip(self.engines, parts, names, strict=True):
            if chosen:
                engine.launch([planned[name] for name in planned if name in chosen])
        self.decide({rank: f"forward {sorted(chosen)}" for rank, chosen in enumerate(names) if chosen})

    def see_pass(self) -> None:
        for engine in self.engines:
            for id in [*engine.passes]:
                self.see_all(engine, id)
                engine.see_pass(id)

    def see_all(self, engine: TieredEngine, before: int) -> None:
        """All transfers are complete that were queued before."""
        while due := [id for id in engine.transfers.in_flight if id < before]:
            engine.see_transfer(due[0])


class OwnLength(Ranks):
    """Each rank takes what its own cache has: SGLang 33442."""

    def lengths(self, name: str) -> list[int]:
        return [self.found(engine, name) for engine in self.engines]


class OwnRoom(Ranks):
    """Each rank admits a request if it has room itself."""

    def admitted(self, name: str, admitted: list[bool]) -> list[bool]:
        return admitted


class OwnBatch(Ranks):
    """Each rank schedules what it has room for."""

    def scheduled(self, parts: list[dict[str, Part]]) -> list[set[str]]:
        return [set(one) for one in parts]


def found(kind: type[Ranks], seed: int, folder: Path) -> tuple[set[str], int]:
    """The codes of the findings, and how many decisions were compared."""
    ranks, files = kind(seed), list[Path]()
    ranks.walk()
    for number, reported in enumerate(ranks.reported):
        header = MemoryHeader(VERSION, "memory", "ranks", ranks.sizes.pools(), f"tp{number}")
        files.append(folder / f"{seed}.{number}.jsonl")
        files[-1].write_bytes(b"".join(encode(line) + b"\n" for line in (header, *reported)))
    with MergedReader(Parts(tuple(files))) as merged:
        checker = kvcheck.Checker(merged.header.pools)
        codes = {finding.code for _, event in merged for finding in checker.step(event)}
    return codes, checker.checked["MEM-AGREE"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Ranks, OwnLength, OwnRoom, OwnBatch])
def test_a_rank_that_decides_alone_is_found_by_no_other_rule(kind: type[Ranks], tmp_path: Path) -> None:
    each = [found(kind, seed, tmp_path) for seed in range(WALKS)]
    assert set().union(*(codes for codes, _ in each)) == ({"MEM-AGREE/differs"} if kind is not Ranks else set())
    assert sum(decisions for _, decisions in each) > 40 * WALKS
