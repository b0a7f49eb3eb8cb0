"""`kvspec check`: recorded traces of both levels, each judged to its end."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, UNUSABLE, Output, complain, progress_bar
from kvconform.findings.accepted import Accepted, read_accepted
from kvconform.findings.report import Place, printable, show_finding
from kvconform.findings.shrink import shortest_of_trace
from kvconform.findings.summary import show_accepted, show_check
from kvconform.findings.whole import judge_later, judge_whole
from kvconform.memory import checking as memory
from kvconform.memory.codec import MemoryReader, open_trace
from kvconform.traces.codec import TraceReader
from kvconform.traces.lines import InputError
from kvconform.vectors.runner import judge_again

TOLD = 20
"""Kinds of findings that are told whole at most; of further ones one line."""


def check(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE", help="Trace files; .gz and .zst as they are.")],
    accept: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Findings that are known (TOML): counted, and not failed.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait at the end of the trace for more, until interrupted.")
    ] = False,
) -> None:
    """Check recorded traces: what an engine did and answered, one operation or memory event a line.

    Reads line by line, in memory that does not grow with the file. What the engine did not tell is not judged, and
    the rules that had too little to judge by are named. Checking goes on after a finding.

        kvspec check engine.jsonl yesterday.jsonl.zst

        kvspec check --follow running.jsonl --accept known.toml
    """
    if follow and len(traces) > 1:
        raise typer.BadParameter("--follow takes one trace")
    out = Output()
    accepted = read_accepted(accept)
    statuses = {_check_one(out, path, accepted, follow) for path in traces}
    show_accepted(out, accepted)
    raise typer.Exit(next(status for status in (BROKEN, UNUSABLE, CONFORMS) if status in statuses))


def _check_one(out: Console, path: Path, accepted: Accepted, follow: bool) -> int:
    try:
        with open_trace(path, follow=follow) as trace, progress_bar() as progress:
            task = progress.add_task(path.name, total=trace.lines.size() or None)

            def tell() -> None:
                progress.update(task, completed=trace.lines.bytes_read())

            if isinstance(trace, MemoryReader):
                return memory.check(out, path, trace, accepted, tell, follow=follow)
            return _check_requests(out, path, trace, accepted, tell)
    except InputError as error:
        complain(str(error))
        return UNUSABLE


def _check_requests(
    out: Console, path: Path, trace: TraceReader, accepted: Accepted, tell: Callable[[], object]
) -> int:
    config = trace.header.config
    whole = judge_whole(config, trace, accepted, tell)
    if whole.problem is not None:
        if not whole.found:
            raise whole.problem
        complain(str(whole.problem))
    show_check(out, path, whole.evidence)
    said = {str(one.finding) for one in whole.found}
    for one in whole.found[:TOLD]:
        judge = judge_again if one.finding is whole.first else partial(judge_later, said=said)
        show_finding(
            out, Place(path, one.line), one.finding, config, shortest_of_trace(path, one.finding.step, judge), one.count
        )
        if one.finding is not whole.first:
            out.print("It may follow from the first finding: the model went on with what it expected there.")
    for one in whole.found[TOLD:]:
        out.print(Text(printable(f"{one.finding} at {path}:{one.line}, {one.count:,} times.")), soft_wrap=True)
    if whole.lost is not None:
        out.print(Text(printable(f"{path}: judging ends at {whole.lost}.")), soft_wrap=True)
    verdict = "does not conform" if whole.found else "conforms"
    out.print(Text(printable(f"{path}: {verdict}, {whole.operations:,} operations checked.")), soft_wrap=True)
    return BROKEN if whole.found else CONFORMS
