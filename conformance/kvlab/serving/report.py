"""The report of a run of a real server: its findings, its wrong tokens, and the requests without an answer."""

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, Forms, Output
from kvconform.errors import InputError
from kvconform.findings.wording import counted
from kvconform.runs.traces import check_traces
from kvconform.traces.memory import MemoryReader, open_trace
from kvconform.traces.merging import Parts, open_memory
from kvlab.drives import CheckedTrace
from kvlab.issues import issues_of
from kvlab.model import Difference
from kvlab.releases import NotFetched, fetch
from kvlab.serving.environment import NoEnvironment, check_import, environment
from kvlab.serving.servers import SERVERS, on_gpu, with_drafts, with_host_cache, with_states, with_windows
from kvlab.serving.session import Run, Settings, serve
from kvspec.memory.events import Begin, Map, Page, Pages, Pool

VLLM = "0.32.0"
"""The release with a pinned build for the CPU."""

SHOWN = 10
"""The most wrong answers that are shown one by one."""


def serve_and_report(
    out: Output,
    engine: str,
    version: str,
    folder: Path,
    python: Path | None,
    checkout: Path | None,
    settings: Settings,
) -> int:
    """Serve, check and print the results. Returns the exit status.

    Raises:
        NoEnvironment: the environment cannot be made, or the server does not start.
    """
    progress = Console(stderr=True)

    def say(text: str) -> None:
        progress.print(Text(f"kvspec: {text}"), soft_wrap=True)

    release = None if checkout is None else checkout / "python"
    if python is None and checkout is not None:
        python = environment(engine, say)
    elif python is None:
        python, release = installed(engine, version, say)
    server = SERVERS[engine](settings.seed)
    if settings.windows:
        server = with_windows(server, settings.seed)
    if settings.states:
        server = with_states(server, settings.seed)
    if settings.drafts:
        server = with_drafts(server, settings.seed, settings.drafts, folder / "drafter")
    if settings.host_cache:
        server = with_host_cache(server, settings.seed, settings.connector)
    if settings.cuda:
        server = on_gpu(server)
    if settings.pair and engine == "sglang":
        check_import(python, "mooncake.engine")
    server = replace(server, pair=settings.pair)
    run = serve(server, python, release, folder, settings, say)
    status = check_traces(out, run.recordings, None, Forms(), merge=server.pair) if run.recordings else BROKEN
    failed = failures(run)
    known = known_issues(run, engine, version, merge=server.pair) if status == BROKEN else []
    for line in [*known, *failed, *wrong_tokens(run), _summary(run)]:
        out.print(Text(line), soft_wrap=True)
    sys.stdout.flush()
    return BROKEN if failed or run.differences else status or CONFORMS


def installed(engine: str, version: str, say: Callable[[str], object]) -> tuple[Path, Path | None]:
    """The Python of an environment, and the folder of the release if the environment does not have it.

    Raises:
        NoEnvironment: the environment cannot be made, or the release cannot be fetched.
    """
    if engine == "transformers":
        if importlib.util.find_spec(engine) is None or metadata.version(engine) != version:
            raise NoEnvironment(f"{engine}=={version} is not installed here: install it, or name a Python by --python")
        return Path(sys.executable), None
    if engine == "vllm":
        if version != VLLM:
            raise NoEnvironment(f"of vLLM the build for the CPU is pinned for {VLLM} alone; --python takes any")
        return environment(engine, say), None
    try:
        return environment(engine, say, version), fetch(version, None, engine)
    except NotFetched as error:
        raise NoEnvironment(str(error)) from error


def failures(run: Run) -> list[str]:
    """A line for each failure besides broken rules and wrong tokens."""
    found = (
        [] if run.recordings else ["nothing was recorded: the server made no scheduler that kvspec knows (server.log)"]
    )
    if run.drafts is not None and not run.drafts[0]:
        found.append("the server has verified no draft")
    if run.died:
        found.append(f"the server ended by itself: {run.died}")
    if run.ended:
        found.append(f"the recording ends before the traffic: {run.ended}")
    return found + [f"no answer: {failure}" for failure in run.traffic.failures[:SHOWN]]


def known_issues(run: Run, engine: str, version: str, *, merge: bool) -> list[str]:
    """A line for each known issue of the engine that its findings show, and one for the others.

    `merge`: its recordings are one trace. An empty `version` is a checkout, whose issues are those of the newest.
    """
    issues = [one for one in issues_of(engine).at("memory") if one.specific and one.covers(version)]
    checked = CheckedTrace()
    for source in [Parts(tuple(run.recordings))] if merge else run.recordings:
        with suppress(InputError), open_memory(source) as trace:  # the check has named the error
            checked.header(trace.header.producer, trace.header.pools)
            for _, event in trace:
                checked.emit(event)
    own = [finding for _, finding in checked.found if finding.cause is None]
    found = Counter(next((one.id for one in issues if one.fits(finding)), "") for finding in own)
    others = found.pop("", 0)
    said = [f"known issue {name} of {engine}: {counted(times, 'finding')}" for name, times in found.items()]
    return [*said, f"no known issue: {counted(others, 'finding')}"] if others else said


def wrong_tokens(run: Run) -> list[str]:
    """A line for each wrong answer, with the pages read for the wrong token."""
    return [
        f"wrong token: request {one.rid} position {one.position}: {one.found} and not {one.expected}{_read(run, one)}"
        for one in run.differences[:SHOWN]
    ]


def _read(run: Run, difference: Difference) -> str:
    """The pages in the request's tables when the position before the wrong token was computed."""
    last = difference.position - 1
    for path in run.recordings:
        with open_trace(path) as reader:
            if not isinstance(reader, MemoryReader):
                continue
            tables: dict[str, tuple[str, dict[int, Page]]] = {}
            for number, event in reader:
                if isinstance(event, Map) and event.holder.startswith(difference.rid):
                    _, pages = tables.setdefault(event.table, (event.pool, {}))
                    pages.update(enumerate(_each(event.pages), event.index))
                if not isinstance(event, Begin):
                    continue
                names = [use.table for use in event.writes if use.table in tables and use.start <= last < use.stop]
                if names:
                    return f", computed from {_pages(reader.header.pools, names, tables, last)} (line {number})"
    return ""


def _each(pages: Pages) -> Iterator[Page]:
    for run in pages:
        yield from range(run[0], run[0] + run[1]) if isinstance(run, tuple) else [run]


def _pages(
    pools: Mapping[str, Pool], names: Sequence[str | None], tables: dict[str, tuple[str, dict[int, Page]]], last: int
) -> str:
    said = []
    for pool, pages in (tables[name] for name in names if name is not None):
        indices = range(last // pools[pool].page_size + 1)
        said.append(f"{pool} pages {', '.join(str(pages[index]) for index in indices if index in pages)}")
    return "; ".join(said)


def _summary(run: Run) -> str:
    traffic = run.traffic
    whole = sum(answer.asked > 0 for answer in traffic.answers)
    tokens = sum(len(answer.output) for answer in traffic.answers)
    drafts = "" if run.drafts is None else "{:,} drafts of which {:,} were right, ".format(*run.drafts)
    return (
        f"{whole:,} answers and {traffic.aborted:,} that were cut off, {tokens:,} tokens, {drafts}"
        f"{traffic.turns:,} turns of sessions, {traffic.orders:,} orders, {traffic.refused:,} refused; "
        f"{len(run.differences):,} answers with a wrong token."
    )
