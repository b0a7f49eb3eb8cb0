"""The cost of hooks in a real SGLang server on the CPU: three servers that differ in KVSPEC alone, asked in turns.

    python benchmarks/serve_sglang.py 0.5.23 [ROUNDS [PAGE_SIZE [LAYERS [STARTS]]]]

The model is tiny, so a step takes little and the hooks' part is large; with more layers a step takes longer. Two
servers that are the same differ by some percent, so all are started several times. Processor time is that of the
scheduler's process, the thread that writes a recording included; `check` has a process of its own
besides. Linux only.
"""

import http.client
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from kvconform.traces.memory import open_trace
from kvlab.model import VOCABULARY
from kvlab.serving.environment import NoEnvironment
from kvlab.serving.report import installed
from kvlab.serving.servers import Server, sglang
from kvlab.serving.session import prepared, running
from kvspec.memory.events import Begin

REQUESTS = 48
AT_ONCE = 8
PROMPT, ANSWER = 64, 64
"""Tokens."""

ARMS = ("off", "record", "check")


@dataclass
class Arm:
    """One server, and what it took in each round."""

    port: int
    scheduler: int
    """The number of its process."""
    checker: int | None
    """That of the process that checks."""
    processor: list[float] = field(default_factory=list)
    """Of the scheduler's process, in seconds a round."""
    checking: list[float] = field(default_factory=list)
    """Of the process that checks, in seconds a round."""
    rate: list[float] = field(default_factory=list)
    """Requests a second."""
    first: list[float] = field(default_factory=list)
    """The median time to the first token of a round, in milliseconds."""

    def asked(self, prompts: list[list[int]]) -> None:
        """Ask for one answer to each prompt, some at a time."""
        before, checked = _spent(self.scheduler), _spent(self.checker)
        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as clients:
            firsts = list(clients.map(self._ask, prompts))
        took = time.monotonic() - began
        time.sleep(0.5)  # what checks is behind
        self.processor.append(_spent(self.scheduler) - before)
        self.checking.append(_spent(self.checker) - checked)
        self.rate.append(len(prompts) / took)
        self.first.append(1000 * statistics.median(firsts))

    def _ask(self, prompt: list[int]) -> float:
        """Seconds to the first token."""
        sampling = {"max_new_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "stream": True, "sampling_params": sampling})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began = time.monotonic()
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.readline()
        first = time.monotonic() - began
        response.read()
        connection.close()
        return first


def _stat(process: int) -> list[str]:
    """The fields of a process in the kernel, from its state on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _spent(process: int | None) -> float:
    """Processor time so far of all threads, in seconds."""
    if process is None:
        return 0.0
    user, system = _stat(process)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _process(belongs: Callable[[int, str], bool]) -> int | None:
    """The process whose number and command are those of one looked for."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            number, command = int(place.name), (place / "cmdline").read_bytes().decode(errors="replace")
            if belongs(number, command):
                return number
    return None


def server(page_size: int, layers: int) -> Server:
    """Overlap, room for all requests; an idle scheduler sleeps, and does not slow the others."""
    arguments = ["sglang.launch_server", "--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"]
    arguments += ["--disable-cuda-graph", "--mem-fraction-static", "0.2", "--context-length", "1024"]
    arguments += ["--max-running-requests", str(AT_ONCE), "--page-size", str(page_size), "--max-total-tokens", "4096"]
    arguments += ["--chunked-prefill-size", "256", "--sleep-on-idle", "--load-format", "dummy"]
    arguments += ["--json-model-override-args", json.dumps({"num_hidden_layers": layers})]
    stubs = sglang(0).environment["KVSPEC_STUBS"]
    environment = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "rust",
        "KVSPEC_STUBS": stubs,
    }
    return Server("sglang", arguments, environment)


@contextmanager
def started(version: str, name: str, folder: Path, page_size: int, layers: int) -> Iterator[Arm]:
    """One server, warm."""
    python, package = installed("sglang", version, lambda text: print(text, file=sys.stderr))
    one = server(page_size, layers)
    folder.mkdir()
    environment, model = prepared(one, python, package, folder)
    values = {"off": "", "record": f"record:{folder / 'trace.jsonl.zst'}", "check": "check"}
    hooked = {**environment, "KVSPEC": values[name], "TMPDIR": str(folder)}
    with running(one, python, model, folder / "server.log", hooked) as (process, port):
        scheduler = _process(lambda number, said: "sglang::scheduler" in said and os.getpgid(number) == process.pid)
        if scheduler is None:
            raise NoEnvironment("the server has no process whose name is that of a scheduler (sglang::scheduler)")
        checks = _process(lambda _, said: "kvattach.following" in said and str(folder) in said)
        if name == "check" and checks is None:
            raise NoEnvironment("no process checks the recording of the scheduler (kvattach.following)")
        arm = Arm(port, scheduler, checks)
        arm.asked(prompts("warm"))
        for kept in (arm.processor, arm.checking, arm.rate, arm.first):
            kept.clear()
        yield arm


def prompts(seed: str) -> list[list[int]]:
    """The prompts of one round."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(REQUESTS)]


def launches(folder: Path) -> tuple[int, int]:
    """The forward passes, and the events, of a recording."""
    steps = events = 0
    for path in folder.glob("trace-*"):
        with open_trace(path) as trace:
            for _, event in trace:
                events += 1
                steps += isinstance(event, Begin) and event.at == "forward_batch_generation"
    return steps, events


def main(
    version: Annotated[str, typer.Argument(help="The release of SGLang.")],
    rounds: Annotated[int, typer.Argument(min=1, help="Rounds that medians are of.")] = 10,
    page_size: Annotated[int, typer.Argument(min=1, help="Tokens of a page.")] = 1,
    layers: Annotated[int, typer.Argument(min=1, help="Layers of the model.")] = 2,
    starts: Annotated[int, typer.Argument(min=1, help="Starts of all servers, each with these rounds.")] = 3,
) -> None:
    """Measure the arms in turns, and print the median of each."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the servers end with it
    try:
        measure(version, rounds, page_size, layers, starts)
    except NoEnvironment as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error


def measure(version: str, rounds: int, page_size: int, layers: int, starts: int) -> None:
    """See `main`."""
    runs = [one_start(version, rounds, page_size, layers) for _ in range(starts)]
    steps_a_round, events = (statistics.mean(figures) for figures in list(zip(*runs, strict=True))[1:])
    print(
        f"{starts} starts, {rounds} rounds of {REQUESTS} requests each, {steps_a_round:.0f} steps a round, "
        f"{events:.0f} events a step"
    )
    plain = [arms["off"] for arms, _, _ in runs]
    for name in ARMS:
        report(name, [arms[name] for arms, _, _ in runs], plain, steps_a_round)


def one_start(version: str, rounds: int, page_size: int, layers: int) -> tuple[dict[str, Arm], float, float]:
    """The arms with what they took, the steps of a round, and the events of a step."""
    with tempfile.TemporaryDirectory() as scratch:
        with ExitStack() as servers:
            arms = {
                name: servers.enter_context(started(version, name, Path(scratch) / name, page_size, layers))
                for name in ARMS
            }
            for number in range(rounds):
                # Each arm is the first, the second and the last as often as the others.
                for turn in range(len(ARMS)):
                    arms[ARMS[(number + turn) % len(ARMS)]].asked(prompts(str(number)))
        steps, events = launches(Path(scratch) / "record")
    return arms, steps / (rounds + 1), events / steps


def report(name: str, arms: list[Arm], plain: list[Arm], steps_a_round: float) -> None:
    """Print the medians of an arm over all starts, and the least and the greatest median of one start."""
    both = [*zip(arms, plain, strict=True)]
    over = [
        1e6 * (one - other) / steps_a_round for arm, off in both for one, other in _pairs(arm.processor, off.processor)
    ]
    ratios = [[one / other for one, other in _pairs(arm.rate, off.rate)] for arm, off in both]
    first = [one / other for arm, off in both for one, other in _pairs(arm.first, off.first)]
    step = 1e6 * statistics.median([time for arm in arms for time in arm.processor]) / steps_a_round
    check = 1e6 * statistics.median([time for arm in arms for time in arm.checking]) / steps_a_round
    of_starts = sorted(map(statistics.median, ratios))
    more = statistics.median(over)
    print(
        f"{name}: {step:.0f} us a step of processor time (+{more:.0f}, {100 * more / (step - more):.1f} %), "
        f"{statistics.median([rate for arm in arms for rate in arm.rate]):.1f} requests/s "
        f"({statistics.median(chain(*ratios)):.3f} of off; starts {of_starts[0]:.3f} to {of_starts[-1]:.3f}), "
        f"first token after {statistics.median([one for arm in arms for one in arm.first]):.0f} ms "
        f"({statistics.median(first):.3f} of off), checking {check:.0f} us a step"
    )


def _pairs(one: list[float], other: list[float]) -> Iterator[tuple[float, float]]:
    return zip(one, other, strict=True)


if __name__ == "__main__":
    typer.run(main)
