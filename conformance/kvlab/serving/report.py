"""The report of a run of a real server: its findings, its wrong tokens, and the requests without an answer."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, Forms, Output
from kvconform.runs.traces import check_traces
from kvconform.traces.memory import MemoryReader, open_trace
from kvlab.releases import NotFetched, fetch
from kvlab.serving.environment import NoEnvironment, environment
from kvlab.serving.model import Difference
from kvlab.serving.servers import SERVERS
from kvlab.serving.session import Run, Settings, serve
from kvspec.memory.events import Map

VLLM = "0.32.0"
"""The release whose build for the CPU is pinned."""

SHOWN = 10
"""Wrong answers that are shown one by one at most."""


def serve_and_report(
    out: Output,
    engine: str,
    version: str,
    folder: Path,
    python: Path | None,
    settings: Settings,
) -> int:
    """Serve, check and print what came out; the exit status.

    Raises:
        NoEnvironment: the environment cannot be made, or the server does not start.
    """
    progress = Console(stderr=True)

    def say(text: str) -> None:
        progress.print(Text(f"kvspec: {text}"), soft_wrap=True)

    release: Path | None = None
    if python is None:
        python, release = _installed(engine, version, say)
    server = SERVERS[engine](settings.seed)
    run = serve(server, python, release, folder, settings, say)
    status = check_traces(out, run.recordings, None, Forms()) if run.recordings else BROKEN
    failures = _failures(run)
    for line in [*failures, *wrong_tokens(run), _summary(run)]:
        out.print(Text(line), soft_wrap=True)
    sys.stdout.flush()
    return BROKEN if failures or run.differences else status or CONFORMS


def _installed(engine: str, version: str, say: Callable[[str], object]) -> tuple[Path, Path | None]:
    """The Python of an environment, and the folder of the release if the environment does not have it."""
    if engine == "vllm":
        if version != VLLM:
            raise NoEnvironment(f"of vLLM the build for the CPU is pinned for {VLLM} alone; --python takes any")
        return environment(engine, say), None
    try:
        return environment(engine, say), fetch(version, None, engine)
    except NotFetched as error:
        raise NoEnvironment(str(error)) from error


def _failures(run: Run) -> list[str]:
    found = (
        [] if run.recordings else ["nothing was recorded: the server made no scheduler that kvspec knows (server.log)"]
    )
    if run.died:
        found.append(f"the server ended by itself: {run.died}")
    return found + [f"no answer: {failure}" for failure in run.traffic.failures[:SHOWN]]


def wrong_tokens(run: Run) -> list[str]:
    """A line for each wrong answer, with the page in which the position before the wrong token lies."""
    return [
        f"wrong token: request {one.rid} position {one.position}: {one.found} and not {one.expected}{_page(run, one)}"
        for one in run.differences[:SHOWN]
    ]


def _page(run: Run, difference: Difference) -> str:
    """The page that the request's table named last for the position that the token was computed from."""
    page, line = None, 0
    for path in run.recordings:
        with open_trace(path) as reader:
            if not isinstance(reader, MemoryReader):
                continue
            for number, event in reader:
                if isinstance(event, Map) and event.holder.startswith(difference.rid):
                    size = reader.header.pools[event.pool].page_size
                    index = (difference.position - 1) // size - event.index
                    if 0 <= index < len(event.pages):
                        page, line = f"{event.pool} page {event.pages[index]}", number
    return "" if page is None else f", computed from {page} (line {line})"


def _summary(run: Run) -> str:
    traffic = run.traffic
    whole = sum(answer.asked > 0 for answer in traffic.answers)
    tokens = sum(len(answer.output) for answer in traffic.answers)
    return (
        f"{whole:,} answers and {traffic.aborted:,} that were cut off, {tokens:,} tokens, {traffic.turns:,} turns of "
        f"sessions, {traffic.orders:,} orders, {traffic.refused:,} refused; "
        f"{len(run.differences):,} answers with a wrong token."
    )
