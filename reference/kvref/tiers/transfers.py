"""Copies between the tiers. A transfer is a holder: it keeps its source and its target from being handed out.

| copy | stream | source | target | fences |
| --- | --- | --- | --- | --- |
| backup | write | device page, pinned | host page, taken | none: the pass that wrote the source is complete |
| load | load | host page, pinned | device page, taken | passes queued so far may still use the target |
| store | write | host page, pinned | storage, by key | none: the backup that wrote it is complete |
| prefetch | prefetch | storage, by key | host page, taken | none: the target's old content is no longer used |

A pass that reads a loaded page comes after the load. The target of a backup or a prefetch is published when the host
has seen it complete; that of a load when it is queued, because every reader waits for it. A load that fails withdraws
its page, and requests that share it begin again.
"""

from typing import Literal, NamedTuple

from kvref.tiers.state import DEVICE, FORWARD, HOST, STORAGE, Emit, FreeList, Node, Sizes
from kvspec.memory.events import Begin, Drop, End, Publish, Release, Share, Take, Use, Wait


class Transfer(NamedTuple):
    """One copy in flight."""

    kind: Literal["backup", "load", "store", "prefetch"]
    node: Node
    source: int | str
    target: int | str


class Transfers:
    """Starts copies and processes their completions."""

    def __init__(self, sizes: Sizes, emit: Emit) -> None:
        """Nothing is in flight; the host tier is free."""
        self.sizes, self.emit = sizes, emit
        self.free = FreeList(sizes.host_pages)
        self.in_flight: dict[int, Transfer] = {}
        self.stored: set[str] = set()
        """The keys in the storage."""
        self.wanted_gone: set[Node] = set()
        """Nodes that leave the device once their backup is done (write-back)."""

    def backup(self, id: int, node: Node) -> None:
        """Copy a device page to the host."""
        assert node.device is not None
        self.pin(id, DEVICE, node.device)
        self._start(id, Transfer("backup", node, node.device, self.take_host(id)))

    def load(self, id: int, node: Node, page: int) -> None:
        """Copy a host page to the device page `page`, which this transfer takes, and publish it there."""
        assert node.host is not None
        self.emit(Take(holder(id), DEVICE, [page]))
        self.fence("load", FORWARD)
        self.pin(id, HOST, node.host)
        node.device = page
        self._start(id, Transfer("load", node, node.host, page))
        self.emit(Publish(DEVICE, [page], [node.key], [node.label]))

    def store(self, id: int, node: Node) -> None:
        """Copy a host page to the storage."""
        assert node.host is not None
        self.pin(id, HOST, node.host)
        self._start(id, Transfer("store", node, node.host, node.key))

    def prefetch(self, id: int, node: Node) -> None:
        """Copy from the storage to a host page."""
        self._start(id, Transfer("prefetch", node, node.key, self.take_host(id)))

    def complete(self, id: int, failed: bool) -> Transfer:
        """Process a transfer that the host has seen complete; a load or a prefetch may have failed."""
        transfer = self.in_flight.pop(id)
        target = Use(pool=_pools(transfer)[1], pages=[transfer.target], holder=holder(id))
        self.emit(End(id, unwritten=[target] if failed else []))
        transfer.node.moving -= 1
        if failed:
            self.forget_failed(id, transfer)
        else:
            getattr(self, f"after_{transfer.kind}")(id, transfer)
        return transfer

    def after_backup(self, id: int, transfer: Transfer) -> None:
        """Publish the host page, and release the device page."""
        node, page = transfer.node, transfer.target
        self.unpin(id, DEVICE, transfer.source)
        if node.host is None:
            node.host = int(page)
            self.emit(Publish(HOST, [page], [node.key], [node.label]))
        else:
            self.free.give_back(int(page))
        self.emit(Release(holder(id), HOST, [page]))

    def after_load(self, id: int, transfer: Transfer) -> None:
        """Release both pages: requests that use the device page share it themselves."""
        self.unpin(id, HOST, transfer.source)
        self.emit(Release(holder(id), DEVICE, [transfer.target]))

    def after_store(self, id: int, transfer: Transfer) -> None:
        """Record the key in the storage, and release the host page."""
        self.unpin(id, HOST, transfer.source)
        self.stored.add(transfer.node.key)

    def after_prefetch(self, id: int, transfer: Transfer) -> None:
        """Publish the host page, as after a backup."""
        node, page = transfer.node, transfer.target
        if node.host is None:
            node.host = int(page)
            self.emit(Publish(HOST, [page], [node.key], [node.label]))
        else:
            self.free.give_back(int(page))
        self.emit(Release(holder(id), HOST, [page]))

    def forget_failed(self, id: int, transfer: Transfer) -> None:
        """Free the target of a failed transfer; a load's page is withdrawn. The caller handles its longer prefixes."""
        if transfer.kind == "load":
            self.unpin(id, HOST, transfer.source)
            self.emit(Drop(DEVICE, [transfer.target], [transfer.node.key]))
            self.emit(Release(holder(id), DEVICE, [transfer.target]))
        else:
            self.emit(Release(holder(id), HOST, [transfer.target]))
            self.free.give_back(int(transfer.target))

    def used(self) -> dict[str, set[int | str]]:
        """Pool -> its pages that transfers in flight read or write."""
        used: dict[str, set[int | str]] = {pool: set() for pool in (DEVICE, HOST, STORAGE)}
        for transfer in self.in_flight.values():
            source, target = _pools(transfer)
            used[source].add(transfer.source)
            used[target].add(transfer.target)
        return used

    def take_host(self, id: int) -> int:
        """Take a host page for the transfer. The caller has checked that there is one."""
        page = self.free.take()
        self.emit(Take(holder(id), HOST, [page]))
        return page

    def fence(self, stream: str, on: str) -> None:
        """Order later operations of `stream` after those that `on` has queued so far."""
        self.emit(Wait(stream, on=on))

    def pin(self, id: int, pool: str, page: int) -> None:
        """Keep a transfer's source from being handed out."""
        self.emit(Share(holder(id), pool, [page], pin=True))

    def unpin(self, id: int, pool: str, page: int | str) -> None:
        """Release a transfer's source."""
        self.emit(Release(holder(id), pool, [page]))

    def _start(self, id: int, transfer: Transfer) -> None:
        transfer.node.moving += 1
        self.in_flight[id] = transfer
        source, target = _pools(transfer)
        # The storage's pages have no holder.
        uses = [
            Use(pool=pool, pages=[page], labels=[transfer.node.label], holder=None if pool == STORAGE else holder(id))
            for pool, page in ((source, transfer.source), (target, transfer.target))
        ]
        self.emit(Begin(id, stream(transfer), copies=[(uses[0], uses[1])], at=transfer.kind))


def holder(id: int) -> str:
    """The holder name of a transfer."""
    return f"t{id}"


def stream(transfer: Transfer) -> str:
    """The stream of a transfer."""
    return "write" if transfer.kind in ("backup", "store") else transfer.kind


def _pools(transfer: Transfer) -> tuple[str, str]:
    return {"backup": (DEVICE, HOST), "load": (HOST, DEVICE), "store": (HOST, STORAGE), "prefetch": (STORAGE, HOST)}[
        transfer.kind
    ]
