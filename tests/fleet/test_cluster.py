"""Parts of work on a local cluster of Ray: each result once, whatever becomes of a worker. `make fleet` runs it."""

import os
import signal
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from kvconform.errors import LoadError
from kvconform.fleet.cluster import Cluster, connected


def square(number: int) -> int:
    return number * number


def test_results_come_in_order(cluster: Cluster) -> None:
    assert list(cluster.in_order(square, range(20))) == [number * number for number in range(20)]


def test_a_caller_that_has_enough_of_endless_parts_stops(cluster: Cluster) -> None:
    for done in cluster.as_done(square, count()):
        assert done.result == done.part * done.part
        if done.part > 5:
            break


def test_a_worker_that_is_killed_loses_nothing_and_nothing_counts_twice(cluster: Cluster, tmp_path: Path) -> None:
    def killed_once(number: int) -> int:
        begun = len(list(tmp_path.glob(f"{number}.*")))
        (tmp_path / f"{number}.{begun}").touch()
        if number in (1, 5) and not begun:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    results = Counter(done.result for done in cluster.as_done(killed_once, range(8)))
    assert results == Counter(range(8))
    assert len(list(tmp_path.iterdir())) == 10, "two parts were begun twice"


def test_a_cluster_that_is_not_there_is_reported_in_one_line() -> None:
    pytest.importorskip("ray")
    with pytest.raises(LoadError, match=r"no cluster at '127\.0\.0\.1:1'") as raised, connected("127.0.0.1:1"):
        pass
    assert "\n" not in str(raised.value)
