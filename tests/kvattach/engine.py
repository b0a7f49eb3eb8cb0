"""A small engine under `KVSPEC`, for tests that stop it in the middle.

    python -m tests.kvattach.engine [--limit BYTES] [--defect] [--for SECONDS]

It walks the host tier until it is interrupted, or until its time is over. Files may grow to the limit; with the defect
a page is handed out twice. At its end it prints the share of events whose recording took longer than a tenth of a
second, and the seconds that the header and the end took.
"""

import argparse
import logging
import resource
import signal
import time
from contextlib import suppress

from kvattach.switch import Followed, opened
from kvref.tiers import TieredEngine
from kvref.tiers.driver import Driver
from kvspec.memory.events import MemoryEvent, Take

LONG = 0.1
"""Seconds that nothing of ours may take while the engine runs."""


def main() -> None:
    """Run until interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    options = argparse.ArgumentParser()
    options.add_argument("--limit", type=int)
    options.add_argument("--defect", action="store_true")
    options.add_argument("--for", type=float, default=120.0, dest="seconds")
    chosen = options.parse_args()
    logging.basicConfig(level=logging.INFO)
    if chosen.limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (chosen.limit, chosen.limit))
    trace = opened()
    assert trace is not None
    events = long = 0

    def emit(event: MemoryEvent) -> None:
        nonlocal events, long
        begun = time.monotonic()
        trace.emit(event)
        events += 1
        long += time.monotonic() - begun > LONG

    driver = Driver(1, emit, TieredEngine)  # type: ignore[arg-type]
    begun = time.monotonic()
    trace.header("a test", driver.sizes.pools())
    header = time.monotonic() - begun
    print("started", flush=True)
    if chosen.defect:
        emit(Take("a", "device", [1]))
        emit(Take("b", "device", [1]))
    last = time.monotonic() + chosen.seconds
    with suppress(KeyboardInterrupt):
        while time.monotonic() < last:
            driver.walk(20)
            time.sleep(0.001)
    begun = time.monotonic()
    if isinstance(trace, Followed):
        trace.close()
    print(long / events, header, time.monotonic() - begun)


if __name__ == "__main__":
    main()
