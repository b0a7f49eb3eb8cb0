"""The command line."""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvconform.engines import releases as engines
from kvconform.engines.matrix.command import matrix
from kvconform.exploring.command import explore
from kvconform.features import UnknownFeatureError, lacks, needs
from kvconform.findings.report import Place, printable, show_finding
from kvconform.findings.shrink import Shortest, shortest_of_run, shortest_of_trace
from kvconform.findings.summary import show_check, show_rule, show_run
from kvconform.fuzzing import fuzz as fuzzing
from kvconform.fuzzing.machine import Failure, Tally
from kvconform.fuzzing.summary import show_fuzz
from kvconform.gallery.finders import bugs
from kvconform.implementations import load
from kvconform.protocol import LoadError
from kvconform.proving import prove as proving
from kvconform.traces.codec import VERSION, Header, TraceReader, TraceWriter, Vector, read_vector
from kvconform.traces.lines import InputError
from kvconform.traces.schema import schema as format_schema
from kvconform.traffic import replay
from kvconform.traffic.soak import soak
from kvconform.vectors.files import FOLDER, vector_files
from kvconform.vectors.runner import Factory, Outcome, check_trace, run_vector
from kvspec.rules import RULES

CONFORMS, BROKEN, UNUSABLE, FAULTY = 0, 1, 2, 70
"""Exit statuses: all conforms; a rule is broken or the implementation failed; the input or the call is wrong; kvspec
itself failed (sysexits.h calls it EX_SOFTWARE)."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Check the KV-cache bookkeeping of an inference engine against an executable specification.\n\n"
    "Exit status: 0 conforms, 1 a rule is broken or the implementation failed, 2 the input or the call is wrong, 70 "
    "kvspec itself failed.",
)

# What typer raises for any wrong call: the public BadParameter's base, which older versions have from click, newer
# ones from their own copy of it.
_USAGE_ERROR: type[typer.BadParameter] = typer.BadParameter.__mro__[2]


@app.command()
def run(
    vectors: Annotated[
        list[Path] | None, typer.Argument(metavar="VECTOR", help="Vector files; without any, all of kvspec's own.")
    ] = None,
    impl: Annotated[
        str, typer.Option(help="What to check: 'reference', 'cuda', 'module:Class' or 'bug:NAME'.")
    ] = "reference",
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each vector with all answers to DIR, as a trace.")
    ] = None,
) -> None:
    """Replay vectors against an implementation and check every answer.

    A vector is a short list of operations with a description and the rules that it exercises. Each one runs on a
    fresh implementation, up to the first answer that is not allowed. What needs something that the implementation
    declares to lack is not run. Examples: all vectors against the reference; all against your own engine; one,
    keeping the trace of it for 'kvspec check'.

        kvspec run

        kvspec run --impl my_engine:Adapter

        kvspec run turn.jsonl --record /tmp/traces
    """
    paths = vectors or vector_files()
    if not paths:
        raise typer.BadParameter(f"there are no vectors in {FOLDER}")
    read = [read_vector(path) for path in paths]
    factory = load(impl)
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
    lacking = _lacking(factory, impl)
    results, unsupported = [], []
    with _progress() as progress:
        for vector in progress.track(read, description="vectors"):
            if lacking and (missing := needs(vector) & lacking):
                unsupported.append((vector, missing))
            else:
                results.append((vector, _run_one(vector, factory, impl, record)))
    out = _Output()
    show_run(out, results, unsupported)
    for vector, outcome in results:
        if outcome.finding is not None:
            shortest = shortest_of_run(vector, outcome, factory)
            show_finding(out, Place(vector.path, outcome.line), outcome.finding, vector.header.config, shortest)
    conform = sum(outcome.finding is None for _, outcome in results)
    operations = sum(outcome.operations for _, outcome in results)
    aside = f", {len(unsupported)} are not supported" if unsupported else ""
    out.print(f"{impl}: {conform} of {len(results)} vectors conform{aside}; {operations:,} operations checked.")
    if not results:
        raise typer.BadParameter(f"implementation {impl!r} supports none of these vectors")
    raise typer.Exit(CONFORMS if conform == len(results) else BROKEN)


def _lacking(factory: Factory, impl: str) -> frozenset[str]:
    try:
        return lacks(factory)
    except UnknownFeatureError as error:
        raise typer.BadParameter(f"implementation {impl!r}: {error}") from error


def _run_one(vector: Vector, factory: Factory, impl: str, folder: Path | None) -> Outcome:
    if folder is None:
        return run_vector(vector, factory)
    header = Header(vector.header.kvspec, impl, vector.header.config)
    with TraceWriter(folder / f"{vector.name}.jsonl", header) as writer:
        return run_vector(vector, factory, writer.write)


@app.command()
def check(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE", help="Trace files; .gz and .zst as they are.")],
) -> None:
    """Check recorded traces: what an engine did and answered, one operation a line.

    Reads line by line, in memory that does not grow with the file. What the engine did not tell is not judged, and
    the rules that had too little to judge by are named.

        kvspec check engine.jsonl yesterday.jsonl.zst
    """
    out = _Output()
    statuses = {_check_one(out, path) for path in traces}
    raise typer.Exit(next(status for status in (BROKEN, UNUSABLE, CONFORMS) if status in statuses))


def _check_one(out: Console, path: Path) -> int:
    try:
        with TraceReader(path) as trace, _progress() as progress:
            task = progress.add_task(path.name, total=trace.lines.size() or None)
            outcome = check_trace(trace, lambda: progress.update(task, completed=trace.lines.bytes_read()))
            config = trace.header.config
    except InputError as error:
        _complain(str(error))
        return UNUSABLE
    show_check(out, path, outcome)
    if outcome.finding is not None:
        show_finding(out, Place(path, outcome.line), outcome.finding, config, shortest_of_trace(path, outcome))
    verdict = "conforms" if outcome.finding is None else "does not conform"
    out.print(Text(printable(f"{path}: {verdict}, {outcome.operations:,} operations checked.")), soft_wrap=True)
    return CONFORMS if outcome.finding is None else BROKEN


@app.command()
def fuzz(
    impl: Annotated[
        str, typer.Option(help="What to check: 'reference', 'cuda', 'module:Class' or 'bug:NAME'.")
    ] = "reference",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to look.")] = 60.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same sizes and operations.")] = 0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the shortest failing trace is written.")] = Path(
        "kvspec-failure.jsonl"
    ),
) -> None:
    """Draw operations until an implementation breaks a rule, and write the shortest trace that shows it.

    Sizes are small and lengths lie at page borders, so that most of the time the pool is nearly full. After each
    operation a snapshot is compared; at the end of each run everything is released, and the figures must add up.

        kvspec fuzz --impl my_engine:Adapter --seconds 300 --seed 7

        kvspec run kvspec-failure.jsonl --impl my_engine:Adapter       the failure again
    """
    factory = load(impl)
    console = _Output()
    with _progress() as progress:
        task = progress.add_task("fuzzing", total=seconds)
        fuzzed = fuzzing.fuzz(factory, seconds, seed, lambda tally, elapsed: _tell(progress, task, tally, elapsed))
    show_fuzz(console, fuzzed)
    if fuzzed.failure is None:
        console.print(Text(f"{impl}: no rule was broken in {fuzzed.seconds:.0f} s."), soft_wrap=True)
        raise typer.Exit(CONFORMS)
    _write_failure(console, fuzzed.failure, factory, impl, out)
    raise typer.Exit(BROKEN)


def _tell(progress: Progress, task: TaskID, tally: Tally, elapsed: float) -> None:
    progress.update(
        task,
        completed=elapsed,
        description=f"{tally.steps:,} operations of {len(tally.operations)} kinds, {len(tally.judged)} rules judged",
    )


def _write_failure(console: Console, failure: Failure, factory: Factory, impl: str, out: Path) -> None:
    shrunk = fuzzing.shortest(failure, factory)
    operations = failure.operations if shrunk is None else shrunk.demonstration.operations
    with TraceWriter(out, Header(VERSION, impl, failure.config)) as writer:
        for op in operations:
            writer.write(op)
    if shrunk is None:
        note = "It did not show again when the same operations were tried again: the implementation is not repeatable."
        show_finding(console, Place(out, len(operations) + 1), failure.finding, failure.config, Shortest(None, note))
    else:
        note = f"The shortest operations that still show it ({shrunk.size}):"
        finding = shrunk.demonstration.finding
        shortest = Shortest(shrunk.demonstration, note)
        show_finding(console, Place(out, len(operations) + 1), finding, failure.config, shortest)
    console.print(Text(f"{impl}: does not conform. The trace is in {out}."), soft_wrap=True)


@app.command()
def prove(
    page_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Page sizes to prove for; may be given several times.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 2,
) -> None:
    """Prove the contracts of the specification, and that its partition of rows and pages is inductive.

    CrossHair looks for a path through each function that breaks its contract; 'confirmed' means that there is none.
    z3 shows of each operation that it keeps rows and pages partitioned, for any number of pages, rows and holders.
    Needs the extra 'kvspec[prove]'.

        kvspec prove                     all contracts for page sizes 1, 2, 16 and 64

        kvspec prove --page-size 128     for one other page size
    """
    holds = proving.prove(_Output(), page_size or proving.PAGE_SIZES, jobs)
    raise typer.Exit(CONFORMS if holds else BROKEN)


@app.command()
def rules(
    rule: Annotated[str | None, typer.Argument(metavar="ID", help="One rule, for instance TAIL-1.")] = None,
) -> None:
    """Print the rules: each with its reason, and the document that it comes from.

    kvspec rules TAIL-1
    """
    if rule is not None and rule.upper() not in RULES:
        raise typer.BadParameter(f"no rule {rule!r}; 'kvspec rules' lists them")
    out = _Output()
    for one in RULES.values() if rule is None else (RULES[rule.upper()],):
        show_rule(out, one)


@app.command()
def schema() -> None:
    """Print the JSON Schema that each line of a trace or vector satisfies.

    kvspec schema > kvspec.schema.json
    """
    _Output().print(json.dumps(format_schema(), indent=2), markup=False, highlight=False, soft_wrap=True)


app.add_typer(replay.app, name="replay")
app.command()(soak)
app.command()(explore)
app.command()(bugs)
app.command()(matrix)
app.add_typer(engines.app, name="engines")


def main() -> NoReturn:
    """The command `kvspec`."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit status; what is wrong with it is told in one line on stderr."""
    try:
        return app(list(arguments), prog_name="kvspec", standalone_mode=False) or CONFORMS
    except (InputError, LoadError) as error:
        _complain(str(error))
    except _USAGE_ERROR as error:
        _complain(error.format_message())
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception:
        traceback.print_exc()
        return FAULTY
    return UNUSABLE


def _complain(reason: str) -> None:
    print(f"kvspec: {printable(' '.join(reason.split()))}", file=sys.stderr)


class _Output(Console):
    """Standard output. A reader who has seen enough ends the command quietly, as SIGPIPE does in other programs."""

    def __init__(self) -> None:
        # In a file or a pipe there is no edge of the screen to keep to; 120 columns hold every table.
        super().__init__(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + 13)


def _progress() -> Progress:
    """A progress bar on standard error, seen only on a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
