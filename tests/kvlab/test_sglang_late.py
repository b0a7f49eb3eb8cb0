"""SGLang's hooks emit the same events at once and late: captures hold all that resolutions read."""

import json
import logging
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.sglang import driver, pair, walk
from kvlab.sglang.driver import Shape
from kvlab.sglang.issues import fix
from kvlab.sglang.release import load
from kvlab.tokens import ignored
from kvspec.memory.events import MemoryEvent
from tests.kvattach.lagging import Events, Lagging, Seen
from tests.kvlab.checkout import release_of

SEEDS = 16
KINDS = ["plain", "window", "states", "drafts", "host", "storage"]
"""Memories without a host tier, the last of them with drafts; with one; and with a storage behind it, which walks
drive."""
PAIR = "pair"
"""The memories of two servers, of which one computes the prompts."""


def seen(kind: str, copies: bool, whole: bool, version: str = "0.5.23") -> Seen:
    command = [sys.executable, "-m", "tests.kvlab.test_sglang_late", str(release_of(version))]
    done = subprocess.run(
        [*command, json.dumps([kind, copies, whole])], capture_output=True, text=True, check=False, timeout=600
    )
    assert not done.returncode, done.stderr
    return Seen(*json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["whole rows", "new entries"])
@pytest.mark.parametrize("kind", [*KINDS, PAIR])
def test_late_events_are_those_that_hooks_emit_at_once(kind: str, whole: bool) -> None:
    late = seen(kind, copies=True, whole=whole)
    assert late.different == []
    assert late.events > 30_000
    assert late.most > 1000
    assert {*late.waits} <= {"reset"}, "only the hook of a flush waits"


OLDER = ["0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21"]
"""Releases with plugins whose memory is driven with a host tier alone."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "version"),
    [*((kind, "0.5.22") for kind in KINDS), *(("host", version) for version in OLDER), ("storage", "0.5.20")],
)
def test_late_events_of_other_releases_are_those_that_hooks_emit_at_once(kind: str, version: str) -> None:
    assert seen(kind, copies=True, whole=False, version=version).different == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, PAIR])
def test_tensors_that_are_read_late_show(kind: str) -> None:
    assert len(seen(kind, copies=False, whole=True).different) > SEEDS // 2


class Hosts:
    """Keeps the events of each host apart: between hosts late events have no order."""

    def __init__(self) -> None:
        self.kept: dict[str, Events] = {}

    def of(self, host: str) -> Events:
        return self.kept.setdefault(host, Events())


class Watching(Attached):
    """Hooks that capture whole rows at each launch, or only new entries."""

    whole = True

    def watch(self, memory: Any, metadata: int = 0, server: str | None = None) -> None:
        super().watch(memory, metadata, server)
        self._table.whole = self.whole


def shape_of(release: Release, kind: str, seed: int) -> Shape:
    """A server with a memory of this kind, at random with sessions, images, tenants and flushes."""
    rng = random.Random(f"{seed} {kind}")
    shape, made = Shape.drawn(rng), "host"
    while made not in (["plain", "window"] if kind == "drafts" else [kind]):
        shape = shape.without_host(rng, release)
        assert shape.pools is not None
        made = "window" if shape.pools.window else "states" if shape.pools.states else "plain"
    shape = replace(shape, sessions=rng.choice([0, 0, 2]) if release.drives_sessions else 0)
    if kind == "drafts":
        assert shape.pools is not None
        steps = rng.choice([1, 3])
        shape = replace(shape, steps=steps, pools=shape.pools.with_drafts(steps, shape.page_size), mixed=False)
    return shape.with_names(rng).with_images(rng)


@contextmanager
def frees_in_order(release: Release) -> Iterator[None]:
    """Let a tree free one pool after the other: the core in Rust names them by a hash map, in an order that varies."""
    if not release.unified:
        yield
        return
    drain = release.cache_class._drain_device_frees

    def drained(cache: Any, frees: Any) -> None:
        ordered = sorted(frees.items())
        frees.clear()
        frees.update(ordered)
        drain(cache, frees)

    with patch.object(release.cache_class, "_drain_device_frees", drained):
        yield


def nodes_of(release: Release) -> list[Any]:
    """The classes of nodes, which number them."""
    return [release.radix.TreeNode, *([release.core.UnifiedTreeNode] if release.unified else [])]


def run(
    release: Release, kind: str, seed: int, tapes: list[Lagging] | None, *, copies: bool = True, whole: bool = True
) -> dict[str, list[MemoryEvent]]:
    """The events of each server of one run; each gets a tape of its own, unless `tapes` is `None`."""
    Stream._numbers = count()
    for numbered in (*nodes_of(release), release.controller.StorageOperation):
        numbered.counter = 0
    hosts, made = Hosts(), list[Watching]()

    class One(Watching):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.whole = whole
            made.append(self)
            if tapes is not None:
                self.hooks.tape = Lagging(random.Random(f"{seed} {len(tapes)}"), copies=copies)
                tapes.append(self.hooks.tape)

    if kind == PAIR:
        with patch.object(pair, "Attached", One):
            pair.run(release, seed, hosts)  # type: ignore[arg-type]
    else:
        attached = One(release, hosts.of("server"), Stream, Event)
        try:
            if kind == "storage":
                walk.run(release, seed, attached, storage=True, renews=True)
            else:
                driver.run(release, seed, attached, shape_of(release, kind, seed), report=ignored)
        finally:
            attached.hooks.detach()
    for tape in tapes or []:
        tape.drain()
    # Without copies a late tensor may be one that no hook would have seen.
    for problem in [one.hooks.problem for one in made] if copies else []:
        if problem is not None:
            raise RuntimeError(problem)
    return {host: events.all for host, events in hosts.kept.items()}


def main(place: str, given: str) -> None:
    """Print what the runs have shown."""
    logging.disable(logging.CRITICAL)
    kind, copies, whole = json.loads(given)
    release, different, events, most, waits = load(Path(place)), [], 0, 0, Counter[str]()
    for seed in range(SEEDS):
        tapes: list[Lagging] = []
        with Patches() as patches, frees_in_order(release):
            fix(release, patches)
            expected = run(release, kind, seed, None)
            if run(release, kind, seed, tapes, copies=copies, whole=whole) != expected:
                different.append(seed)
        events += sum(map(len, expected.values()))
        most = max(most, *(tape.most for tape in tapes))
        waits = sum((tape.waits for tape in tapes), waits)
    print(json.dumps(Seen(events, different, most, waits)))


if __name__ == "__main__":
    main(*sys.argv[1:])
