"""Spreads parts of some work over a Ray cluster, and collects each result exactly once."""

import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from kvconform.errors import LoadError

P = TypeVar("P")
R = TypeVar("R")

RETRIES = 5
"""How often a part is repeated after its worker has died."""
CONNECT_SECONDS = 5.0
"""The most seconds until an address answers."""


class Done(NamedTuple, Generic[P, R]):
    """A part, its result, and the machine."""

    part: P
    result: R
    machine: str


class Cluster:
    """A cluster, while one command uses it."""

    def __init__(self, ray: Any) -> None:
        """Only `connected` makes one."""
        self._ray = ray
        self._run = ray.remote(max_retries=RETRIES)(_carried_out)

    @property
    def workers(self) -> int:
        """The number of parts that can run at a time."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def in_order(self, work: Callable[[P], R], parts: Iterable[P]) -> Iterator[R]:
        """The results of parts, in their order. As many parts run at a time as there are processors."""
        function, waiting = self._ray.put(work), iter(parts)
        running = [self._run.remote(function, part) for part in islice(waiting, 2 * self.workers)]
        while running:
            result, _ = self._ray.get(running.pop(0))
            running += [self._run.remote(function, part) for part in islice(waiting, 1)]
            yield result

    def as_done(self, work: Callable[[P], R], parts: Iterable[P]) -> Iterator[Done[P, R]]:
        """Each part with its result as soon as it is done. Parts may be endless: the caller stops.

        The next part is requested after a result was taken, so that it can depend on earlier results.
        """
        function, waiting = self._ray.put(work), iter(parts)
        running = {self._run.remote(function, part): part for part in islice(waiting, self.workers)}
        try:
            while running:
                (reference, *_), _ = self._ray.wait(list(running), num_returns=1)
                part = running.pop(reference)
                result, machine = self._ray.get(reference)
                yield Done(part, result, machine)
                running |= {self._run.remote(function, other): other for other in islice(waiting, 1)}
        finally:
            for reference in running:  # the caller has stopped
                self._ray.cancel(reference)


def _check_address(address: str) -> None:
    """Check that an address answers: Ray itself tries for minutes."""
    match = re.fullmatch(r"(?:ray://)?\[?([^\]/]+?)\]?:(\d{1,5})", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise LoadError(f"no cluster at {address!r}: {error}") from error


def _carried_out(work: Callable[[P], R], part: P) -> tuple[R, str]:
    import platform

    return work(part), platform.node()


@contextmanager
def connected(address: str, *, code: bool = False) -> Iterator[Cluster]:
    """Connect to a cluster: `auto`, `HOST:PORT`, `ray://HOST:PORT`, or `local` for one on this machine only.

    Its machines have kvspec installed. `code`: the working folder, which may hold the implementation, is sent to them.

    Raises:
        LoadError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise LoadError("Ray is not installed: pip install 'kvspec[fleet]'") from error
    _check_address(address)
    environment: dict[str, Any] = {}
    if address == "local":
        environment["env_vars"] = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if code:
        environment["working_dir"] = str(Path.cwd())
    try:
        ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise LoadError(f"no cluster at {address!r}: {reason}") from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()
