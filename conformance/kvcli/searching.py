"""`kvspec fuzz`, `soak`, `tiers`, `explore`, `prove`, `bugs`: searches for a broken rule, and tests of the searches."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvcli.options import BaselineFile, Html, Impl, Ray
from kvconform.console import BROKEN, CONFORMS, Output, progress_bar
from kvconform.errors import like

if TYPE_CHECKING:
    from kvconform.fuzzing.fuzz import Budget
    from kvconform.traffic.soak import Soaked

BUG_OPERATIONS = 300_000
"""The most operations drawn for one defect. Unlike a time limit, this gives the same result on a busy machine."""


def fuzz(
    impl: Impl = "reference",
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Time limit; 60 unless --operations is given.")] = None,
    operations: Annotated[
        int | None, typer.Option(min=1, help="Operations to draw; without --seconds there is no time limit.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same sizes and operations.")] = 0,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="File for the shortest failing trace; those of other findings go beside it."),
    ] = Path("kvspec-failure.jsonl"),
    baseline: BaselineFile = None,
    html: Html = None,
    ray: Ray = None,
) -> None:
    """Try random operations, find the rules that an implementation breaks, and write the shortest trace of each.

    Seven of eight runs begin with the operations of a vector, and go on at random. The others draw their sizes. Each
    run draws how full its pool is, how many launches are in flight, how prompts branch, and which operations are
    likely. Lengths lie at or next to page borders. After each operation a snapshot is compared. At the end everything
    is released, and the figures must add up. A run ends at its first finding. Further runs follow until the time or
    the number of operations is used up.

        kvspec fuzz --impl my_engine:Adapter --seconds 300 --seed 7

        kvspec fuzz --impl my_engine:Adapter --operations 100000       as long, however busy the machine

        kvspec run kvspec-failure.jsonl --impl my_engine:Adapter       replay the failure
    """
    from kvconform.fleet.cluster import connected
    from kvconform.fuzzing.fuzz import runs
    from kvconform.fuzzing.summary import fuzz_and_show
    from kvconform.implementations import is_own, load

    budget, factory = _budget(seconds, operations), load(impl)
    show = partial(
        fuzz_and_show, Output(), progress_bar(), factory, impl, budget, out=out, baseline_file=baseline, html=html
    )
    if ray is None:
        conforms = show(runs(factory, budget, seed))
    else:
        from kvconform.fleet.fuzzing import fuzzed

        with connected(ray, code=not is_own(impl)) as cluster:
            conforms = show(fuzzed(cluster, factory, impl, budget, seed))
    raise typer.Exit(CONFORMS if conforms else BROKEN)


def _budget(seconds: float | None, operations: int | None, usual_seconds: float = 60) -> "Budget":
    """The requested limits, or the usual time limit if there are none."""
    from kvconform.fuzzing.fuzz import Budget

    if seconds is None and operations is None:
        return Budget(usual_seconds)
    return Budget(seconds or float("inf"), operations or float("inf"))


def soak(
    impl: Impl = "reference",
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Time limit; 20 unless --operations is given.")
    ] = None,
    operations: Annotated[
        int | None, typer.Option(min=1, help="Operations; without --minutes there is no time limit.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same sizes and requests.")] = 0,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a trace of each run, for 'kvspec check'.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File for the shortest trace of a finding.")] = Path(
        "kvspec-failure.jsonl"
    ),
    ray: Ray = None,
) -> None:
    """Run traffic through the reference scheduler in every combination of its modes, and check every answer.

    Pools are small, a snapshot is compared after every operation, and a scheduler that makes no progress breaks LIVE-1.
    The run ends at the first finding, with its shortest trace, or when the time is up.

        kvspec soak --minutes 5 --seed 3

        kvspec soak --operations 20000 --record traces; kvspec check traces/*
    """
    from kvconform.fleet.cluster import connected
    from kvconform.implementations import is_own, load
    from kvconform.traffic import soak as soaking

    console = Console(width=None if sys.stdout.isatty() else 120)
    budget, factory = _budget(None if minutes is None else minutes * 60, operations, usual_seconds=20 * 60), load(impl)
    if record is not None and ray is not None:
        raise typer.BadParameter("--record and --ray exclude each other")
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)

    def show(endless: Iterator["Soaked"]) -> bool:
        return soaking.soak(console, progress_bar(), endless, factory, impl, budget, out)

    if ray is None:
        conforms = show(soaking.soaked(factory, seed, record))
    else:
        from kvconform.fleet.fuzzing import soaked

        with connected(ray, code=not is_own(impl)) as cluster:
            conforms = show(soaked(cluster, factory, impl, seed))
    raise typer.Exit(CONFORMS if conforms else BROKEN)


def tiers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="MUTANT", help="Mutants to find, or 'all'; by default none.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes of walks without mutants.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same walks.")] = 0,
) -> None:
    """Check random walks of the reference's host tier against the memory model, or find its mutants.

    The host tier is a small engine with a device pool, a host pool and a storage. Its forward passes overlap, its
    transfers complete late or fail, and its requests end at any moment. The reference scheduler drives it in some
    walks. Without a mutant no walk may have a finding; each mutant must have one.

        kvspec tiers --minutes 5

        kvspec tiers load-unfenced pass-does-not-wait-for-load

        kvspec tiers all
    """
    from kvconform.gallery import walking
    from kvconform.gallery.tiers import TIER_BUGS

    for name in names or ():
        if name not in TIER_BUGS and name != "all":
            raise typer.BadParameter(f"no mutant {name!r}; they are: {', '.join(TIER_BUGS)}")
    if names:
        chosen = list(TIER_BUGS) if "all" in names else list(dict.fromkeys(names))
        right = walking.show_mutants(Output(), progress_bar(), chosen, seed)
    else:
        right = walking.soak(Output(), progress_bar(), minutes, seed)
    raise typer.Exit(CONFORMS if right else BROKEN)


def explore(
    scope: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A scope; may be given several times. By default all.")
    ] = None,
    impl: Annotated[
        str | None,
        typer.Option(
            help="Explore an implementation beside the model: 'reference', 'cuda', 'module:Class' or 'exec:COMMAND'."
        ),
    ] = None,
    bug: Annotated[
        str | None, typer.Option(metavar="NAME", help="Explore a defect of the gallery beside the model.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATION", help="Leave an operation out; a wrong name prints the right ones."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; with --impl or --bug always one.")] = os.cpu_count() or 1,
    checker: Annotated[
        bool,
        typer.Option(
            "--memory-model/--no-memory-model",
            help="Also check each step against the memory model, which takes four times as long.",
        ),
    ] = True,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Go on from FILE if it exists, and save the search there."),
    ] = None,
    ray: Ray = None,
) -> None:
    """Visit every reachable state of small systems and check every rule in each of them.

    A scope declares the requests that may arrive, and the operations on them. Each reachable state is visited,
    breadth-first; states that differ only in page and row numbers count as one. The shortest trace to each event worth
    reaching is printed. The run fails if it does not reach an event that the scope declares. At the end LIVE-1 is
    checked over all states.

    Protocols of the memory level, with two streams and a transfer engine, are scopes too. Of a correct protocol all
    interleavings are visited. Of one with a mistake the shortest trace that breaks a rule is printed.

        kvspec explore                                        all scopes

        kvspec explore --checkpoint explored                  go on after an interruption

        kvspec explore --scope tiny --impl my_engine:Adapter  an implementation, compared in every state

        kvspec explore --scope hold-and-wait --without preempt    the deadlock that preempt prevents
    """
    from kvconform.exploring.checkpoint import Checkpoint
    from kvconform.exploring.report import compare_and_show, exhaust_and_show, interleave_and_show
    from kvconform.exploring.scope import BESIDE, SCOPES, scope_named
    from kvconform.exploring.streams import PROTOCOLS
    from kvconform.fleet.cluster import connected
    from kvconform.gallery.mutants import BUGS
    from kvconform.implementations import load

    alone = impl is None and bug is None
    if ray is not None and not alone:
        raise typer.BadParameter("--ray explores the specification, not an implementation beside it")
    if checkpoint is not None and not alone:
        raise typer.BadParameter("--checkpoint is for the specification, not for an implementation beside it")
    names = scope or ([*SCOPES, *PROTOCOLS] if alone else BESIDE)
    protocols = [PROTOCOLS[name] for name in names if name in PROTOCOLS]
    if protocols and not alone:
        raise typer.BadParameter(f"{protocols[0].name!r} is a protocol of the memory level: no manager takes part")
    try:
        chosen = [scope_named(name, without or ()) for name in names if name not in PROTOCOLS]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if impl is not None and bug is not None:
        raise typer.BadParameter("give --impl or --bug, not both")
    if bug is not None and (bug not in BUGS or BUGS[bug].is_of_scheduler):
        raise typer.BadParameter(f"no defect {bug!r} of a memory manager; 'kvspec bugs' lists them")
    console = Console(width=None if Console().is_terminal or "COLUMNS" in os.environ else 120)
    if bug is not None:
        holds = compare_and_show(console, chosen, bug, BUGS[bug].factory)
    elif impl is not None:
        holds = compare_and_show(console, chosen, impl, load(impl))
    else:
        with nullcontext() if ray is None or not chosen else connected(ray) as cluster:
            spread = None if cluster is None else cluster.in_order
            noted = None if checkpoint is None else Checkpoint(checkpoint, chosen, checker=checker)
            holds = not chosen or exhaust_and_show(
                console, chosen, jobs, checker=checker, spread=spread, checkpoint=noted
            )
        holds = (not protocols or interleave_and_show(console, protocols)) and holds
    raise typer.Exit(CONFORMS if holds else BROKEN)


def prove(
    page_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Page sizes to prove for; may be given several times.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at the same time.")] = 2,
) -> None:
    """Prove the contracts of the specification, and the memory effect of each operation for pools of any size.

    CrossHair looks for a path through each function that breaks its contract; 'confirmed' means that there is none.
    z3 proves which properties each event keeps, and that no operation emits a forbidden event. Both need the extra
    'prove' of kvspec.

        kvspec prove                     all contracts for page sizes 1, 2, 16 and 64

        kvspec prove --page-size 128     for one other page size
    """
    from kvconform.proving import prove as proving

    holds = proving.prove(Output(), page_size or proving.PAGE_SIZES, jobs)
    raise typer.Exit(CONFORMS if holds else BROKEN)


def bugs(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Defects; by default all.")] = None,
    fuzz: Annotated[bool, typer.Option("--fuzz", help="Also fuzz each defect, and print the table.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="With --fuzz: seconds for each defect, instead of --operations.")
    ] = None,
    operations: Annotated[
        int | None,
        typer.Option(min=1, help=f"With --fuzz: operations to draw for each defect; by default {BUG_OPERATIONS:,}."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same operations and traffic.")] = 0,
) -> None:
    """The bug gallery: defects that engines really had, some synthetic ones, and the checks that find each of them.

    Each defect is a small mutant of the reference implementation. With a NAME, the command prints the defect, its
    shortest trace in a vector, and the rule that it breaks. Without one, or with --fuzz, it prints a table of the
    checks that find each defect. The exit status is 1 if a defect is not found.

        kvspec bugs retract-tail-orphaned

        kvspec bugs --fuzz
    """
    from kvconform.fuzzing.fuzz import Budget
    from kvconform.gallery.description import describe_bug
    from kvconform.gallery.finders import examine_all, shortest_without_fuzzing, show_table
    from kvconform.gallery.mutants import BUGS
    from kvconform.vectors.files import read_vectors

    for name in names or ():
        if name not in BUGS:
            raise typer.BadParameter(f"no defect {name!r}; 'kvspec bugs' lists them{like(name, BUGS)}")
    if not fuzz and (seconds is not None or operations is not None):
        raise typer.BadParameter("--seconds and --operations are for --fuzz")
    chosen, console = [BUGS[name] for name in dict.fromkeys(names or BUGS)], Output()
    if names and not fuzz:
        vectors, shown = read_vectors(), []
        for bug in chosen:
            found, shortest = shortest_without_fuzzing(bug, vectors, seed)
            describe_bug(console, bug, shortest and shortest.finding, [one.vector.name for one in found])
            shown.append(shortest)
        raise typer.Exit(BROKEN if None in shown else CONFORMS)
    budget = Budget(operations=BUG_OPERATIONS) if seconds is operations is None else _budget(seconds, operations)
    specimens = examine_all(chosen, budget if fuzz else None, seed)
    for specimen in specimens if names else ():
        describe_bug(console, specimen.bug, specimen.shortest and specimen.shortest.finding)
    show_table(console, specimens)
    raise typer.Exit(CONFORMS if all(specimen.is_found for specimen in specimens) else BROKEN)
