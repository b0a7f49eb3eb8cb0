"""The pytest plugin of a mutation run: in place of running the tests once, it tries every mutant on them."""

import gc
import hashlib
import json
import os
import random
import re
import resource
import signal
import tempfile
import time
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings

from tests.mutation import equivalent, lines, switch

MEMORY = 6_000_000_000
"""Bytes that a mutant may have; one that eats more fails."""
PATIENCE = 3
"""A test that takes so many times as long as without a mutant, and `GRACE` seconds more, hangs."""
GRACE = 1.0
FOLDER = Path.cwd().parent / "measured"
"""Where what was measured is kept; a run is in the copy of the tree beside it."""
EXAMPLES = 12
"""Hypothesis draws so many, where a test does not say how many."""


class Test(NamedTuple):
    """A test as it was without a mutant."""

    number: int
    seconds: float
    """With every line noted, which takes several times as long."""
    run: dict[str, int]
    """The lines that it runs of each function that it calls, by the name that the function's mutants begin with."""

    def reaches(self, function: str, leading: int) -> bool:
        """Whether it calls a function and runs one of these lines of it."""
        return function in self.run and (leading == lines.ALL or bool(self.run[function] & leading))


Measured = tuple[int, float, bool, dict[str, str]]
"""The number of a test, its seconds, whether it fails, and the lines that it runs in base 16."""


class Mutant(NamedTuple):
    """A changed function."""

    name: str
    original: CodeType
    changed: CodeType


def function_of(name: str) -> str:
    """The function that a mutant of this name is of."""
    return name.partition("__mutmut_")[0]


class Settings(NamedTuple):
    """The options that `run.py` passes on."""

    minutes: float
    processes: int
    seed: int
    golden: tuple[str, ...]
    only: tuple[str, ...]
    """Names of mutants, or texts in the names of functions; empty for all."""

    @classmethod
    def read(cls) -> "Settings":
        """Those in the environment."""
        minutes, processes, seed, _, *golden = os.environ["KVSPEC_MUTATION"].split()
        only = os.environ.get("KVSPEC_MUTATION_ONLY", "").split()
        return cls(float(minutes), int(processes), int(seed), tuple(golden), tuple(only))

    def wants(self, name: str) -> bool:
        """Whether a mutant is to be tried."""
        function = function_of(name)
        return not self.only or any(text == name or text in function for text in self.only)


class Score:
    """The results of the mutants so far."""

    def __init__(self, settings: Settings, mutants: int) -> None:
        """Nothing is tried yet."""
        self.settings, self.mutants = settings, mutants
        self.noticed = Counter[str]()
        self.left_out = Counter[str]()
        self.tried = 0

    def add(self, mutant: Mutant, item: pytest.Item | None, *, hung: bool) -> None:
        """Count a mutant that this test noticed, or none."""
        self.tried += 1
        if item is None:
            how = "survived"
        elif item.nodeid.startswith(self.settings.golden):
            how = "only verdicts"
        else:
            how = "a test hangs" if hung else "noticed"
        self.noticed[how] += 1
        if how in ("survived", "only verdicts"):
            difference = lines.difference(mutant.original, mutant.changed)
            print(f"{how}: {mutant.name}", *difference, sep="\n    ", flush=True)
        if self.tried % 100 == 0:
            print(f"... {self.tried} of {self.mutants} tried", flush=True)

    def show(self) -> None:
        """Print the score, with `verdicts` and without."""
        drawn = (
            ""
            if self.tried + self.left_out.total() == self.mutants
            else f", drawn at random with seed {self.settings.seed}"
        )
        print(f"{self.tried} of {self.mutants} mutants tried{drawn}: {dict(self.noticed)}")
        for why, count in self.left_out.items():
            print(f"{count} more that were drawn are not tried: {why}")
        own = self.noticed["noticed"] + self.noticed["a test hangs"]
        if self.settings.golden:
            with_it = own + self.noticed["only verdicts"]
            print(f"noticed with the verdicts: {with_it} of {self.tried} ({100 * with_it / max(1, self.tried):.1f} %)")
            print(f"noticed without it: {own} of {self.tried} ({100 * own / max(1, self.tried):.1f} %)")
        else:
            print(f"noticed: {own} of {self.tried} ({100 * own / max(1, self.tried):.1f} %)")


def pytest_sessionstart() -> None:
    """The same few draws for each mutant; one that fails is not shortened."""
    phases = (Phase.explicit, Phase.generate)
    few = hypothesis_settings(deadline=None, derandomize=True, max_examples=EXAMPLES, database=None, phases=phases)
    hypothesis_settings.register_profile("mutation", few)
    hypothesis_settings.load_profile("mutation")


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Measure the tests, and try the mutants until the time is over."""
    begin, settings = time.monotonic(), Settings.read()
    if session.testsfailed:
        raise session.Interrupted("the tests could not be collected")
    gc.freeze()  # what is there is no garbage, and looking for some copies it in every process
    functions = {original: function_of(name) for name, (original, _) in switch.mutants().items()}
    tests = _remembered(session.items, settings.processes, functions)
    print(
        f"{len(tests)} tests, {sum(test.seconds for test in tests):.0f} s, {time.monotonic() - begin:.0f} s to measure"
    )
    for test in sorted(tests, key=lambda test: -test.seconds)[:8]:
        print(f"    {test.seconds:.1f} s {session.items[test.number].nodeid}", flush=True)
    mutants = sorted(Mutant(name, *both) for name, both in switch.mutants().items() if settings.wants(name))
    random.Random(settings.seed).shuffle(mutants)
    score = Score(settings, len(mutants))
    _try_all(session.items, tests, mutants, score, deadline=begin + 60 * settings.minutes)
    score.show()
    return True


def _remembered(items: list[pytest.Item], processes: int, functions: dict[CodeType, str]) -> list[Test]:
    """The durations of the same tests of the same tree, file by file: measured before, or now."""
    kept = {item.path: FOLDER / f"{_key(item.path)}.json" for item in items}
    known: dict[Path, dict[str, tuple[float, dict[str, int]]]] = {
        path: json.loads(file.read_text()) if file.exists() else {} for path, file in kept.items()
    }
    missing = [number for number, item in enumerate(items) if item.nodeid not in known[item.path]]
    for test in _measured(items, missing, processes, functions):
        known[items[test.number].path][items[test.number].nodeid] = test.seconds, test.run
    FOLDER.mkdir(exist_ok=True)
    for path in {items[number].path for number in missing}:
        kept[path].write_text(json.dumps(known[path]))
    return [Test(number, *known[item.path][item.nodeid]) for number, item in enumerate(items)]


@cache
def _key(path: Path) -> str:
    """The hash of a test's file and all that it may run: without other tests, unless some file imports them."""
    tree = hashlib.sha256(path.read_bytes())
    tree.update(_shared().encode())
    return tree.hexdigest()


@cache
def _shared() -> str:
    """All else that tests run; of texts it makes no difference what they say."""
    files = [
        path
        for path in sorted(Path.cwd().rglob("*"))
        if path.is_file()
        and path.suffix not in (".md", ".txt")
        and not any(part.startswith((".", "__")) for part in path.relative_to(Path.cwd()).parts[:-1])
    ]
    imported = {
        f"{name.replace('.', '/')}.py"
        for path in files
        if path.suffix == ".py"
        for name in re.findall(r"\btests\.[\w.]*\btest_\w+", path.read_text())
    }
    tree = hashlib.sha256()
    for path in files:
        if not path.name.startswith("test_") or str(path.relative_to(Path.cwd())) in imported:
            tree.update(path.read_bytes())
    return tree.hexdigest()


def _measured(
    items: list[pytest.Item], missing: list[int], processes: int, functions: dict[CodeType, str]
) -> list[Test]:
    """How long each test takes, and what it runs; measured in other processes, so that nothing is kept."""
    children: dict[int, Path] = {}
    tests = []
    with tempfile.TemporaryDirectory() as folder:
        for part in range(processes):
            file = Path(folder, str(part))  # a pipe would be full before it is read
            child = os.fork()
            if not child:
                _silence()
                file.write_text(json.dumps(_until_one_fails(items, missing[part::processes], functions)))
                os._exit(0)
            children[child] = file
        while children:
            file = children.pop(os.wait()[0])
            for number, seconds, failed, run in json.loads(file.read_text()):
                if failed:
                    for child in children:
                        os.kill(child, signal.SIGKILL)
                    raise pytest.UsageError(f"it fails without a mutant: {items[number].nodeid}")
                tests.append(Test(number, seconds, {function: int(bits, 16) for function, bits in run.items()}))
    return tests


def _until_one_fails(items: list[pytest.Item], numbers: list[int], functions: dict[CodeType, str]) -> list[Measured]:
    measured: list[Measured] = []
    for number in numbers:
        measured.append(_measure(items, number, functions))
        if measured[-1][2]:
            break
    return measured


def _measure(items: list[pytest.Item], number: int, functions: dict[CodeType, str]) -> Measured:
    begin = time.process_time()
    with lines.traced(functions) as run:
        failed = _fails(items[number])
    seconds = time.process_time() - begin
    return number, round(seconds, 4), failed, {functions[code]: f"{bits:x}" for code, bits in run.items()}


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _silence() -> None:
    """The output of tests goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


class Running(NamedTuple):
    """A mutant that is tried."""

    mutant: Mutant
    reader: int
    """The place where its process writes the number of each test that it begins."""


def _try_all(items: list[pytest.Item], tests: list[Test], mutants: list[Mutant], score: Score, deadline: float) -> None:
    golden = {test.number for test in tests if items[test.number].nodeid.startswith(score.settings.golden or "\0")}
    running: dict[int, Running] = {}
    kills: dict[str, Counter[int]] = defaultdict(Counter)
    """How often a test noticed a mutant of a function, and of a file."""
    waiting = mutants[::-1]
    while running or (waiting and time.monotonic() < deadline):
        while waiting and len(running) < score.settings.processes and time.monotonic() < deadline:
            mutant = waiting.pop()
            function = function_of(mutant.name)
            why = lines.unchecked(mutant.original, mutant.changed)
            if why := why or equivalent.known(function, lines.difference(mutant.original, mutant.changed)):
                score.left_out[why] += 1
                continue
            leading = lines.leading_to(mutant.original, mutant.changed)
            known = kills[function] + kills[mutant.original.co_filename]
            chosen = sorted(
                (test for test in tests if test.reaches(function, leading)),
                key=lambda test: (test.number in golden, (test.seconds + 0.01) / (1 + 20 * known[test.number])),
            )
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                os.close(reader)
                _try(items, chosen, mutant.name, writer)
            os.close(writer)
            running[child] = Running(mutant, reader)
        if not running:
            continue
        child, status = os.wait()
        mutant, reader = running.pop(child)
        with os.fdopen(reader) as numbers:
            begun = [int(line) for line in numbers]
        noticed = items[begun[-1]] if status and begun else None
        if noticed:
            for place in (function_of(mutant.name), mutant.original.co_filename):
                kills[place][begun[-1]] += 1
        score.add(mutant, noticed, hung=os.WIFSIGNALED(status))


def _try(items: list[pytest.Item], tests: list[Test], name: str, writer: int) -> None:
    """Run tests with a mutant until one fails; this is its process, which ends with 1 then and else with 0."""
    _silence()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    switch.exchange(name)
    for test in tests:
        os.write(writer, f"{test.number}\n".encode())
        signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE * test.seconds + GRACE)  # ends the process
        try:
            if _fails(items[test.number]):
                os._exit(1)
        except BaseException:
            os._exit(1)
    os._exit(0)
