"""mini-sglang's hooks emit the same events at once and late, and read no tensor before its copy has arrived."""

import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kvattach.hooks import Hooks
from kvattach.mini_sglang.hooks import Attached
from kvattach.mini_sglang.modules import Engine
from kvattach.patches import Patches
from kvlab.device import Event, Stream
from kvlab.mini_sglang import driver
from kvlab.mini_sglang.engine import load
from kvlab.mini_sglang.fixes import fix
from kvlab.stubs import EngineError
from kvspec.memory.events import MemoryEvent
from tests.kvattach.lagging import Events, Lagging, Seen
from tests.kvlab.checkout import checkout_of

pytestmark = pytest.mark.slow

SEEDS = 30
READS = ("tolist", "item", "numpy", "cpu", "__int__", "__index__", "__float__", "__bool__")
"""The methods that read a tensor: they wait for the device."""


def seen(*, fixed: bool, copies: bool) -> Seen:
    try:
        checkout = checkout_of("mini-sglang")
    except EngineError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.kvlab.test_mini_sglang_late", str(checkout), json.dumps([fixed, copies])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=360)
    assert not done.returncode, done.stderr
    return Seen(*json.loads(done.stdout))


@pytest.mark.parametrize("fixed", [True, False], ids=["known issues fixed", "unmodified"])
def test_late_events_are_those_that_hooks_emit_at_once(fixed: bool) -> None:
    late = seen(fixed=fixed, copies=True)
    assert late.different == []
    assert late.events > 50_000
    assert late.most > 500
    assert late.waits == {}


def test_tensors_that_are_read_late_show() -> None:
    assert len(seen(fixed=True, copies=False).different) > SEEDS // 2


@contextmanager
def no_reads(tensor: type, hooks: Hooks) -> Iterator[None]:
    """Let a hook fail that reads a tensor while its events are late: on a GPU it would wait for the device."""

    def checked(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(*given: Any) -> Any:
            if hooks.late and sys._getframe(1).f_globals["__name__"].startswith("kvattach."):
                raise AssertionError(f"a hook calls {name}")
            return read(*given)

        return reads

    with Patches() as patches:
        for name in READS:
            patches.set(tensor, name, checked(name, getattr(tensor, name)))
        yield


def run(engine: Engine, seed: int, tape: Lagging | None) -> list[MemoryEvent]:
    """The events of one run."""
    Stream._numbers = count()
    events = Events()
    attached = Attached(engine, events, Stream, Event, simulated=False)
    attached.hooks.tape = tape
    try:
        with no_reads(engine.torch.Tensor, attached.hooks):
            driver.run(engine, seed)
    finally:
        attached.hooks.detach()
    if tape is not None:
        tape.drain()
    # Without copies a late tensor may be one that no hook would have seen.
    if attached.hooks.problem is not None and (tape is None or tape.copies):
        raise RuntimeError(attached.hooks.problem)
    return events.all


def main(place: str, given: str) -> None:
    """Print what the runs have shown."""
    logging.disable(logging.CRITICAL)
    fixed, copies = json.loads(given)
    engine, different, events, most = load(Path(place)), [], 0, 0
    # The running requests are in a set, whose order is that of their addresses.
    with patch.object(engine.core.Req, "__hash__", lambda req: req.uid):
        for seed in range(SEEDS):
            tape = Lagging(random.Random(seed), copies=copies)
            with Patches() as patches:
                if fixed:
                    fix(engine, patches)
                expected = run(engine, seed, None)
                if run(engine, seed, tape) != expected:
                    different.append(seed)
            events += len(expected)
            most = max(most, tape.most)
            assert not tape.waits
    print(json.dumps(Seen(events, different, most, {})))


if __name__ == "__main__":
    main(*sys.argv[1:])
