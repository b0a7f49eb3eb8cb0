"""Parts of work on a local cluster of Ray: each result once, whatever becomes of a worker. `make fleet` runs it."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kvconform.errors import LoadError
from kvconform.fleet.cluster import Cluster, connected

pytest.importorskip("ray", reason="Ray is not installed; make fleet installs it")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with connected("local") as cluster:
        yield cluster


def square(number: int) -> int:
    return number * number


def test_results_come_in_order(cluster: Cluster) -> None:
    assert list(cluster.in_order(square, range(20))) == [number * number for number in range(20)]


def test_whoever_has_enough_of_endless_parts_stops(cluster: Cluster) -> None:
    for done in cluster.as_done(square, count()):
        assert done.result == done.part * done.part
        if done.part > 5:
            break


def test_a_worker_that_is_killed_loses_nothing_and_nothing_counts_twice(cluster: Cluster, tmp_path: Path) -> None:
    def named(number: int) -> tuple[int, int]:
        (tmp_path / f"{number}-{os.getpid()}").touch()
        time.sleep(0.3)
        return number, os.getpid()

    killed = 0
    results: Counter[int] = Counter()
    for done in cluster.as_done(named, range(8)):
        results[done.result[0]] += 1
        if not killed:
            running = next(path for path in tmp_path.iterdir() if int(path.name.split("-")[1]) != done.result[1])
            killed = int(running.name.split("-")[1])
            os.kill(killed, signal.SIGKILL)
    assert results == Counter(range(8))
    begun = Counter(int(path.name.split("-")[0]) for path in tmp_path.iterdir())
    assert begun.total() > 8, "no part was begun a second time: nothing was killed in the middle of one"


def test_a_cluster_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(LoadError, match=r"no cluster at '127\.0\.0\.1:1'") as told, connected("127.0.0.1:1"):
        pass
    assert "\n" not in str(told.value)
