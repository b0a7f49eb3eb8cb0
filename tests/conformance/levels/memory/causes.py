"""Traces of an engine at work, with one injected cause each: the event that a report has to name.

The engine is a paged one with a prefix cache: requests take pages, share what the cache finds, lock it while they run,
write and read their pages on a stream, publish what they have computed, and give everything back in one of four ways
out. A fault changes one request amid thousands of others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from kvspec.memory import Pool
from kvspec.memory import events as e
from kvspec.memory.events import MemoryEvent, Use

Pages = list[int | str | tuple[int, int]]

POOLS = {"kv": Pool(page_size=4, num_pages=4000, label_size=4)}

WAYS = ("finish", "abort", "retract", "evict")
"""The ways out of a request, each a function of the engine."""


@dataclass
class Injected:
    """A trace, and the event that is the cause."""

    events: list[MemoryEvent]
    cause: MemoryEvent
    rule: str


def _request(name: str, pages: Pages, way: str, operation: int) -> list[MemoryEvent]:
    """All that one request does: pages are taken, locked, written, read and given back."""
    labels = [f"{name}.{index}" for index in range(len(pages))]
    stop = 4 * len(pages)
    return [
        e.Take(name, "kv", [*pages], at="allocate"),
        e.Share(name, "kv", [*pages], at="lock_prefix"),
        e.Map(name, name, "kv", 0, [*pages], labels, at="write_row"),
        e.Begin(operation, "gpu", [], [Use(table=name, stop=stop)], at="forward"),
        e.End(operation, at="result"),
        e.Begin(operation + 1, "gpu", [Use(table=name, stop=stop)], [], at="forward"),
        e.End(operation + 1, at="result"),
        e.Unmap(name, at="clear_row"),
        e.Release(name, "kv", [*pages], at="unlock_prefix"),
        e.Release(name, "kv", [*pages], at=way),
        e.EndHolder(name, at=way),
    ]


def _others(rng: Random, count: int, first: int) -> Iterator[list[MemoryEvent]]:
    """Requests without a defect, on pages that the injected one never has."""
    for number in range(first, first + count):
        pages: Pages = [1000 + (number * 8 + at) % 2900 for at in range(rng.randint(1, 4))]
        yield _request(f"r{number}", pages, rng.choice(WAYS), 10 * number + 10)


def _mixed(rng: Random, own: list[MemoryEvent], size: int) -> list[MemoryEvent]:
    """The events of a request in their order, and those of others between them, `size` in all."""
    others = list(_others(rng, size // 11 + 1, 1))
    cuts = sorted(rng.randrange(len(others)) for _ in own)
    mixed: list[MemoryEvent] = []
    for index, other in enumerate(others):
        mixed += [event for event, cut in zip(own, cuts, strict=True) if cut == index]
        mixed += other
    return mixed


Fault = Callable[[list[MemoryEvent], Pages, str], tuple[list[MemoryEvent], MemoryEvent, str]]
"""A request's events, its pages and its way out -> the events with a defect, the cause, and the rule that is broken."""


def forgotten_release(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """A way out forgets the pages: what is left is what was allocated."""
    return [event for event in own if not (isinstance(event, e.Release) and event.at == way)], own[0], "MEM-LEAK"


def locked_twice(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """A prefix is locked a second time, and unlocked once."""
    again = e.Share("bad", "kv", pages, at=f"lock_again_{way}")
    return [*own[:5], again, *own[5:]], again, "MEM-LEAK"


def double_free(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """A request gives its pages back early, and again on its way out."""
    early = e.Release("bad", "kv", pages, at=f"early_{way}")
    return [*own[:9], early, *own[9:]], early, "MEM-RELEASE"


def freed_and_taken(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """As a double free, and another request has the pages meanwhile."""
    early = e.Release("bad", "kv", pages, at=f"early_{way}")
    other = e.Take("late", "kv", pages, at="allocate")
    return [*own[:9], early, other, *own[9:]], early, "MEM-RELEASE"


def stale_table(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """A row is kept after its pages went back, and is read."""
    gone = e.Release("bad", "kv", pages, at=f"freed_{way}")
    unlocked = own[8]
    return [*own[:5], unlocked, gone, own[5], own[6]], gone, "MEM-USE"


def _published(pages: Pages, way: str) -> e.Publish:
    names, labels = ([f"{kind}.{index}" for index in range(len(pages))] for kind in ("key", "bad"))
    return e.Publish("kv", pages, names, labels, at=f"publish_{way}")


def name_outlives_write(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """Pages are published, and then their own request writes other content."""
    published = _published(pages, way)
    others = [f"other.{index}" for index in range(len(pages))]
    over = e.Begin(5, "gpu", [], [Use(None, "kv", pages, labels=others, holder="bad")], at="forward")
    return [*own[:5], published, over, e.End(5), *own[5:]], published, "MEM-OVERWRITE"


def name_outlives_pages(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """Pages are handed out again, and their names still find them."""
    published = _published(pages, way)
    return [*own[:5], published, *own[5:], e.Take("late", "kv", pages, at="allocate")], published, "MEM-TAKE"


def missing_wait(own: list[MemoryEvent], pages: Pages, way: str) -> tuple[list[MemoryEvent], MemoryEvent, str]:
    """A copy on another stream reads what the forward pass still writes."""
    write = e.Begin(2, "side", [], [Use(table="bad", stop=12)], at=f"forward_{way}")
    read = e.Begin(7, "copy", [Use(table="bad", stop=4)], [], at="copy_out")
    return [*own[:3], write, read, e.End(2), e.End(7), *own[5:]], write, "MEM-RACE"


FAULTS: list[Fault] = [
    forgotten_release,
    locked_twice,
    double_free,
    freed_and_taken,
    stale_table,
    name_outlives_write,
    name_outlives_pages,
    missing_wait,
]


def injected(fault: Fault, way: str, size: int, seed: int) -> Injected:
    """A trace of about `size` events with one defect on the way out `way`."""
    rng = Random(f"{fault.__name__} {way} {seed}")
    pages: Pages = [*sorted(rng.sample(range(1, 900), 3))]
    own, cause, rule = fault(_request("bad", pages, way, 1), pages, way)
    return Injected(_mixed(rng, own, size), cause, rule)
