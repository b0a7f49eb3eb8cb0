"""The environment variable `KVSPEC` switches on a recording, or a check while the engine runs.

KVSPEC=record:/var/tmp/trace.jsonl.zst   record; 'kvspec check' checks it later
KVSPEC=check                             record, and check in another process; findings are logged
KVSPEC=check:halt                       check at once, and stop the engine at the first finding: for tests
"""

import atexit
import logging
import os
import subprocess
import threading
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from kvattach import following
from kvattach.hooked import note
from kvattach.hooks import RuleBroken, Trace
from kvattach.temporary import Lock, new_folder
from kvspec.memory import Pool
from kvspec.memory.events import MemoryEvent

if TYPE_CHECKING:
    from kvcheck import Checker
    from kvtrace.writer import TraceWriter

_log = logging.getLogger("kvspec")

VARIABLE = "KVSPEC"
"""The environment variable."""

STARTUP = Path(__file__).parent / "startup"
"""The folder that makes a Python process wait for an engine, if it is the first in its path."""

PATIENCE = 0.1
"""Seconds that an ending process of the engine waits for its check. The check goes on without it."""

MOST_BYTES = 512 << 20
"""The stored size at which a recording ends that is checked while it grows. Two recordings are kept."""


class SwitchError(ValueError):
    """The variable has an unknown value; the message is one line."""


def opened() -> Trace | None:
    """For an engine's own hooks: the trace that takes their events in this process; `None` if nothing is switched on.

    Raises:
        SwitchError: the variable has an unknown value.
    """
    trace = switched_on()
    if trace is not None:
        note("its own hooks")
    return trace


def switched_on(environment: Mapping[str, str] = os.environ) -> Trace | None:
    """The trace that takes the events of hooks in this process; `None` if nothing is switched on.

    Raises:
        SwitchError: the variable has an unknown value.
    """
    said = environment.get(VARIABLE, "")
    mode, _, rest = said.partition(":")
    if not said:
        return None
    if mode == "record" and rest:
        from kvtrace.writer import TraceWriter

        return TraceWriter(_for_this_process(Path(rest)))
    if said == "check":
        return Followed()
    if said == "check:halt":
        return Strict()
    raise SwitchError(f"{VARIABLE}={said} is none of record:PATH, check, check:halt")


def _for_this_process(path: Path) -> Path:
    """The path with the process's id: each process of an engine writes its own files."""
    stem, dot, suffix = path.name.partition(".")
    return path.with_name(f"{stem}-{os.getpid()}{dot}{suffix}")


class Strict:
    """Checks each event at once, and raises at the first finding."""

    def __init__(self) -> None:
        """No memory yet."""
        self._checker: Checker | None = None

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """A new memory begins, all of it free."""
        from kvcheck import Checker

        self._checker = Checker(pools)

    def emit(self, *events: MemoryEvent) -> None:
        """Check events.

        Raises:
            RuleBroken: one of them breaks a rule; those after it are not checked.
        """
        if self._checker is not None:
            for finding in chain.from_iterable(map(self._checker.step, events)):
                from kvcheck.words import describe

                raise RuleBroken(f"{finding.code}: {describe(finding)}")


class Followed:
    """Records events, which another process checks; each kind of finding is logged once."""

    def __init__(self) -> None:
        """No memory yet; most of an engine's processes never have one."""
        self._writer: TraceWriter | None = None
        self._checking: _Checking | None = None
        self._process = os.getpid()
        self.reports: list[Path] = []
        """The report of each recording, in order."""

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """A new memory begins: a new recording, and a new process that checks it."""
        self._end()
        try:
            self._begin(producer, pools, host)
        except OSError as error:
            _log.warning("kvspec: nothing is checked: %s", error)

    def _begin(self, producer: str, pools: Mapping[str, Pool], host: str | None) -> None:
        if self._writer is None:
            from kvtrace.writer import TraceWriter

            path = new_folder() / "trace.jsonl.zst"
            self._writer = TraceWriter(path, part_bytes=MOST_BYTES, max_bytes=MOST_BYTES)
            atexit.register(self.close)  # registered after the writer's own handler, so it runs before it
        self._writer.header(producer, pools, host)
        # The file exists once its header is written.
        self._writer.flush()
        if self._writer.problem is not None:
            raise OSError(self._writer.problem)
        trace = self._writer.files[-1]
        report = trace.with_suffix(".report")
        self._checking = _Checking(trace, report)
        self.reports.append(report)

    def emit(self, *events: MemoryEvent) -> None:
        """Record events."""
        if self._writer is not None:
            self._writer.emit(*events)
            if self._writer.problem is not None:
                self._end()

    def close(self) -> None:
        """End the recording. The check goes on to its end, if need be without this process."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:  # a forked child does not end its parent's recording
            return
        checking = self._end()
        if self._writer is not None:
            self._writer.close()
        if checking is not None and not checking.wait(PATIENCE):
            _log.info("kvspec: the check goes on: %s", checking.report)

    def _end(self) -> "_Checking | None":
        """End the recording. Returns its check, if there is one."""
        checking, self._checking = self._checking, None
        if checking is not None and self._writer is not None:
            self._writer.stop()
            self._writer.flush()
            checking.end()
        return checking


class _Checking:
    """The process that checks a recording as it grows, and the thread that logs its findings."""

    def __init__(self, trace: Path, report: Path) -> None:
        """Start it."""
        self.report = report
        self.report.touch()
        self._trace = trace
        lock = trace.with_suffix(".lock")
        self._lock = Lock(lock)
        self._lock.hold_as_writer()
        # A session of its own: a signal to the engine's terminal or group does not end it before the recording ends.
        self._child = subprocess.Popen(
            [*following.COMMAND, str(trace), str(lock), str(report)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, name="kvspec-report", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        """Log each kind of finding in one line."""
        assert self._child.stdout is not None
        self._child.wait()  # its own child checks
        ended = False
        for line in self._child.stdout:
            said = following.message(line)
            if isinstance(said, following.Met):
                _log.error("%s", said.line(self.report))
            else:
                ended = True
        if not ended:
            _log.warning("kvspec: the check ended early; 'kvspec check %s' does it again", self._trace)

    def end(self) -> None:
        """The recording is complete: the process checks the rest of it, and ends."""
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Whether the process ends within some seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()
