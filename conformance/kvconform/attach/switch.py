"""Switches the hooks on: `KVSPEC=record:PATH` in the environment of an engine's process. Without it nothing happens."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from kvconform.attach.hooks import Trace
from kvconform.memory.writer import TraceWriter
from kvspec.memory.events import MemoryEvent, Pool

_log = logging.getLogger(__name__)


class Recording:
    """A trace that is written from the first memory on, to a file of this process's own: `PATH` with its number."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet: of an engine's processes most have no scheduler."""
        self._path = path
        self.writer: TraceWriter | None = None

    def header(self, producer: str, pools: Mapping[str, Pool]) -> None:
        """A memory is there: a new file begins."""
        if self.writer is None:
            stem, dot, suffixes = self._path.name.partition(".")
            self.writer = TraceWriter(self._path.with_name(f"{stem}-{os.getpid()}{dot}{suffixes}"))
            _log.warning("kvspec: what happens to memory is recorded in %s", self._path.parent)
        self.writer.header(producer, pools)

    def tell(self, event: MemoryEvent) -> None:
        """Record one event."""
        if self.writer is not None:
            self.writer.tell(event)


def wanted(environment: Mapping[str, str] = os.environ) -> Trace | None:
    """Whom the hooks are to tell; `None`: nobody, and no hook is to be installed.

    A value that means nothing is told in the log, and is no reason for an engine not to start.
    """
    value = environment.get("KVSPEC", "")
    if not value:
        return None
    kind, _, path = value.partition(":")
    if kind == "record" and path:
        return Recording(Path(path))
    _log.warning("kvspec: KVSPEC=%s means nothing: record:PATH records; nothing is recorded", value)
    return None
