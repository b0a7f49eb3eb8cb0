"""The command line."""

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from kvconform.checked import RuleBroken
from kvconform.checking import check
from kvconform.console import BROKEN, CONFORMS, FAULTY, UNUSABLE, Output, complain, progress_bar
from kvconform.engines import releases as engines
from kvconform.engines.matrix.command import matrix
from kvconform.exploring.command import explore
from kvconform.features import UnknownFeatureError, lacks, needs
from kvconform.findings.accepted import Accepted, read_accepted
from kvconform.findings.report import Place, show_finding
from kvconform.findings.shrink import Shortest, shortest_of_run
from kvconform.findings.summary import show_accepted, show_rule, show_run
from kvconform.fuzzing import fuzz as fuzzing
from kvconform.fuzzing.machine import Failure, Tally
from kvconform.fuzzing.summary import show_fuzz
from kvconform.gallery.finders import bugs
from kvconform.implementations import load
from kvconform.memory.codec import level_of_file, read_memory_vector
from kvconform.memory.vectors import run_memory_vector, show_memory_run
from kvconform.protocol import LoadError
from kvconform.proving import prove as proving
from kvconform.traces.codec import VERSION, Header, TraceWriter, Vector, read_vector
from kvconform.traces.lines import InputError
from kvconform.traces.schema import schema as format_schema
from kvconform.traffic import replay
from kvconform.traffic.soak import soak
from kvconform.vectors.files import FOLDER, memory_vector_files, vector_files
from kvconform.vectors.runner import Factory, Outcome, run_vector
from kvspec.memory.rules import MEMORY_RULES
from kvspec.rules import RULES

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
    accept: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Findings that are known (TOML): counted, and not failed.")
    ] = None,
) -> None:
    """Replay vectors against an implementation and check every answer.

    A vector is a short list of operations with a description and the rules that it exercises. Each one runs on a
    fresh implementation, up to the first answer that is not allowed. What needs something that the implementation
    declares to lack is not run. Vectors of the memory level ask no implementation: the law alone judges them.
    Examples: all vectors against the reference; all against your own engine; one, keeping the trace of it for
    'kvspec check'.

        kvspec run

        kvspec run --impl my_engine:Adapter

        kvspec run turn.jsonl --record /tmp/traces
    """
    paths = vectors or [*vector_files(), *memory_vector_files()]
    if not paths:
        raise typer.BadParameter(f"there are no vectors in {FOLDER}")
    by_law = [path for path in paths if level_of_file(path) == "memory"]
    memory = [read_memory_vector(path) for path in by_law]
    read = [read_vector(path) for path in paths if path not in by_law]
    out = Output()
    statuses = {CONFORMS}
    if memory:
        results = [(vector, run_memory_vector(vector)) for vector in memory]
        show_memory_run(out, results)
        statuses.update(BROKEN for _, result in results if result.mismatch is not None)
    if read:
        statuses.add(_run_all(out, read, impl, record, read_accepted(accept)))
    raise typer.Exit(max(statuses))


def _run_all(out: Console, read: list[Vector], impl: str, record: Path | None, accepted: Accepted) -> int:
    factory = load(impl)
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
    lacking = _lacking(factory, impl)
    results, unsupported = [], []
    with progress_bar() as progress:
        for vector in progress.track(read, description="vectors"):
            if lacking and (missing := needs(vector) & lacking):
                unsupported.append((vector, missing))
            else:
                results.append((vector, _run_one(vector, factory, impl, record)))
    if not results:
        raise typer.BadParameter(f"implementation {impl!r} supports none of these vectors")
    failed = [(vector, outcome) for vector, outcome in results if not _conforms(outcome, accepted)]
    show_run(out, results, unsupported)
    for vector, outcome in failed:
        if outcome.finding is not None:
            shortest = shortest_of_run(vector, outcome, factory)
            show_finding(out, Place(vector.path, outcome.line), outcome.finding, vector.header.config, shortest)
    show_accepted(out, accepted)
    operations = sum(outcome.operations for _, outcome in results)
    aside = f", {len(unsupported)} are not supported" if unsupported else ""
    known = f", {accepted.count.total()} up to what is accepted" if accepted.count.total() else ""
    conform = f"{len(results) - len(failed)} of {len(results)} vectors conform{known}{aside}"
    out.print(f"{impl}: {conform}; {operations:,} operations checked.")
    return BROKEN if failed else CONFORMS


def _conforms(outcome: Outcome, accepted: Accepted) -> bool:
    """Whether a vector came out right, up to a finding that is known."""
    match outcome.finding:
        case RuleBroken() as broken:
            return accepted.take(broken.rule.id, str(broken.op.__struct_config__.tag), broken.what)
        case finding:
            return finding is None


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
    console = Output()
    with progress_bar() as progress:
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
    holds = proving.prove(Output(), page_size or proving.PAGE_SIZES, jobs)
    raise typer.Exit(CONFORMS if holds else BROKEN)


@app.command()
def rules(
    rule: Annotated[str | None, typer.Argument(metavar="ID", help="One rule, for instance TAIL-1.")] = None,
) -> None:
    """Print the rules: each with its reason, and the document that it comes from.

    kvspec rules TAIL-1
    """
    known = {**RULES, **MEMORY_RULES}
    if rule is not None and rule.upper() not in known:
        raise typer.BadParameter(f"no rule {rule!r}; 'kvspec rules' lists them")
    out = Output()
    for one in known.values() if rule is None else (known[rule.upper()],):
        show_rule(out, one)


@app.command()
def schema() -> None:
    """Print the JSON Schema that each line of a trace or vector satisfies.

    kvspec schema > kvspec.schema.json
    """
    Output().print(json.dumps(format_schema(), indent=2), markup=False, highlight=False, soft_wrap=True)


app.add_typer(replay.app, name="replay")
app.command()(check)
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
        complain(str(error))
    except _USAGE_ERROR as error:
        complain(error.format_message())
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception:
        traceback.print_exc()
        return FAULTY
    return UNUSABLE
