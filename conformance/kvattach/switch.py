"""What the environment variable `KVSPEC` switches on: nothing, a recording, or a check while the engine runs.

KVSPEC=record:/var/tmp/trace.jsonl.zst   record; 'kvspec check' judges it later
KVSPEC=check                             record, and judge in another process; findings are logged
KVSPEC=check:halt                       judge at once, and stop the engine at the first finding: for tests
"""

import atexit
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvattach import following
from kvattach.hooks import RuleBroken, Trace
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

GRACE = 1.0
"""Seconds that the judging process gets at the end for what it has not read yet."""

LONGEST = 60.0
"""Seconds that it gets to judge all of a recording again, if that was not enough."""


class SwitchError(ValueError):
    """The variable says something else; the message is one line."""


def opened(environment: Mapping[str, str] = os.environ) -> Trace | None:
    """Whoever takes what hooks tell in this process; `None` if nothing is switched on.

    Raises:
        SwitchError: the variable makes no sense.
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
    """An engine has several processes, and each one writes its own files."""
    stem, dot, suffix = path.name.partition(".")
    return path.with_name(f"{stem}-{os.getpid()}{dot}{suffix}")


class Strict:
    """Judges at once, and raises at the first finding."""

    def __init__(self) -> None:
        """No memory yet."""
        self._checker: Checker | None = None

    def header(self, producer: str, pools: Mapping[str, Pool]) -> None:
        """Another memory, all of it free."""
        from kvcheck import Checker

        self._checker = Checker(pools)

    def tell(self, event: MemoryEvent) -> None:
        """Judge one event.

        Raises:
            RuleBroken: it breaks a rule.
        """
        if self._checker is not None:
            for finding in self._checker.step(event):
                from kvcheck.words import describe

                raise RuleBroken(f"{finding.code}: {describe(finding)}")


class Followed:
    """Records, and has another process judge what is recorded; each kind of finding is logged once."""

    def __init__(self) -> None:
        """No memory yet; most of an engine's processes never have one."""
        self._writer: TraceWriter | None = None
        self._told = 0
        self._checking: _Checking | None = None
        self.reports: list[Path] = []
        """The report of each recording, in order."""
        atexit.register(self.close)

    def header(self, producer: str, pools: Mapping[str, Pool]) -> None:
        """Another memory: another recording, and another process that judges it."""
        self._end()
        if self._writer is None:
            from kvtrace.writer import TraceWriter

            self._writer = TraceWriter(Path(tempfile.mkdtemp(prefix="kvspec-")) / "trace.jsonl")
        self._writer.header(producer, pools)
        self._told = 0
        # A file is there as soon as its header is written.
        self._writer.flush()
        trace = self._writer.files[-1]
        report = trace.with_suffix(".report")
        self.reports.append(report)
        self._checking = _Checking(trace, report)

    def tell(self, event: MemoryEvent) -> None:
        """Record one event."""
        if self._writer is not None:
            self._told += 1
            self._writer.tell(event)

    def close(self) -> None:
        """End the recording, and let the judging process come to its end."""
        self._end()
        if self._writer is not None:
            self._writer.close()
        atexit.unregister(self.close)

    def _end(self) -> None:
        if self._checking is None or self._writer is None:
            return
        checking, self._checking = self._checking, None
        self._writer.stop()
        self._writer.flush()
        time.sleep(GRACE)
        if checking.end() < self._told:
            checking.start_over()


class _Checking:
    """The process that checks a recording as it grows."""

    def __init__(self, trace: Path, report: Path) -> None:
        """Start it."""
        self._trace, self._report = trace, report
        self._checked = 0
        command = [*following.COMMAND, str(trace), str(report), "follow"]
        with report.open("w") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                env=_without_switch(),
            )
        self._thread = threading.Thread(target=self._listen, name="kvspec-report", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        """Log each kind of finding in one line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = following.message(line)
            if isinstance(said, following.Met):
                where = f" in pool {said.pool}" if said.pool else ""
                _log.error("kvspec: %s%s: %s (%s)", said.code, where, said.words, self._report)
            else:
                self._checked = said.events
        self._process.wait()

    def end(self) -> int:
        """Let it come to its end: the number of events that it has checked."""
        self._process.send_signal(signal.SIGINT)
        self._thread.join(30.0)
        return self._checked

    def start_over(self) -> None:
        """Check all of the recording at once: the end came too early."""
        command = [*following.COMMAND, str(self._trace), str(self._report)]
        try:
            with self._report.open("w") as out:
                done = subprocess.run(
                    command,
                    stdout=subprocess.DEVNULL,
                    stderr=out,
                    check=False,
                    timeout=LONGEST,
                    env=_without_switch(),
                )
        except subprocess.TimeoutExpired:
            _log.warning("kvspec: the end was not judged in time; 'kvspec check %s' does it", self._trace)
            return
        if done.returncode:
            _log.error("kvspec: findings: %s", self._report)


def _without_switch() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != VARIABLE}
