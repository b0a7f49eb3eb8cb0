"""`kvspec tiers`: checked random walks of the reference's host tier, clean and with each of its mutants."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from kvcheck import Checker, Finding
from kvcheck.words import describe
from kvconform.gallery.tiers import TIER_BUGS, TierBug
from kvconform.levels.memory.grouping import Group
from kvconform.levels.memory.minimise import LEAST, Cut, Step, cut
from kvconform.levels.memory.vectors import run_memory_vector
from kvconform.levels.minimising import Effort
from kvconform.signals import until_interrupted
from kvconform.traces.memory import read_memory_vector
from kvconform.vectors.files import memory_vector_files
from kvref.tiers import TieredEngine
from kvref.tiers.driver import Driver
from kvref.tiers.manager import RowedEngine
from kvref.tiers.scheduled import Scheduled
from kvspec.memory.events import MemoryEvent, Pool

STEPS = 120
"""The number of steps of one walk."""
REQUESTS = 15
"""The number of requests of one run of the scheduler."""
WALKS_A_RUN = 9
"""Walks between two runs of the scheduler."""
WALKS = 2_000
"""Walks after which a mutant counts as not found."""
SECONDS = 10.0
"""The most seconds, on a slow machine, to search for the shortest part of a walk."""


class Walk(NamedTuple):
    """One walk: the engine's events, and the memory checker's first findings."""

    pools: dict[str, Pool]
    events: list[MemoryEvent]
    """The events up to the first with a finding, or all."""
    findings: list[Finding]
    """The findings of the last event."""


class Walked(NamedTuple):
    """The result of searching for a mutant by walks."""

    walks: int
    events: int
    """The number of events of all walks, up to the finding."""
    walk: Walk | None
    """The walk that found the mutant; `None` if none did."""


def walk(seed: int, engine: type[TieredEngine] = TieredEngine) -> Walk:
    """Walk once, up to the first finding."""
    events: list[MemoryEvent] = []
    driver = Driver(seed, events.append, engine)  # type: ignore[arg-type]
    driver.walk(STEPS)
    return checked(driver.sizes.pools(), events)


def scheduled(seed: int, engine: type[RowedEngine] = RowedEngine) -> Walk:
    """Let the reference scheduler run requests on the tiered engine, up to the first finding."""
    events: list[MemoryEvent] = []
    run = Scheduled(seed, events.append, engine)  # type: ignore[arg-type]
    run.run(REQUESTS)
    return checked(run.manager.pools(), events)


def checked(pools: dict[str, Pool], events: list[MemoryEvent]) -> Walk:
    """The walk up to the memory checker's first findings."""
    checker = Checker(pools)
    for number, event in enumerate(events, start=1):
        findings = checker.step(event)
        if findings:
            return Walk(pools, events[:number], findings)
    return Walk(pools, events, [])


def find_by_walks(bug: TierBug, seed: int = 0, walks: int = WALKS) -> Walked:
    """Walk until the memory checker finds a mutant."""
    events = 0
    for number in range(walks):
        one = walk(seed + number, bug.engine)
        events += len(one.events)
        if one.findings:
            return Walked(number + 1, events, one)
    return Walked(walks, events, None)


def shortest(one: Walk, rules: Sequence[str]) -> Cut | None:
    """The shortest part of a walk that shows its finding."""
    finding = next(finding for finding in one.findings if finding.rule in rules)
    steps = [Step(line, event) for line, event in enumerate(one.events, start=2)]
    identities = {finding.identity for finding in one.findings}
    group = Group(finding, "", len(steps) + 1, None)
    return cut(one.pools, steps, group, identities, Effort(LEAST, SECONDS))


def soak(console: Console, progress: Progress, minutes: float, seed: int) -> bool:
    """Walk the clean engine, and run the scheduler on it, until the time is up. Returns whether nothing was found."""
    deadline = time.monotonic() + minutes * 60
    walks, of_scheduler, counted = 0, 0, Counter[str]()
    found: Walk | None = None
    with progress:
        task = progress.add_task("walks", total=minutes * 60)
        with until_interrupted():
            while found is None and time.monotonic() < deadline:
                number = seed * 1_000_003 + walks
                runs = walks % (WALKS_A_RUN + 1) == WALKS_A_RUN
                one = scheduled(number) if runs else walk(number)
                walks += 1
                of_scheduler += runs
                counted.update(str(event.__struct_config__.tag) for event in one.events)
                found = one if one.findings else None
                progress.update(task, completed=minutes * 60 - (deadline - time.monotonic()))
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(counted.items()))
    console.print(
        f"{walks - of_scheduler:,} walks, {of_scheduler:,} runs of the scheduler, {counted.total():,} events: {kinds}.",
        highlight=False,
        soft_wrap=True,
    )
    for finding in found.findings if found else ():
        console.print(Text(f"number {seed * 1_000_003 + walks - 1}: {finding.rule}: {describe(finding)}", "bold red"))
    if found is None:
        console.print("Nothing was found.")
    return found is None


def vectors_of(bug: TierBug) -> Iterator[str]:
    """The vectors with the name of a mutant in which one of its rules is found."""
    for path in memory_vector_files():
        if path.stem == vector_name(bug):
            found = run_memory_vector(read_memory_vector(path)).found
            if found & set(bug.rules):
                yield path.stem


def vector_name(bug: TierBug) -> str:
    """The name of the vector that holds the shortest walk of a mutant."""
    return "tiers_" + bug.name.replace("-", "_")


def show_mutants(console: Console, progress: Progress, names: Sequence[str], seed: int) -> bool:
    """Print the results for each mutant. Returns whether walks and a vector find all of them, by their rules."""
    table = Table(title="Mutants of the host tier", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("mutant", "rule", "vector", "walks", "events"):
        table.add_column(title, justify="right" if title in ("walks", "events") else "left")
    right = 0
    with progress, until_interrupted():
        for name in progress.track(names, description="mutants"):
            bug = TIER_BUGS[name]
            walked = find_by_walks(bug, seed)
            rules = [] if walked.walk is None else [finding.rule for finding in walked.walk.findings]
            blamed = next((rule for rule in rules if rule in bug.rules), None)
            vector = next(vectors_of(bug), None)
            right += blamed is not None and vector is not None
            shown = Text(blamed) if blamed else Text(rules[0] if rules else "not found", "bold red")
            table.add_row(name, shown, "yes" if vector else "no", f"{walked.walks:,}", f"{walked.events:,}")
    console.print(table)
    console.print(
        "walks, events: of the reference's driver, until the memory checker found it.\n"
        f"{right} of {len(names)} mutants are found by walks and by a vector, and blamed on their rule.",
        soft_wrap=True,
    )
    return right == len(names)
