"""Records walks of the host tier without end, for tests that stop it in the middle.

    python -m tests.kvtrace.recording TRACE ... [--limit BYTES]

With several traces a process is forked for each, and killed at a random moment; with a limit files may grow to that.
"""

import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from kvref.tiers import TieredEngine
from kvref.tiers.driver import Driver
from kvtrace.writer import TraceWriter


def record(path: Path) -> TraceWriter:
    """Walk and record, until a signal ends the process, or until nothing more can be written."""
    writer = TraceWriter(path)
    driver = Driver(1, writer.emit, TieredEngine)  # type: ignore[arg-type]
    writer.header("a test", driver.sizes.pools())
    while writer.problem is None:
        driver.walk(20)
        time.sleep(0)
    return writer


def main(arguments: list[str]) -> None:
    """Record until killed, or up to a limit."""
    if "--limit" in arguments:
        limit = int(arguments[-1])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        writer = record(Path(arguments[0]))
        print(writer.problem)
        writer.close()
        return
    draw = random.Random(16)
    for path in arguments:
        child = os.fork()
        if not child:
            record(Path(path))
        time.sleep(draw.uniform(0.15, 0.6))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
