"""Mutants of the transfers between device and host."""

from kvconform.gallery.tiers.bug import defect
from kvref.tiers.state import DEVICE, HOST, Node
from kvref.tiers.transfers import Transfer, Transfers, holder
from kvspec.memory.events import Drop, Publish, Release, Take


@defect("load-unfenced", "a load does not wait for passes that use its target", "MEM-RACE")
class _LoadUnfenced(Transfers):
    def fence(self, stream: str, on: str) -> None:
        if stream != "load":
            super().fence(stream, on)


@defect("fence-reversed", "the passes wait for the transfer, not the transfer for them", "MEM-RACE")
class _FenceReversed(Transfers):
    def fence(self, stream: str, on: str) -> None:
        super().fence(on, stream)


class Unpinned(Transfers):
    """Transfers that pin neither source nor target."""

    def pin(self, id: int, pool: str, page: int) -> None:
        """Pin nothing."""
        self.unpinned = True

    def unpin(self, id: int, pool: str, page: int | str) -> None:
        """Unpin nothing."""
        self.unpinned = True


@defect("backup-published-early", "the host page of a backup has a name before it is taken", "MEM-NAME")
class _BackupPublishedEarly(Transfers):
    def backup(self, id: int, node: Node) -> None:
        self.emit(Publish(HOST, [self.free.pages[0]], [node.key], [node.label]))
        super().backup(id, node)


@defect("prefetch-published-early", "the name of a failed prefetch stays", "MEM-NAME")
class _PrefetchPublishedEarly(Transfers):
    """A page is published before it is prefetched, and stays published when the prefetch fails."""

    def prefetch(self, id: int, node: Node) -> None:
        super().prefetch(id, node)
        target = self.in_flight[id].target
        self.emit(Publish(HOST, [target], [node.key], [node.label], planned=True))


@defect("failed-load-keeps-name", "the name of a failed load stays", "MEM-NAME", "MEM-COUNT")
class _FailedLoadKeepsItsName(Transfers):
    def forget_failed(self, id: int, transfer: Transfer) -> None:
        if transfer.kind == "load":
            self.unpin(id, HOST, transfer.source)
            self.emit(Release(holder(id), DEVICE, [transfer.target]))
        else:
            super().forget_failed(id, transfer)


@defect("failed-prefetch-published", "a failed prefetch is published", "MEM-NAME")
class _FailedPrefetchPublished(Transfers):
    def forget_failed(self, id: int, transfer: Transfer) -> None:
        if transfer.kind == "prefetch":
            self.after_prefetch(id, transfer)
        else:
            super().forget_failed(id, transfer)


@defect("target-not-released", "the target of a backup stays the transfer's", "MEM-LEAK", "MEM-COUNT")
class _TargetNotReleased(Transfers):
    def after_backup(self, id: int, transfer: Transfer) -> None:
        self.unpin(id, DEVICE, transfer.source)
        if transfer.node.host is None:
            transfer.node.host = int(transfer.target)
            self.emit(Publish(HOST, [transfer.target], [transfer.node.key], [transfer.node.label]))


@defect("pin-forgotten", "a transfer's host page stays pinned", "MEM-LEAK", "MEM-COUNT", "MEM-TAKE")
class _PinForgotten(Transfers):
    def unpin(self, id: int, pool: str, page: int | str) -> None:
        if pool != HOST:
            super().unpin(id, pool, page)


@defect("unpinned-twice", "a load's source is let go twice", "MEM-RELEASE")
class _UnpinnedTwice(Transfers):
    def after_load(self, id: int, transfer: Transfer) -> None:
        super().after_load(id, transfer)
        self.unpin(id, HOST, transfer.source)


@defect("host-page-lost-after-load", "a loaded page leaves the host and is not free", "MEM-COUNT")
class _HostPageLostAfterLoad(Transfers):
    """A loaded page leaves the host, but does not return to its free list."""

    def after_load(self, id: int, transfer: Transfer) -> None:
        super().after_load(id, transfer)
        self.emit(Drop(HOST, [transfer.source], [transfer.node.key]))
        transfer.node.host = None


@defect("target-taken-late", "a transfer writes its target before it has it", "MEM-USE")
class _TargetTakenLate(Transfers):
    """A host page is used for a backup before it is taken."""

    def take_host(self, id: int) -> int:
        page = self.free.take()
        self.late = Take(holder(id), HOST, [page])
        return page

    def backup(self, id: int, node: Node) -> None:
        super().backup(id, node)
        self.emit(self.late)

    def prefetch(self, id: int, node: Node) -> None:
        super().prefetch(id, node)
        self.emit(self.late)
