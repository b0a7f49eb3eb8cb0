"""The traces of several hosts that are driven in one process, as one trace in the order of their events."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kvattach.hooks import Trace
from kvconform.traces.hosts import HOST, Names
from kvspec.memory.events import MemoryEvent, Pool, Wait


class Together:
    """Merges the traces of several hosts into one, with the names that `kvspec merge` gives them."""

    def __init__(self, trace: Trace, hosts: Sequence[str], later: Mapping[str, str] = MappingProxyType({})) -> None:
        """The header is written when all `hosts` have one. Each host in `later` has the memory of another."""
        self._trace, self._waiting, self._later = trace, set(hosts), later
        self._pools: dict[str, Pool] = {}
        self._names = {host: Names(host, [*hosts, *later], self._pools) for host in (*hosts, *later)}

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """The memory of one host was made."""
        assert host is not None
        if host in self._later:
            return
        for one in (host, *(one for one, first in self._later.items() if first == host)):
            names = self._names[one]
            names.own.update({name: names.named(name) for name in pools})
            self._pools.update({names.named(name): pool for name, pool in pools.items()})
        self._waiting.remove(host)
        if not self._waiting:
            self._trace.header(producer, self._pools)
            for one in [one for one in self._names if one not in self._later]:
                self._trace.emit(Wait(HOST, on=HOST, host=one))

    def of(self, host: str) -> "One":
        """The trace of one host."""
        return One(self, host)

    def emit(self, host: str, *events: MemoryEvent) -> None:
        """Events of a host."""
        self._trace.emit(*map(self._names[host].renamed, events))


class One:
    """The trace of one of several hosts."""

    def __init__(self, together: Together, host: str) -> None:
        self._together, self._host = together, host

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """The memory of this host was made."""
        self._together.header(producer, pools, self._host)

    def emit(self, *events: MemoryEvent) -> None:
        """Events of this host."""
        self._together.emit(self._host, *events)
