"""Mutants of the engine above the transfers: its passes, its tree and its pages."""

from typing import Any

from kvconform.gallery.tiers.bug import defect
from kvconform.gallery.tiers.transfers import Unpinned
from kvref.tiers.engine import Part, TieredEngine
from kvref.tiers.state import DEVICE, FreeList, Node, Request, Run
from kvref.tiers.transfers import holder
from kvspec.memory.events import Deliver, End, EndHolder, Map, Release, Unify, Unmap, Use


@defect("copied-when-queued", "a backup does not wait for the pass that writes its source", "MEM-RACE")
class _PublishedWhenQueued(TieredEngine):
    """Pages are published, and copied to the host, when the pass that computes them is queued."""

    def queue_pass(self, names: list[str]) -> int | None:
        id = super().queue_pass(names)
        for part in () if id is None else self.passes[id]:
            request = self.requests[part.run.request]
            computed, request.computed = request.computed, min(part.end, len(request.tokens))
            self.publish(request)
            request.computed = computed
        return id


@defect("pass-does-not-wait-for-load", "a pass does not wait for what it reads to be loaded", "MEM-RACE")
class _PassDoesNotWait(TieredEngine):
    def awaited(self, parts: list[Part]) -> list[int | str]:
        return []


@defect("pass-waits-for-one-load", "a pass waits for the first of several loads", "MEM-RACE")
class _PassWaitsForOneLoad(TieredEngine):
    def awaited(self, parts: list[Part]) -> list[int | str]:
        return super().awaited(parts)[:1]


@defect("hit-on-loading-page-does-not-wait", "a second reader of a page in loading does not wait", "MEM-RACE")
class _MatchForgetsLoads(TieredEngine):
    """Another request that hits a page while it is being loaded does not wait for it."""

    def loads_of(self, node: Node) -> list[int]:
        return super().loads_of(node) if node.locks == 1 else []


@defect("host-page-evicted-while-loaded", "a host page is evicted while a transfer uses it", "MEM-TAKE", "MEM-COUNT")
class _HostPageEvictedWhileUsed(TieredEngine):
    def may_leave_host(self, node: Node) -> bool:
        alone = all(child.host is None for child in node.children.values())
        return node.host is not None and not (node.locks and node.device is None) and alone


@defect("device-page-evicted-while-copied", "a device page is evicted while a backup reads it", "MEM-TAKE", "MEM-COUNT")
class _DevicePageEvictedWhileCopied(TieredEngine):
    def may_leave_device(self, node: Node) -> bool:
        alone = all(child.device is None for child in node.children.values())
        return node.device is not None and not node.locks and alone


@defect("source-unpinned", "a backup neither pins its source nor keeps it from eviction", "MEM-USE", "MEM-RACE")
class _SourceEvictedUnpinned(_DevicePageEvictedWhileCopied):
    """Neither pins nor checks: the page of a backup is reused and overwritten while it is read."""

    transfers_type = Unpinned


@defect("locked-page-evicted", "locks are not checked when a page is evicted", "MEM-COUNT", "MEM-TAKE")
class _LockedPageEvicted(TieredEngine):
    def may_leave_device(self, node: Node) -> bool:
        return node.device is not None and not node.moving


@defect("evicted-page-keeps-name", "an evicted page can still be found", "MEM-COUNT", "MEM-TAKE")
class _EvictedPageKeepsItsName(TieredEngine):
    def drop_device(self, node: Node) -> None:
        self.free.give_back(self.page_of(node))
        node.device = None
        self.prune(node)


@defect("host-name-kept", "a page that left the host tier can still be found there", "MEM-COUNT", "MEM-TAKE")
class _HostNameKept(TieredEngine):
    def evict_host(self) -> bool:
        for node in self.root.below():
            if self.may_leave_host(node):
                self.transfers.free.give_back(node.host or 0)
                node.host = None
                self.prune(node)
                return True
        return False


@defect("failed-load-goes-on", "requests go on with what was not loaded", "MEM-NAME", "MEM-WRITTEN", "MEM-DELIVER")
class _ReadersOfAFailedLoadGoOn(TieredEngine):
    """A failed load counts as done."""

    def see_transfer(self, id: int, failed: bool = False) -> None:
        transfer = self.transfers.in_flight[id]
        if failed and transfer.kind == "load":
            transfer = self.transfers.in_flight.pop(id)
            self.emit(End(id, unwritten=[Use(pool=DEVICE, pages=[transfer.target], holder=holder(id))]))
            transfer.node.moving -= 1
            self.transfers.after_load(id, transfer)
        else:
            super().see_transfer(id, failed)


@defect("failed-results-delivered", "tokens of a request that was taken back are delivered", "MEM-DELIVER")
class _ResultsOfAFailedLoadDelivered(TieredEngine):
    """A pass's output is delivered although its request was withdrawn meanwhile."""

    def see_pass(self, id: int) -> None:
        for run, _, _, samples in self.passes[id]:
            request = self.requests.get(run.request)
            if samples and request is not None and request.run != run:
                self.emit(Deliver(id, run.name))
        super().see_pass(id)


@defect("completion-twice", "a pass is taken for complete twice", "MEM-ORDER")
class _CompletionTakenTwice(TieredEngine):
    def see_pass(self, id: int) -> None:
        super().see_pass(id)
        self.emit(End(id))


@defect("duplicate-kept", "a duplicate is neither used nor freed", "MEM-LEAK")
class _DuplicateKept(TieredEngine):
    """The own page of an exchange is neither used nor freed."""

    def exchange(self, request: Request, index: int, node: Node) -> None:
        assert request.run is not None
        self.share(request.run, node)
        request.table[index] = self.page_of(node)
        request.loads += self.loads_of(node)
        self.emit(Map(request.run.name, request.run.name, DEVICE, index, [request.table[index]], [node.label]))


@defect("duplicate-in-table", "a freed duplicate stays in the table", "MEM-USE", "MEM-CONTENT")
class _DuplicateStaysInTheTable(TieredEngine):
    """The own page of an exchange is freed, and the launched table still names it."""

    def exchange(self, request: Request, index: int, node: Node) -> None:
        assert request.run is not None
        own = request.table[index]
        self.share(request.run, node)
        request.table[index] = self.page_of(node)
        self.emit(Release(request.run.name, DEVICE, [own]))
        self.free.give_back(own)


@defect("wrong-duplicate-freed", "the cached page is freed, not the duplicate", "MEM-COUNT")
class _WrongDuplicateFreed(TieredEngine):
    def exchange(self, request: Request, index: int, node: Node) -> None:
        own = request.table[index]
        super().exchange(request, index, node)
        self.free.pages.remove(own)
        self.free.give_back(request.table[index])


@defect("hit-not-counted", "a cache hit takes no reference", "MEM-COUNT", "MEM-USE", "MEM-RELEASE")
class _SharedPageNotCounted(TieredEngine):
    """A cache hit takes no reference."""

    def share(self, run: Run, node: Node) -> None:
        self.page_of(node)


@defect("tail-lost", "the last page of a request is not released", "MEM-LEAK")
class _TailLost(TieredEngine):
    """The last page of a released request is forgotten."""

    def retract(self, name: str) -> None:
        table = self.requests[name].table
        if len(table) > len(self.requests[name].locked):
            table.pop()
        super().retract(name)


@defect("tail-freed-twice", "the last page of a request is given back twice", "MEM-COUNT", "MEM-TAKE")
class _TailFreedTwice(TieredEngine):
    def retract(self, name: str) -> None:
        request = self.requests[name]
        super().retract(name)
        if len(request.table) > len(request.locked):
            self.free.give_back(request.table[-1])


@defect("lock-kept", "what a request that is let go had locked stays locked", "MEM-COUNT")
class _LockKept(TieredEngine):
    def retract(self, name: str) -> None:
        request = self.requests[name]
        super().retract(name)
        if request.run is not None:
            for node in request.locked:
                node.locks += 1


@defect("shared-pages-freed", "shared pages are given back with one's own", "MEM-COUNT", "MEM-TAKE")
class _SharedPagesFreed(TieredEngine):
    """A released request also frees its shared pages."""

    def retract(self, name: str) -> None:
        request = self.requests[name]
        super().retract(name)
        for page in request.table[: len(request.locked)]:
            self.free.give_back(page)


@defect("private-pages-lost", "released pages do not return to the free list", "MEM-COUNT")
class _PrivatePagesLost(TieredEngine):
    """References are released, but the pages do not return to the free list."""

    def retract(self, name: str) -> None:
        request = self.requests[name]
        private = request.table[len(request.locked) :]
        super().retract(name)
        for page in private:
            self.free.pages.remove(page)


@defect("leaves-before-release", "a request is gone before it lets go", "MEM-LEAK")
class _LeavesBeforeItReleases(TieredEngine):
    def retract(self, name: str) -> None:
        request = self.requests[name]
        if request.run is not None:
            self.emit(EndHolder(request.run.name))
        super().retract(name)


@defect("published-too-early", "a page is published before its last position is computed", "MEM-NAME", "MEM-FAILED")
class _PublishedTooEarly(TieredEngine):
    """A page is published with the token that was just sampled, whose position is not computed yet."""

    def publish(self, request: Request) -> None:
        computed = request.computed
        request.computed = len(request.tokens)
        super().publish(request)
        request.computed = computed


@defect("published-under-wrong-name", "a page's name leaves out what stands before it", "MEM-NAME", "MEM-CONTENT")
class _PublishedUnderTheWrongName(TieredEngine):
    def key(self, parent: str, page: list[int]) -> str:
        return super().key("", page)


@defect("hit-on-other-tokens", "a page is found by its first token alone", "MEM-NAME", "MEM-CONTENT")
class _HitOnOtherTokens(TieredEngine):
    def key(self, parent: str, page: list[int]) -> str:
        return super().key(parent, page[:1])


@defect("rejected-tokens-published", "what a page holds is not what it is published for", "MEM-NAME")
class _LearnedWrongly(TieredEngine):
    """Rejected tokens stay in the published page."""

    def publish(self, request: Request) -> None:
        emit = self.emit

        def forgetful(event: Any) -> object:
            return None if isinstance(event, Unify) and event.label.endswith("/1") else emit(event)

        self.emit = forgetful
        super().publish(request)
        self.emit = emit


@defect("page-missing", "the last position of a pass has no page", "MEM-USE")
class _PageMissing(TieredEngine):
    """The last position of a pass has no page when it begins a new one."""

    def plan(self, request: Request) -> Part | None:
        part = super().plan(request)
        if part is None or part.end % self.sizes.page_size != 1 or part.end < 2 or self.sizes.page_size == 1:
            return part
        assert request.run is not None
        page = request.table.pop()
        self.emit(Unmap(request.run.name, len(request.table)))
        self.emit(Release(request.run.name, DEVICE, [page]))
        self.free.give_back(page)
        return part


class _HandsOutWithoutTaking(FreeList):
    def take(self) -> int:
        page = self.pages[0]
        self.pages.rotate(-1)
        return page


@defect("handed-out-twice", "the allocator hands a page out twice", "MEM-COUNT", "MEM-TAKE")
class _PageHandedOutTwice(TieredEngine):
    def __init__(self, sizes: Any, emit: Any) -> None:
        super().__init__(sizes, emit)
        self.free = _HandsOutWithoutTaking(sizes.device_pages)
