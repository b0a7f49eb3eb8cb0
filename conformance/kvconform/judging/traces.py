"""`kvspec check`: recorded traces of both levels, each judged to its end."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, UNUSABLE, complain, progress_bar
from kvconform.errors import InputError
from kvconform.findings.accepted import Accepted, read_accepted
from kvconform.findings.finding import Finding
from kvconform.findings.shrink import shortest_of_trace
from kvconform.findings.summary import show_accepted, show_check
from kvconform.findings.telling import finding_of, place_of
from kvconform.findings.text import show_finding
from kvconform.findings.whole import Found, Whole, judge_later, judge_whole
from kvconform.findings.wording import printable
from kvconform.memory import checking as memory
from kvconform.traces.codec import TraceReader
from kvconform.traces.memory import MemoryReader, open_trace
from kvconform.vectors.runner import judge_again
from kvspec.events import Config, Operation

TOLD = 20
"""Kinds of findings that are told whole at most; of further ones one line."""


def check_traces(out: Console, traces: Sequence[Path], accept: Path | None, follow: bool, verbose: bool) -> int:
    """Check traces of both levels and print what came out; the exit status. With `follow` wait for more at the end.

    The table of rules is printed only if `verbose`.

    Raises:
        InputError: the file of accepted findings cannot be used.
    """
    accepted = read_accepted(accept)
    statuses = {_check_one(out, path, accepted, follow, verbose) for path in traces}
    show_accepted(out, accepted)
    return next(status for status in (BROKEN, UNUSABLE, CONFORMS) if status in statuses)


def _check_one(out: Console, path: Path, accepted: Accepted, follow: bool, verbose: bool) -> int:
    try:
        with open_trace(path, follow=follow) as trace, progress_bar() as progress:
            task = progress.add_task(path.name, total=trace.lines.size() or None)

            def tell() -> None:
                progress.update(task, completed=trace.lines.bytes_read())

            if isinstance(trace, MemoryReader):
                return memory.check(out, path, trace, accepted, tell, follow=follow)
            return _check_requests(out, path, trace, accepted, tell, verbose)
    except InputError as error:
        complain(str(error))
        return UNUSABLE


def _check_requests(
    out: Console, path: Path, trace: TraceReader, accepted: Accepted, tell: Callable[[], object], verbose: bool
) -> int:
    config = trace.header.config
    whole = judge_whole(config, trace, accepted, tell)
    if whole.problem is not None:
        if not whole.found:
            raise whole.problem
        complain(str(whole.problem))
    show_check(out, path, whole.evidence, verbose)
    for one in whole.found[:TOLD]:
        show_finding(out, _told(path, config, whole, one))
    for one in whole.found[TOLD:]:
        out.print(Text(printable(f"{one.finding} at {path}:{one.line}, {one.count:,} times.")), soft_wrap=True)
    if whole.lost is not None:
        out.print(Text(printable(f"{path}: judging ends at {whole.lost}.")), soft_wrap=True)
    verdict = "does not conform" if whole.found else "conforms"
    out.print(Text(printable(f"{path}: {verdict}, {whole.operations:,} operations checked.")), soft_wrap=True)
    return BROKEN if whole.found else CONFORMS


def _told(path: Path, config: Config, whole: Whole, one: Found) -> Finding:
    first = one.finding is whole.first
    judge = judge_again if first else partial(judge_later, said={str(other.finding) for other in whole.found})
    shortest = shortest_of_trace(path, one.finding.step, judge)
    place = place_of(one.finding, path, one.line)
    finding = finding_of(one.finding, config, place, shortest, _original(path, one))
    finding.count = one.count
    if not first:
        finding.follows = "It may follow from the first finding: the model went on with what it expected there."
    return finding


def _original(path: Path, one: Found) -> Iterator[tuple[int, Operation[Any]]]:
    """The trace up to a finding; of what cannot be read a second time only the operation that shows it."""
    if not path.is_file():
        yield one.line, one.finding.op
        return
    with TraceReader(path) as trace:
        yield from islice(trace, one.finding.step)
