"""SGLang's hooks emit the same events at once and late: captures of a plain memory hold all that resolutions read."""

import json
import logging
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.sglang import driver
from kvlab.sglang.driver import Shape
from kvlab.sglang.release import load
from kvlab.tokens import ignored
from kvspec.memory.events import MemoryEvent, Pool
from tests.kvattach.lagging import Lagging
from tests.kvlab.checkout import release_of

SEEDS = 24


class Seen(NamedTuple):
    """Runs of random servers, each at once and late."""

    events: int
    different: list[int]
    """The seeds of those whose late events are others."""
    most: int
    """The most captures that waited."""
    waits: dict[str, int]


def seen(copies: bool, whole: bool) -> Seen:
    command = [sys.executable, "-m", "tests.kvlab.test_sglang_late", str(release_of("0.5.23"))]
    done = subprocess.run(
        [*command, json.dumps([copies, whole])], capture_output=True, text=True, check=False, timeout=600
    )
    assert not done.returncode, done.stderr
    return Seen(*json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["whole rows", "new entries"])
def test_late_events_are_those_that_hooks_emit_at_once(whole: bool) -> None:
    late = seen(copies=True, whole=whole)
    assert late.different == []
    assert late.events > 100_000
    assert late.most > 1000
    assert [*late.waits] == ["reset"], "only the hook of a flush waits"


@pytest.mark.slow
def test_tensors_that_are_read_late_show() -> None:
    assert len(seen(copies=False, whole=True).different) > SEEDS // 2


class Events:
    """Keeps all events."""

    def __init__(self) -> None:
        self.all: list[MemoryEvent] = []

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """The pools follow from the shape."""

    def emit(self, *events: MemoryEvent) -> None:
        self.all += events


class Watching(Attached):
    """Hooks that capture whole rows at each launch, or only new entries."""

    whole = True

    def watch(self, memory: Any, metadata: int = 0, server: str | None = None) -> None:
        super().watch(memory, metadata, server)
        self._table.whole = self.whole


def plain(release: Release, seed: int) -> Shape:
    """A server without a host tier, windows, states or drafts, at random with sessions, images, tenants and flushes."""
    rng = random.Random(seed)
    shape = Shape.drawn(rng).without_host(rng, release)
    assert shape.pools is not None
    pools = replace(shape.pools, window=0, window_pages=0, states=0, tracked=False, core=rng.choice(["python", "rust"]))
    shape = replace(shape, pools=pools, sessions=rng.choice([0, 0, 2]))
    return shape.with_names(rng).with_images(rng)


def run(release: Release, seed: int, tape: Lagging | None, *, whole: bool) -> list[MemoryEvent]:
    """The events of one run."""
    Stream._numbers = count()
    events = Events()
    attached = Watching(release, events, Stream, Event)
    attached.hooks.tape, attached.whole = tape, whole
    try:
        driver.run(release, seed, attached, plain(release, seed), report=ignored)
        if tape is not None:
            tape.drain()
    finally:
        attached.hooks.detach()
    # Without copies a late tensor may be one that no hook would have seen.
    if attached.hooks.problem is not None and (tape is None or tape.copies):
        raise RuntimeError(attached.hooks.problem)
    return events.all


def main(place: str, given: str) -> None:
    """Print what the runs have shown."""
    logging.disable(logging.CRITICAL)
    copies, whole = json.loads(given)
    release, different, events, most, waits = load(Path(place)), [], 0, 0, Counter[str]()
    for seed in range(SEEDS):
        expected = run(release, seed, None, whole=True)
        tape = Lagging(random.Random(seed), copies=copies)
        if run(release, seed, tape, whole=whole) != expected:
            different.append(seed)
        events, most, waits = events + len(expected), max(most, tape.most), waits + tape.waits
    print(json.dumps(Seen(events, different, most, waits)))


if __name__ == "__main__":
    main(*sys.argv[1:])
