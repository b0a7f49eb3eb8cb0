"""The pytest plugin of a mutation run: in place of running the tests once, it tries every mutant on them."""

import gc
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from types import CodeType, FrameType
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings

from tests.mutation import switch

MEMORY = 6_000_000_000
"""Bytes that a mutant may have; one that eats more fails."""
PATIENCE = 5
"""A test that takes so many times as long as without a mutant, and `GRACE` seconds more, hangs."""
GRACE = 3.0
EXAMPLES = 12
"""Hypothesis draws so many, where a test does not say how many."""


class Test(NamedTuple):
    """A test as it was without a mutant."""

    number: int
    seconds: float
    calls: frozenset[str]
    """The functions that it calls, by the name that their mutants begin with."""


class Settings(NamedTuple):
    """What `run.py` passes on."""

    minutes: float
    processes: int
    seed: int
    golden: tuple[str, ...]
    only: tuple[str, ...]
    """Names of mutants, or texts in the names of functions; empty for all."""

    @classmethod
    def told(cls) -> "Settings":
        """Those in the environment."""
        minutes, processes, seed, _, *golden = os.environ["KVSPEC_MUTATION"].split()
        only = os.environ.get("KVSPEC_MUTATION_ONLY", "").split()
        return cls(float(minutes), int(processes), int(seed), tuple(golden), tuple(only))

    def wants(self, name: str) -> bool:
        """Whether a mutant is to be tried."""
        function = name.partition("__mutmut_")[0]
        return not self.only or any(text == name or text in function for text in self.only)


class Score:
    """What became of the mutants so far."""

    def __init__(self, settings: Settings, mutants: int) -> None:
        """Nothing is tried yet."""
        self.settings, self.mutants = settings, mutants
        self.noticed = Counter[str]()
        self.survivors: list[str] = []
        self.tried = 0

    def add(self, name: str, item: pytest.Item | None, *, hung: bool) -> None:
        """Count a mutant that this test noticed, or none."""
        self.tried += 1
        if item is None:
            self.survivors.append(name)
            how = "survived"
        elif item.nodeid.startswith(self.settings.golden):
            how = "only findings.txt"
        else:
            how = "a test hangs" if hung else "noticed"
        self.noticed[how] += 1
        if how in ("survived", "only findings.txt"):
            print(f"{how}: {name}", flush=True)
        if self.tried % 100 == 0:
            print(f"... {self.tried} of {self.mutants} tried", flush=True)

    def show(self) -> None:
        """Print the score, with `findings.txt` and without."""
        drawn = "" if self.tried == self.mutants else f", drawn at random with seed {self.settings.seed}"
        print(f"{self.tried} of {self.mutants} mutants tried{drawn}: {dict(self.noticed)}")
        own = self.noticed["noticed"] + self.noticed["a test hangs"]
        if self.settings.golden:
            with_it = own + self.noticed["only findings.txt"]
            print(f"noticed with findings.txt: {with_it} of {self.tried} ({100 * with_it / max(1, self.tried):.1f} %)")
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
    begin, settings = time.monotonic(), Settings.told()
    if session.testsfailed:
        raise session.Interrupted("the tests could not be collected")
    gc.freeze()  # what is there is no garbage, and looking for some copies it in every process
    functions = switch.names()
    tests = _measured(session.items, settings.processes, set(functions.values()), functions)
    print(
        f"{len(tests)} tests, {sum(test.seconds for test in tests):.0f} s, {time.monotonic() - begin:.0f} s to measure"
    )
    for test in sorted(tests, key=lambda test: -test.seconds)[:8]:
        print(f"    {test.seconds:.1f} s {session.items[test.number].nodeid}", flush=True)
    mutants = sorted(name for name in functions if settings.wants(name))
    random.Random(settings.seed).shuffle(mutants)
    score = Score(settings, len(mutants))
    _try_all(session.items, tests, mutants, score, deadline=begin + 60 * settings.minutes)
    score.show()
    return True


def _measured(
    items: list[pytest.Item], processes: int, codes: set[CodeType], functions: dict[str, CodeType]
) -> list[Test]:
    """How long each test takes, and which functions it calls; measured in other processes, so that nothing is kept."""
    by_code = {code: name.partition("__mutmut_")[0] for name, code in functions.items()}
    pipes: dict[int, int] = {}
    for part in range(processes):
        reader, writer = os.pipe()
        if not os.fork():
            with os.fdopen(writer, "w") as out:
                _silence()
                for number in range(part, len(items), processes):
                    out.write(_measure(items, number, codes, by_code) + "\n")
            os._exit(0)
        os.close(writer)
        pipes[part] = reader
    tests = []
    for reader in pipes.values():
        with os.fdopen(reader) as lines:
            for line in lines:
                told, seconds, failed, *calls = line.split()
                number = int(told)
                if failed == "failed":
                    raise pytest.UsageError(f"it fails without a mutant: {items[number].nodeid}")
                tests.append(Test(number, float(seconds), frozenset(calls)))
    for _ in pipes:
        os.wait()
    return sorted(tests)


def _measure(items: list[pytest.Item], number: int, codes: set[CodeType], by_code: dict[CodeType, str]) -> str:
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    begin = time.process_time()
    sys.setprofile(note)
    failed = _fails(items[number])
    sys.setprofile(None)
    seconds = time.process_time() - begin
    calls = {by_code[code] for code in called & codes}
    return " ".join([str(number), f"{seconds:.4f}", "failed" if failed else "passed", *sorted(calls)])


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _silence() -> None:
    """What tests print goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


class Running(NamedTuple):
    """A mutant that is tried."""

    name: str
    reader: int
    """Where its process tells the number of each test that it begins."""


def _try_all(items: list[pytest.Item], tests: list[Test], mutants: list[str], score: Score, deadline: float) -> None:
    golden = {test.number for test in tests if items[test.number].nodeid.startswith(score.settings.golden or "\0")}
    running: dict[int, Running] = {}
    kills: dict[str, Counter[int]] = {}
    waiting = list(reversed(mutants))
    while running or (waiting and time.monotonic() < deadline):
        while waiting and len(running) < score.settings.processes and time.monotonic() < deadline:
            name = waiting.pop()
            function = name.partition("__mutmut_")[0]
            known = kills.get(function, Counter()) + kills.get(function.rpartition(".")[0], Counter())
            chosen = sorted(
                (test for test in tests if function in test.calls),
                key=lambda test: (test.number in golden, test.seconds / (1 + 20 * known[test.number])),
            )
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                os.close(reader)
                _try(items, chosen, name, writer)
            os.close(writer)
            running[child] = Running(name, reader)
        child, status = os.wait()
        name, reader = running.pop(child)
        with os.fdopen(reader) as lines:
            begun = [int(line) for line in lines]
        noticed = items[begun[-1]] if status and begun else None
        if noticed:
            function = name.partition("__mutmut_")[0]
            kills.setdefault(function, Counter())[begun[-1]] += 1
            kills.setdefault(function.rpartition(".")[0], Counter())[begun[-1]] += 1
        score.add(name, noticed, hung=os.WIFSIGNALED(status))


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
