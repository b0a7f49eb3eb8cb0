"""What `kvspec matrix` tells the process that checks one release."""

import msgspec


class Task(msgspec.Struct):
    """What the worker is told on its command line, as JSON."""

    engine: str
    release: str
    folder: str | None
    """Where the wheel is unpacked, or the checkout; `None` for the release that is installed."""
    out: str
    seconds: float
    seed: int
