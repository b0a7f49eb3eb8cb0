"""States per second: `kvspec explore` beside spin, on one small scope that both exhaust.

    python benchmarks/explore.py [--jobs N]
    python benchmarks/explore.py --profile      where the time of one process goes

`explore.pml` is the scope as a Promela model, which says what it covers. Both must count the same states, or they do
not explore the same system and the run fails. Spin compiles a hand-written model of a few counters; kvspec runs the
specification itself, with page numbers, prefix store and content, and checks every rule in each state.
Needs spin and a C compiler (Debian: `apt-get install spin gcc`); without them only kvspec is measured. Contracts are
off unless KVSPEC_CONTRACTS=1 is set.
"""

import argparse
import cProfile
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from kvconform.exploring import Arrival, Scope, canonical, exhaust
from kvconform.oracle import Model, NotedState
from kvspec import invariants
from kvspec.events import Config

MODEL = Path(__file__).with_name("explore.pml")

PROMPTS = (3, 2, 1)
OUTPUTS = 3
SCOPE = Scope(
    name="plain",
    about="three plain requests, without a prefix store",
    config=Config(page_size=2, num_pages=6, num_rows=3, max_context_len=8, prefix_cache=False),
    arrivals=tuple(Arrival(name, (0,) * length, outputs=OUTPUTS) for name, length in zip("abc", PROMPTS, strict=True)),
    operations=frozenset(("retract", "abort")),
    sometimes=frozenset(("request retracted", "running request aborted", "row withheld")),
)


class Measured(NamedTuple):
    who: str
    states: int
    transitions: int
    seconds: float


def measure_kvspec(jobs: int) -> Measured:
    result = exhaust(SCOPE, jobs=jobs)
    if not result.holds:
        raise SystemExit(f"the scope does not hold: {result.finding or result.missing}")
    who = f"kvspec explore, {jobs} process{'es' if jobs > 1 else ''}"
    return Measured(who, result.states, result.transitions, result.seconds)


def compile_spin(folder: Path, *options: str) -> Path:
    sizes = {"P": SCOPE.config.page_size, "PAGES": SCOPE.config.num_pages, "ROWS": SCOPE.config.num_rows}
    sizes |= {f"PROMPT{number}": length for number, length in enumerate(PROMPTS)} | {"OUTPUTS": OUTPUTS}
    defines = [f"-D{name}={value}" for name, value in sizes.items()]
    # -o2: without it spin leaves variables out of the state that are only written, and counts fewer states.
    subprocess.run(["spin", "-a", "-o2", *defines, str(MODEL)], cwd=folder, check=True, capture_output=True)
    program = folder / "".join(("pan", *options))
    command = ["gcc", "-O2", "-DSAFETY", "-DMEMLIM=2048", *options, "-o", str(program), "pan.c"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return program


def measure_spin(who: str, *options: str) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        program = compile_spin(Path(name), *options)
        begin = time.perf_counter()
        done = subprocess.run([str(program), "-m1000000", "-w22"], cwd=name, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
    if "errors: 0" not in done.stdout:
        raise SystemExit(f"spin found an error:\n{done.stdout}")
    stored, transitions = (
        int(re.search(rf"(\d+)\s+{what}", done.stdout)[1])  # type: ignore[index]
        for what in ("states, stored", "transitions")
    )
    # Less the state before the prompts are set; spin counts it, and the step from it, as a transition each.
    return Measured(who, stored - 1, transitions - 2, seconds)


def show(results: list[Measured]) -> None:
    table = Table(title=f"{SCOPE.about}: exhausted by both", box=box.SIMPLE_HEAD)
    for column in ("", "states", "transitions", "seconds", "states/s"):
        table.add_column(column, justify="left" if not column else "right")
    for one in results:
        speed = f"{one.states / one.seconds:,.0f}"
        table.add_row(one.who, f"{one.states:,}", f"{one.transitions:,}", f"{one.seconds:.2f}", speed)
    console = Console(width=100)
    console.print(table)
    load = os.getloadavg()[0]
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}.", highlight=False)


SHARES = {
    "copying the state": NotedState.copy,
    "carrying an operation out": Model.step,
    "naming a state, whatever its numbers": canonical.key,
    "checking every rule in a new state": invariants.check,
}
"""The parts of a transition; the rest is proposing operations, and the search itself."""


def profile() -> None:
    """Print which part of the time goes where; the profiler slows all of it."""
    profiler = cProfile.Profile()
    result = profiler.runcall(exhaust, SCOPE, live=False)
    total = sum(entry.inlinetime for entry in profiler.getstats())
    table = Table(title=f"{result.transitions:,} transitions to {result.states:,} states", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("share", justify="right")
    rest = 1.0
    for what, function in SHARES.items():
        share = seconds_in(profiler, function.__code__) / total
        rest -= share
        table.add_row(what, f"{share:.0%}")
    table.add_row("proposing operations, and the search itself", f"{rest:.0%}")
    Console(width=100).print(table)


def seconds_in(profiler: cProfile.Profile, code: CodeType) -> float:
    """Seconds in a function and in all that it calls."""
    return sum(entry.totaltime for entry in profiler.getstats() if entry.code is code)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of the parallel run")
    parser.add_argument("--profile", action="store_true", help="only print where the time of one process goes")
    arguments = parser.parse_args()
    if arguments.profile:
        profile()
        return
    jobs = arguments.jobs
    results = [measure_kvspec(1)]
    if jobs > 1:
        results.append(measure_kvspec(jobs))
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing:
        print(f"Not found: {', '.join(missing)}. Only kvspec is measured (Debian: apt-get install spin gcc).")
    else:
        results.append(measure_spin("spin, depth-first"))
        results.append(measure_spin("spin, breadth-first", "-DBFS"))
    show(results)
    if len({one.states for one in results}) > 1:
        raise SystemExit("they do not count the same states: the two models differ")


if __name__ == "__main__":
    main()
