"""The names of one of several hosts in their common trace: `r1` of host `decode` is `decode/r1`."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import get_args

from kvspec.memory.events import Begin, Deliver, End, Idle, MemoryEvent, OpId, Pool, Send, Use, Wait

HOST = "host"
"""The name of each host's own stream."""
_FIELDS = {
    kind: [field for field in ("holder", "old", "new", "writer", "table", "pool") if field in kind.__struct_fields__]
    for kind in (*get_args(MemoryEvent), Use)
}
"""Fields of events and uses with the name of a holder, a table or a pool."""


@dataclass
class Names:
    """The names of one host in a trace of several `hosts` with all their `pools`."""

    host: str
    hosts: Collection[str]
    pools: dict[str, Pool] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    """The host's own pool -> its name in the common trace."""

    def renamed(self, event: MemoryEvent) -> MemoryEvent:
        """The same event object, with the names of the common trace.

        Raises:
            LookupError: it names an unknown pool.
        """
        event.host = self.host
        self._rename(event)
        match event:
            case Begin():
                event.id = self.named(event.id)
                event.stream = event.stream and self._stream(event.stream)
                event.after = [self.named(id) for id in event.after]
                for use in (*event.reads, *event.writes, *(use for pair in event.copies for use in pair)):
                    self._rename(use)
            case Wait():
                event.id = None if event.id is None else self.named(event.id)
                event.stream = self._stream(event.stream)
                event.on = event.on and self._stream(event.on)
            case End():
                event.id = self.named(event.id)
                for use in event.unwritten:
                    self._rename(use)
            case Deliver():
                event.id = self.named(event.id)
            case Send():
                event.after = [self.named(id) for id in event.after]
            case Idle():
                event.keepers = [self.named(keeper) for keeper in event.keepers]
                pools = self.own if event.pools is None else event.pools
                event.pools = [self._pool(pool) for pool in pools]
        return event

    def named(self, name: OpId) -> str:
        """A name with its host before it: this host, unless the name begins with another one."""
        host, slash, _ = str(name).partition("/")
        return str(name) if slash and host in self.hosts else f"{self.host}/{name}"

    def _rename(self, named: MemoryEvent | Use) -> None:
        """Give an event or a use the common trace's names of holders, a table and a pool."""
        for attribute in _FIELDS[type(named)]:
            name = getattr(named, attribute)
            if name is not None:
                setattr(named, attribute, self._pool(name) if attribute == "pool" else self.named(name))

    def _pool(self, name: str) -> str:
        merged = self.own.get(name, name)
        if merged not in self.pools:
            raise LookupError(f"there is no pool {name}")
        return merged

    def _stream(self, name: str) -> str:
        return name if name == HOST else self.named(name)
