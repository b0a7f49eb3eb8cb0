"""A local cluster of Ray with two workers, for all tests of this folder. `make fleet` runs them."""

from collections.abc import Iterator

import pytest

from kvconform.fleet.cluster import Cluster, connected


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="Ray is not installed; make fleet installs it")
    with connected("local") as cluster:
        yield cluster
