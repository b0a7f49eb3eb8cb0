"""How the check of many traces scales on a local cluster of Ray, from one processor to all.

    PYTHONPATH=. python benchmarks/fleet.py [--traces N] [--events N]

The same traces (decode steps with page labels) are checked with one worker and with as many as there are processors,
in turns; the ratio is what a machine more would bring. Starting the cluster is not counted.
"""

import logging
import os
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated

import ray
import typer
from benchmarks.check import write
from rich.console import Console

from kvconform.console import Forms
from kvconform.fleet.checking import check_traces
from kvconform.fleet.cluster import Cluster


def main(
    traces: Annotated[int, typer.Option(help="Traces.")] = 8,
    events: Annotated[int, typer.Option(help="Memory events of a trace.")] = 20_000,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        count = sum(write(Path(folder) / f"{number}.jsonl", 16, 4096, events) for number in range(traces))
        seconds = {}
        for workers in (1, os.cpu_count() or 1):
            ray.init(
                "local",
                num_cpus=workers,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
            )
            cluster = Cluster(ray)
            list(cluster.in_order(_warm, range(2 * workers)))
            begin = time.perf_counter()
            with redirect_stdout(StringIO()):
                status = check_traces(Console(quiet=True), cluster, [f"{folder}/*.jsonl"], None, Forms(quiet=True))
            seconds[workers] = time.perf_counter() - begin
            ray.shutdown()
            if status:
                raise SystemExit("the traces do not conform")
    print(f"{traces} traces, {count:,} events")
    for workers, took in seconds.items():
        ratio = seconds[1] / took
        print(f"  {workers} workers: {took:6.1f} s, {count / took:9,.0f} events a second, {ratio:.2f} times one's")
    print(f"Load {os.getloadavg()[0]:.1f}.")


def _warm(number: int) -> int:
    import kvconform.runs.traces  # noqa: F401 - importing is not counted

    return number


if __name__ == "__main__":
    typer.run(main)
