"""The output of `kvspec explore`: exhausted scopes, events reached, and the shortest traces to failures."""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvcheck.words import describe
from kvconform.exploring.checkpoint import Checkpoint
from kvconform.exploring.expanding import Spread
from kvconform.exploring.lockstep import Compared, compare
from kvconform.exploring.scope import Scope
from kvconform.exploring.search import Explored, exhaust
from kvconform.exploring.streams import Protocol, explore
from kvconform.features import check_supported, needs_of_config, under
from kvconform.findings.text import show_finding
from kvconform.findings.wording import printable
from kvconform.levels.requests.minimise import Shortest
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.signals import until_interrupted
from kvconform.vectors.runner import Counterexample, Factory
from kvspec.events import (
    CacheUnfinished,
    Complete,
    Decode,
    Evict,
    Extend,
    Launch,
    Operation,
    Report,
    Snapshot,
    Submit,
    Verify,
)
from kvspec.invariants import CHECKS


def exhaust_and_show(
    console: Console,
    scopes: Sequence[Scope],
    jobs: int,
    *,
    checker: bool = True,
    spread: Spread | None = None,
    checkpoint: Checkpoint | None = None,
) -> bool:
    """Exhaust scopes and print events reached. Returns whether all rules hold and all declared events were reached."""
    results: list[Explored] = []
    with until_interrupted():
        for place, scope in enumerate(scopes, start=1):
            if checkpoint is not None and scope.name in checkpoint.complete:
                result: Explored = checkpoint.complete[scope.name]
            else:
                with _progress() as progress:
                    shown = _Shown(progress, f"{scope.name} ({place} of {len(scopes)})")
                    result = exhaust(
                        scope, jobs=jobs, progress=shown, checker=checker, spread=spread, checkpoint=checkpoint
                    )
                if checkpoint is not None and result.holds:
                    checkpoint.after_scope(scope.name, result._replace(keys=frozenset()))
            results.append(result)
            show_witnesses(console, result)
            if result.finding is not None:
                _show(console, scope, result.finding)
    if checkpoint is not None and len(checkpoint.complete) == len(scopes):
        checkpoint.remove()
    show_explored(console, results)
    return all(result.holds for result in results)


def compare_and_show(console: Console, scopes: Sequence[Scope], name: str, factory: Factory) -> bool:
    """Explore an implementation beside the specification and print the results. Returns whether it conforms."""
    results = []
    with until_interrupted():
        configured = (scope._replace(config=under(factory, scope.config)) for scope in scopes)
        for place, scope in enumerate(configured, start=1):
            check_supported(factory, name, needs_of_config(scope.config))
            with _progress() as progress:
                shown = _Shown(progress, f"{scope.name} ({place} of {len(scopes)})")
                result = compare(scope, factory, progress=shown)
            results.append(result)
            if result.finding is not None:
                _show(console, scope, result.finding)
                break
    show_compared(console, results, name)
    return all(result.finding is None for result in results)


def interleave_and_show(console: Console, protocols: Sequence[Protocol]) -> bool:
    """Explore and print protocols and their mistakes. Returns whether the right ones hold and each mistake is found."""
    table = Table(
        "protocol", "states", "complete", "verdict", title="Protocols, in all interleavings", box=box.SIMPLE_HEAD
    )
    as_due = True
    for protocol in protocols:
        right, wrong = explore(protocol.actors), explore(protocol.wrong)
        holds = right.finding is None and right.ends > 0
        seen = wrong.finding is not None and wrong.finding.rule == protocol.rule
        as_due = as_due and holds and seen
        verdict = (
            Text("holds", "green")
            if holds
            else Text(describe(right.finding) if right.finding else "no end", "bold red")
        )
        table.add_row(protocol.name, f"{right.states:,}", f"{right.ends:,}", verdict)
        found = f"{wrong.finding.rule}, {describe(wrong.finding)}" if wrong.finding else "nothing is found"
        console.print(Text(f"{protocol.name}: if {protocol.mistake}: {found}", "" if seen else "bold red"))
        for event in wrong.trace:
            console.print(Text(f"  {msgspec.json.encode(event).decode()}"), soft_wrap=True)
    console.print(table)
    return as_due


PRINTED_EVERY = 60.0
"""Seconds between two lines of progress, if standard error is not a terminal."""


class _Shown:
    """Shows the progress of a search: on a terminal continuously, elsewhere in a line now and then."""

    def __init__(self, progress: Progress, name: str) -> None:
        """Show a search with this name, which begins now."""
        self._progress, self._name = progress, name
        self._task = progress.add_task(name)
        self._begin: tuple[float, int] | None = None
        self._printed = time.monotonic()

    def __call__(self, states: int, expanded: int, depth: int) -> None:
        """Show the states found and expanded, and the estimated rest, which grows with new states."""
        now = time.monotonic()
        if self._begin is None:
            self._begin = now, expanded
        seconds, done = now - self._begin[0], expanded - self._begin[1]
        left = f"; at least {(states - expanded) * seconds / done:,.0f} s more" if done else ""
        line = f"{self._name}: {states:,} states, {expanded:,} expanded, depth {depth}{left}"
        self._progress.update(self._task, description=line)
        if self._progress.disable and now - self._printed >= PRINTED_EVERY:
            self._printed = now
            print(f"kvspec: {line}", file=sys.stderr, flush=True)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(console: Console, scope: Scope, finding: Counterexample) -> None:
    """Print a failure, and the trace to it."""
    count = length(finding.operations)
    note = f"The shortest operations that lead to it in the scope {scope.name} ({count}), found breadth-first."
    place = place_of(finding.finding, f"scope {scope.name}")
    show_finding(console, finding_of(finding.finding, scope.config, place, Shortest(finding, note)))


def length(operations: Iterable[Operation[Any]]) -> int:
    """The number of operations of a trace, without snapshots and reports."""
    return sum(not isinstance(op, (Snapshot, Report)) for op in operations)


def show_explored(console: Console, results: Iterable[Explored]) -> None:
    """Print one row for each scope."""
    table = _table("Exhausted", "states", "transitions", "depth", "seconds", "states/s")
    for one in results:
        verdict = "every rule holds"
        if one.finding is not None:
            verdict = "a rule is broken"
        elif one.missing:
            verdict = f"{len(one.missing)} not reached"
        numbers = f"{one.states:,}", f"{one.transitions:,}", f"{one.depth}", f"{one.seconds:.1f}"
        speed = f"{one.states / one.seconds:,.0f}"
        table.add_row(one.scope.name, *numbers, speed, Text(verdict, "green" if one.holds else "bold red"))
    console.print(table)
    console.print(Text(f"Checked in each state: {', '.join(CHECKS)}; over all of them: LIVE-1."), soft_wrap=True)


def show_compared(console: Console, results: Iterable[Compared], name: str) -> None:
    """Print one row for each scope in which an implementation was explored."""
    table = _table(f"Explored beside the specification: {name}", "states", "answers", "depth", "seconds")
    for one in results:
        good = one.finding is None
        numbers = f"{one.states:,}", f"{one.transitions:,}", f"{one.depth}", f"{one.seconds:.1f}"
        verdict = Text("conforms in every state" if good else "does not conform", "green" if good else "bold red")
        table.add_row(one.scope.name, *numbers, verdict)
    console.print(table)


def _table(title: str, *numbers: str) -> Table:
    table = Table("scope", title=title, box=box.SIMPLE_HEAD)
    for column in numbers:
        table.add_column(column, justify="right")
    table.add_column("verdict")
    return table


def show_witnesses(console: Console, result: Explored) -> None:
    """Print a shortest trace to each event reached, and name the declared events that were not reached."""
    table = Table("reached", "in", "by", title=f"{result.scope.name}: {result.scope.about}", box=box.SIMPLE_HEAD)
    for label, trace in sorted(result.witnesses.items(), key=lambda one: (len(one[1]), one[0])):
        table.add_row(label, str(len(trace)), Text(printable("; ".join(map(brief, trace))), overflow="fold"))
    for label in sorted(result.missing):
        table.add_row(Text(label, "bold red"), "-", Text("declared, but not reached", "bold red"))
    console.print(table)


def brief(op: Operation[Any]) -> str:
    """An operation in a few words."""
    name = str(op.__struct_config__.tag)
    match op:
        case Submit():
            return f"{name} {op.req} of {len(op.tokens)}"
        case Extend():
            return f"{name} {', '.join(f'{req} to {seq_len}' for req, seq_len in op.reqs)}"
        case Decode():
            return f"{name} {', '.join(op.reqs)}{f' by {op.n}' if op.n > 1 else ''}"
        case Launch():
            return f"{name} {op.launch} of {', '.join(op.reqs)}"
        case Complete():
            return f"{name} {op.launch}"
        case Verify():
            return f"{name} {op.req}: {op.accepted} accepted, {len(op.tokens)} kept"
        case CacheUnfinished():
            return f"{name} {op.req}{', chunked' if op.chunked else ''}"
        case Evict():
            pools = ((op.n, "pages"), (op.window, "window pages"), (op.states, "states"))
            return f"{name} {', '.join(f'{count} {pool}' for count, pool in pools if count) or 'nothing'}"
    return f"{name} {getattr(op, 'req', '') or getattr(op, 'session', '')}".rstrip()
