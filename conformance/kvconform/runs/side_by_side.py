"""Checks several traces at a time, each in a separate process. Their outputs come in the order of the traces."""

import io
import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import redirect_stderr
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from kvconform.findings.baseline import Baseline, Entry
from kvconform.findings.outcome import Case, Report
from kvconform.signals import Interrupted, caught, held, obey

GRACE = 0.5
"""The most seconds for a terminated process to send its report."""

Work = Callable[[Console, Path, Baseline, Report], None]
"""Checks one trace: prints its outcome, counts its known findings, and adds the others to the report."""


class Checked(NamedTuple):
    """The outcome of one trace."""

    path: Path
    report: Report
    baseline: Counter[Entry]
    printed: str
    complained: str
    whole: bool
    """Whether the trace was checked to its end."""
    fault: str
    """The traceback of an error in kvspec."""


class Running(NamedTuple):
    """A process that checks one trace."""

    process: BaseProcess
    answer: Connection

    def hand_over(self, path: Path) -> Checked:
        """The outcome that the process sends. If the process died, the trace is unusable."""
        try:
            checked: Checked = self.answer.recv()
        except EOFError:
            self.process.join()
            reason = f"{path}: the process that checked it died (exit status {self.process.exitcode})"
            report = Report("check", str(path), [Case(path.name, "unusable", str(path), reason=reason)])
            checked = Checked(path, report, Counter(), "", f"kvspec: {reason}\n", whole=True, fault="")
        self.process.join()
        self.answer.close()
        return checked


def side_by_side(
    work: Work, paths: Sequence[Path], jobs: int, out: Console, baseline: Baseline
) -> Generator[Checked, None, None]:
    """Check `jobs` traces at a time, and yield their outcomes in order.

    On an interrupt each process gets `GRACE` seconds to send its report so far, and traces that have not begun are left
    out. A caller that needs no further outcome closes the generator, which ends all processes.
    """
    running: dict[int, Running] = {}
    done: dict[int, Checked] = {}
    waiting = iter(range(len(paths)))
    try:
        for number in range(len(paths)):
            while number not in done:
                while len(running) < jobs and (begun := next(waiting, None)) is not None:
                    with held():
                        running[begun] = _started(work, paths[begun], out, baseline)
                _collect(running, done, paths, None)
            yield done.pop(number)
    except Interrupted:
        for one in running.values():
            one.process.terminate()
        deadline = time.monotonic() + GRACE
        while running and _collect(running, done, paths, max(0.0, deadline - time.monotonic())):
            pass
        yield from (done[number] for number in sorted(done))
    finally:
        for one in running.values():
            one.process.kill()
            one.process.join()


def _collect(
    running: dict[int, Running], done: dict[int, Checked], paths: Sequence[Path], timeout: float | None
) -> bool:
    """Collect the outcomes that are ready. Returns whether there was one in time."""
    ready = wait([one.answer for one in running.values()], timeout)
    for number in [number for number, one in running.items() if one.answer in ready]:
        with held():
            done[number] = running[number].hand_over(paths[number])
            del running[number]
    return bool(ready)


def _started(work: Work, path: Path, out: Console, baseline: Baseline) -> Running:
    # A forked process has all imports, and takes nothing from the current directory.
    context = multiprocessing.get_context("fork")
    answer, end = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(work, path, out, baseline.entries, end), daemon=True)
    sys.stdout.flush()
    process.start()
    end.close()
    return Running(process, answer)


def _check(work: Work, path: Path, out: Console, entries: list[Entry], end: Connection) -> None:
    obey()
    printed, complained = io.StringIO(), io.StringIO()
    console = Console(file=printed, width=out.width, force_terminal=out.is_terminal)
    report, baseline = Report("check", str(path)), Baseline(entries)
    fault = ""
    try:
        with redirect_stderr(complained):
            work(console, path, baseline, report)
    except Interrupted:
        pass  # the report so far is sent
    except Exception:
        fault = traceback.format_exc()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    whole = not caught()
    end.send(Checked(path, report, baseline.count, printed.getvalue(), complained.getvalue(), whole, fault))
    end.close()
