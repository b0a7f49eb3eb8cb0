"""`kvspec prove`: CrossHair over every contract, z3 over the memory model, and the tables of their verdicts."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from itertools import chain
from time import perf_counter
from typing import Literal, TypeVar

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvconform.errors import LoadError
from kvconform.signals import caught, until_interrupted
from kvconform.subprocesses import end_all, python, run

PAGE_SIZES = (1, 2, 16, 64)

MODULES = (
    "kvspec.pages",
    "kvspec.lengths",
    "kvspec.batch",
    "kvspec.window",
    "kvspec.states",
    "kvspec.ownership",
    "kvcheck.pages",
)
"""The modules with contracts."""

_SEQUENCE = "a sequence of any length has endless paths; tests try random ones instead"

UNCONFIRMED: Mapping[str, str] = {
    "kvspec.pages:beginning": _SEQUENCE,
    "kvspec.pages:expand": _SEQUENCE,
    "kvspec.pages:compress": _SEQUENCE,
}
"""Function with a contract that cannot be confirmed -> the reason. Any other unconfirmed contract is a failure."""

ANY = "any"
"""A page size that the solver does not know."""

SECONDS = 30
"""Seconds of processor time for one condition. The slowest confirmed one needs a hundredth of it."""

SECONDS_IN_VAIN = 2
"""The same if no confirmation is expected."""

TOGETHER = 4
"""The number of functions that one process proves: its start takes as long as one proof."""

Outcome = Literal["confirmed", "unconfirmed", "refuted"]
StepOutcome = Literal["proved", "unproved", "refuted"]
_STYLES = {"confirmed": "green", "unconfirmed": "yellow", "refuted": "bold red", "unproved": "bold red"}

T = TypeVar("T")
R = TypeVar("R")


class ContractVerdict(msgspec.Struct):
    """The verdict on all conditions of one function's contract at one page size."""

    function: str
    page_size: str
    """A number, or `ANY`."""
    conditions: int
    outcome: Outcome
    detail: str
    """The conditions that were refuted, with counterexamples."""
    seconds: float


class StepVerdict(msgspec.Struct):
    """The verdict on one clause about an event, a step or an operation."""

    about: str
    """Its kind and its name."""
    when: str
    rule: str
    outcome: StepOutcome
    detail: str
    """The clause that was not proved, with a counterexample if a small one was found."""
    seconds: float


def prove(console: Console, page_sizes: Sequence[int] = PAGE_SIZES, jobs: int = 2) -> bool:
    """Prove the claims and print the verdicts. Returns whether none is refuted, and only declared ones are unconfirmed.

    Raises:
        LoadError: CrossHair or z3 is not installed.
    """
    if find_spec("crosshair") is None or find_spec("z3") is None:
        raise LoadError("the proofs need CrossHair and z3: pip install 'kvspec[prove]'")
    contracts = prove_contracts(console, page_sizes, jobs)
    checker = bool(caught()) or prove_memory(console, jobs)
    return contracts and checker


def prove_contracts(
    console: Console,
    page_sizes: Sequence[int] = PAGE_SIZES,
    jobs: int = 2,
    modules: Sequence[str] = MODULES,
    unconfirmed: Mapping[str, str] = UNCONFIRMED,
) -> bool:
    """Prove every contract at each page size, try any size, and print a table. Returns whether all is as declared.

    With an unknown page size the arithmetic is nonlinear, and a solver may give up on a true condition. So if a
    function depends on the page size, that case counts only if it is refuted.
    """
    started = perf_counter()
    names = ",".join(modules)
    (listed,) = _ask(list[tuple[str, bool]], "contracts", names)

    def prove_some(functions: Sequence[tuple[str, bool]]) -> list[ContractVerdict]:
        asked = []
        for name, sized in functions:
            limits = {str(size): SECONDS for size in page_sizes} if sized else {}
            limits[ANY] = SECONDS_IN_VAIN if sized or name in unconfirmed else SECONDS
            asked += [name, *(f"{size}={limit}" for size, limit in limits.items())]
        return _ask(ContractVerdict, "contracts", names, *asked)

    batches = [tuple(listed[at : at + TOGETHER]) for at in range(0, len(listed), TOGETHER)]
    results = _in_parallel(prove_some, batches, jobs, "contracts")
    proved = [verdict for verdicts in results.values() for verdict in verdicts]
    sizes = [*map(str, page_sizes), ANY]
    table = Table("function", "conditions", *sizes, "seconds", title="Contracts, by page size", box=box.SIMPLE_HEAD)
    faults, remarks = [], []
    for name, sized in chain.from_iterable(results):
        verdicts = [verdict for verdict in proved if verdict.function == name]
        outcomes = {verdict.page_size: verdict.outcome for verdict in verdicts}
        cells = [_marked(outcomes.get(size, "")) for size in sizes]
        seconds = sum(verdict.seconds for verdict in verdicts)
        table.add_row(name.removeprefix("kvspec."), str(verdicts[0].conditions), *cells, f"{seconds:.1f}")
        faults += [
            f"{name} is refuted at page size {verdict.page_size}: {verdict.detail}"
            for verdict in verdicts
            if verdict.outcome == "refuted"
        ]
        open_at = [size for size in sizes if outcomes.get(size) == "unconfirmed" and not (sized and size == ANY)]
        if open_at and name in unconfirmed:
            remarks.append(f"{name} is unconfirmed, as declared: {unconfirmed[name]}.")
        elif open_at:
            faults.append(f"{name} is unconfirmed at page size {', '.join(open_at)}, which is not declared")
        elif name in unconfirmed and set(outcomes.values()) == {"confirmed"}:
            faults.append(f"{name} is declared to be unconfirmed, but is not")
    confirmed = [verdict for verdict in proved if verdict.outcome == "confirmed"]
    remarks.append(
        f"{sum(verdict.conditions for verdict in confirmed)} conditions, counted at each page size, are confirmed over "
        f"all paths in {perf_counter() - started:.0f} s. Conditions that only 'any' leaves unconfirmed are nonlinear."
    )
    return _show(console, table, faults, remarks)


def prove_memory(
    console: Console, jobs: int = 2, kinds: Sequence[str] = ("move", "initial", "event", "step", "operation")
) -> bool:
    """Prove moves, events, steps and operations, and print a table. Returns whether all are proved."""
    started = perf_counter()
    (listed,) = _ask(dict[str, list[str]], "memory")

    def prove_one(kind: str) -> list[StepVerdict]:
        return _ask(StepVerdict, "memory", kind, *listed[kind])

    results = _in_parallel(prove_one, kinds, jobs, "memory model")
    table = Table(
        "", "", "clauses", "verdict", title="The memory model and the operations, of any size", box=box.SIMPLE_HEAD
    )
    table.add_column("seconds", justify="right")
    faults = []
    for kind, verdicts in results.items():
        for name in listed[kind]:
            here = [verdict for verdict in verdicts if verdict.about == f"{kind} {name}"]
            failed = [verdict for verdict in here if verdict.outcome != "proved"]
            verdict = _marked(failed[0].outcome) if failed else Text("proved for any size", "green")
            table.add_row(kind, name, str(len(here)), verdict, f"{sum(verdict.seconds for verdict in here):.1f}")
            faults += [f"{bad.about}, {bad.when}: {bad.rule} is {bad.outcome}: {bad.detail}" for bad in failed]
            if not here:
                faults.append(f"nothing is proved of {kind} {name}")
    rules = dict.fromkeys(verdict.rule for verdicts in results.values() for verdict in verdicts)
    clauses = sum(len(verdicts) for verdicts in results.values())
    remark = f"{clauses} clauses of {', '.join(rules)} in {perf_counter() - started:.0f} s."
    return _show(console, table, faults, [remark])


def _show(console: Console, table: Table, faults: Sequence[str], remarks: Sequence[str]) -> bool:
    """Print a table, its faults and its remarks. Returns whether there is no fault."""
    console.print(table)
    for fault in faults:
        console.print(Text(fault, "bold red"), soft_wrap=True)
    for remark in remarks:
        console.print(Text(remark), soft_wrap=True)
    return not faults


def _marked(outcome: str) -> Text:
    return Text(outcome, _STYLES.get(outcome, ""))


def _in_parallel(work: Callable[[T], R], items: Sequence[T], jobs: int, what: str) -> dict[T, R]:
    """The result for each item, in their order, `jobs` at a time, under a progress bar on a terminal.

    An interrupt ends the running work, and no further work starts; the results so far are returned.
    """
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with bar, ThreadPoolExecutor(jobs) as pool:
        futures = {item: pool.submit(work, item) for item in items}
        with until_interrupted():
            for _ in bar.track(as_completed(futures.values()), total=len(futures), description=what):
                pass
            return {item: future.result() for item, future in futures.items()}
        pool.shutdown(wait=False, cancel_futures=True)
        ended = {item: future for item, future in futures.items() if future.done() and not future.cancelled()}
        end_all()
    return {item: future.result() for item, future in ended.items()}


def _ask(kind: type[R], module: str, *arguments: str) -> list[R]:
    """The verdicts of a prover, one value of `kind` a line.

    It runs in a separate process: contracts are attached while kvspec is imported, and CrossHair and z3 have one
    state a process.
    """
    command = python(f"kvconform.proving.{module}", *arguments)
    done = run(command, env={**os.environ, "KVSPEC_CONTRACTS": "1"})
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr.decode(errors='replace')}")
    return [msgspec.json.decode(line, type=kind) for line in done.stdout.splitlines()]
