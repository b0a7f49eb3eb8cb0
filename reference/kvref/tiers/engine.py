"""The tiered engine: requests are matched, prefilled, decoded and released; prefixes are on the device and on the host.

Forward passes run on one stream, and are queued before the host has seen the last one complete (overlap). So a page may
be handed on while a pass in flight still uses it. That is safe: the next pass comes later on the same stream, and a
transfer waits for that stream.
"""

from hashlib import blake2b
from typing import NamedTuple

from kvref.tiers.state import DEVICE, FORWARD, HOST, Emit, FreeList, Node, Request, Run, Sizes
from kvref.tiers.transfers import Transfers
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    EndHolder,
    Map,
    Publish,
    Release,
    Share,
    Take,
    Unify,
    Unmap,
    Use,
)


class Part(NamedTuple):
    """One request's part in a forward pass: positions `start` to `end`."""

    run: Run
    start: int
    end: int
    samples: bool
    """Whether it samples a token."""


class TieredEngine:
    """A paged KV cache with a host tier."""

    transfers_type = Transfers

    def __init__(self, sizes: Sizes, emit: Emit) -> None:
        """Nothing is cached; memory events go to `emit`."""
        self.sizes, self.emit = sizes, emit
        self.transfers = self.transfers_type(sizes, emit)
        self.free = FreeList(sizes.device_pages)
        self.root = Node("", None, "")
        self.requests: dict[str, Request] = {}
        self.passes: dict[int, list[Part]] = {}
        self._ids = 0
        self._runs = 0

    def submit(self, name: str, tokens: list[int], target: int) -> None:
        """Queue a request; it finishes with `target` tokens."""
        self.requests[name] = Request(list(tokens), target)

    def admit(self, name: str, length: int | None = None) -> bool:
        """Match a waiting request's prefix, load its host pages, and let it run; false if there is no room.

        The last token is always computed, so it is not matched; nor is any token past `length`, if that is given.

        [0, device)        on the device: shared
        [device, matched)  on the host: loaded into new pages; passes that read them wait for the load
        [matched, tokens)  computed
        """
        request = self.requests[name]
        nodes = self.match(request.tokens[:-1][:length])
        for node in nodes:
            node.locks += 1
        if not self.make_room(sum(node.device is None for node in nodes) + 1):
            for node in nodes:
                node.locks -= 1
            return False
        self._runs += 1
        run = request.run = Run(f"{name}.{self._runs}", name)
        for node in nodes:
            if node.device is None:
                self.transfers.load(self.new_id(), node, self.free.take())
            self.share(run, node)
            request.table.append(self.page_of(node))
            request.loads += self.loads_of(node)
        request.locked = nodes
        request.queued = request.computed = len(nodes) * self.sizes.page_size
        labels = [self.content(request.tokens, index) for index in range(len(nodes))]
        self.emit(Map(run.name, run.name, DEVICE, 0, [*request.table], labels))
        return True

    def queue_pass(self, names: list[str]) -> int | None:
        """Queue a forward pass over those of the requests that have tokens to compute and room for them.

        Returns its number; `None` if there is no such request, or if `overlap` passes are in flight.
        """
        parts = []
        for name in names if len(self.passes) < self.sizes.overlap else ():
            part = self.plan(self.requests[name])
            if part is not None:
                parts.append(part)
        if not parts:
            return None
        return self.launch(parts)

    def launch(self, parts: list[Part]) -> int:
        """Queue a forward pass; returns its number."""
        id = self.new_id()
        writes = [Use(table=part.run.name, start=part.start, stop=part.end) for part in parts]
        self.emit(Begin(id, FORWARD, self.reads(parts), writes, after=self.awaited(parts), at="forward"))
        for part in parts:
            self.requests[part.run.request].queued = part.end
        self.passes[id] = parts
        return id

    def reads(self, parts: list[Part]) -> list[Use]:
        """The reads of a pass."""
        return [Use(table=part.run.name, stop=part.end) for part in parts]

    def plan(self, request: Request) -> Part | None:
        """A request's part of the next pass: a chunk of its prompt, or one position; `None` without room."""
        if request.run is None or request.queued >= request.target:
            return None
        start, known = request.queued, len(request.tokens)
        end = min(start + self.sizes.chunk, known) if start < known else start + 1
        if not self.make_room(self.missing(request, end)):
            return None
        self.grow(request.run, request, end)
        return Part(request.run, start, end, samples=end >= known)

    def missing(self, request: Request, end: int) -> int:
        """The number of pages that a request lacks for positions up to `end`."""
        return max(0, -(-end // self.sizes.page_size) - len(request.table))

    def grow(self, run: Run, request: Request, end: int) -> None:
        """Take free pages for positions up to `end`; the caller has checked that there are enough."""
        pages = [self.free.take() for _ in range(self.missing(request, end))]
        if pages:
            first = len(request.table)
            self.emit(Take(run.name, DEVICE, [*pages]))
            labels = [f"{run.name}/{index}" for index in range(first, first + len(pages))]
            self.emit(Map(run.name, run.name, DEVICE, first, [*pages], labels))
            request.table += pages

    def awaited(self, parts: list[Part]) -> list[int | str]:
        """The loads that a pass waits for: those in flight that bring pages of its requests."""
        loads = {id for part in parts for id in self.requests[part.run.request].loads}
        return sorted(loads & self.transfers.in_flight.keys())

    def see_pass(self, id: int) -> None:
        """Process a completed pass: deliver tokens, publish whole pages, finish requests."""
        for part, request in self.computed(id):
            if part.samples:
                self.deliver(id, part, request, _sample(request.tokens))
            self.publish(request)
            if len(request.tokens) >= request.target:
                self.leave(part.run.request)

    def computed(self, id: int) -> list[tuple[Part, Request]]:
        """Take in a completed pass. Returns the parts whose requests still run, each with its request."""
        parts = self.passes.pop(id)
        self.emit(End(id))
        found = [(part, self.requests[part.run.request]) for part in parts if part.run.request in self.requests]
        still = [(part, request) for part, request in found if request.run == part.run]
        for part, request in still:
            request.computed = part.end
        return still

    def deliver(self, id: int, part: Part, request: Request, token: int) -> None:
        """Deliver a token to the client."""
        self.emit(Deliver(id, part.run.name))
        request.tokens.append(token)

    def see_transfer(self, id: int, failed: bool = False) -> None:
        """Process a transfer that has completed or failed."""
        transfer = self.transfers.complete(id, failed)
        node = transfer.node
        if failed and transfer.kind == "load":
            for name, request in self.requests.items():
                if node in request.locked:
                    self.retract(name)
            node.device = None
            self.free.give_back(int(transfer.target))
        if node in self.transfers.wanted_gone:
            self.transfers.wanted_gone.discard(node)
            if self.may_leave_device(node):
                self.drop_device(node)
        self.prune(node)

    def publish(self, request: Request) -> None:
        """Publish a request's whole computed pages; if a prefix is cached already, use the cached page instead.

        [0, locked)          cached already
        [locked, computed)   whole pages: published, or exchanged for the cached page
        """
        assert request.run is not None
        run, size = request.run, self.sizes.page_size
        for index in range(len(request.locked), request.computed // size):
            parent = request.locked[-1] if request.locked else self.root
            key = self.key(parent.key, request.tokens[index * size : (index + 1) * size])
            label = self.content(request.tokens, index)
            self.emit(Unify(f"{run.name}/{index}", label))
            node = parent.children.setdefault(key, Node(key, parent, label))
            node.locks += 1
            request.locked.append(node)
            own = request.table[index]
            if node.device is None:
                node.device = own
                self.emit(Publish(DEVICE, [own], [key], [label]))
                if self.sizes.write_through:
                    self.back_up(node)
            else:
                self.exchange(request, index, node)

    def exchange(self, request: Request, index: int, node: Node) -> None:
        """Replace a request's own page by the cached page with the same content, and free it."""
        assert request.run is not None
        own, run = request.table[index], request.run
        self.share(run, node)
        request.table[index] = self.page_of(node)
        request.loads += self.loads_of(node)
        label = self.content(request.tokens, index)
        self.emit(Map(run.name, run.name, DEVICE, index, [request.table[index]], [label]))
        self.emit(Release(run.name, DEVICE, [own]))
        self.free.give_back(own)

    def leave(self, name: str) -> None:
        """End a request, finished or aborted, and release its memory."""
        self.retract(name)
        del self.requests[name]

    def retract(self, name: str) -> None:
        """Release a request's memory; it waits again with its tokens."""
        request = self.requests[name]
        if request.run is None:
            return
        self.emit(Unmap(request.run.name))
        for node in request.locked:
            node.locks -= 1
        self.emit(Release(request.run.name, DEVICE, [*request.table]))
        for page in request.table[len(request.locked) :]:
            self.free.give_back(page)
        self.emit(EndHolder(request.run.name))
        self.requests[name] = Request(request.tokens, request.target)

    def match(self, tokens: list[int]) -> list[Node]:
        """The longest cached prefix of whole pages, on the device or on the host."""
        size, nodes, node = self.sizes.page_size, list[Node](), self.root
        for start in range(0, len(tokens) - size + 1, size):
            child = node.children.get(self.key(node.key, tokens[start : start + size]))
            if child is None or (child.device is None and child.host is None):
                break
            nodes.append(child)
            node = child
        return nodes

    def make_room(self, pages: int) -> bool:
        """Evict until so many device pages are free; false if that is impossible now."""
        while len(self.free.pages) < pages:
            if not self.evict():
                return False
        return True

    def evict(self) -> bool:
        """Evict one cached page from the device; with write-back, it is first copied to the host if it is not there."""
        for node in list(self.root.below()):
            if self.may_leave_device(node):
                if node.host is not None or self.sizes.write_through or not self.back_up(node):
                    self.drop_device(node)
                    return True
                self.transfers.wanted_gone.add(node)
        return False

    def may_leave_device(self, node: Node) -> bool:
        """Whether a device page is unused, and no longer prefix is on the device."""
        alone = all(child.device is None for child in node.children.values())
        return node.device is not None and not node.locks and not node.moving and alone

    def drop_device(self, node: Node) -> None:
        """Free the device page of a cached prefix."""
        page = self.page_of(node)
        self.emit(Drop(DEVICE, [page], [node.key]))
        self.free.give_back(page)
        node.device = None
        self.prune(node)

    def back_up(self, node: Node) -> bool:
        """Start the copy of a page to the host, if it is not there and there is room."""
        if node.host is not None or node.moving or not (self.transfers.free.pages or self.evict_host()):
            return False
        self.transfers.backup(self.new_id(), node)
        return True

    def evict_host(self) -> bool:
        """Evict one cached page from the host tier."""
        for node in list(self.root.below()):
            if self.may_leave_host(node):
                self.emit(Drop(HOST, [node.host or 0], [node.key]))
                self.transfers.free.give_back(node.host or 0)
                node.host = None
                self.prune(node)
                return True
        return False

    def may_leave_host(self, node: Node) -> bool:
        """Whether a host page is unused, and no longer prefix is on the host."""
        alone = all(child.host is None for child in node.children.values())
        return node.host is not None and not node.moving and not (node.locks and node.device is None) and alone

    def store(self) -> bool:
        """Start the copy to the storage of a host page that it lacks, if there is one."""
        for node in self.root.below() if self.sizes.storage else ():
            if node.host is not None and not node.moving and node.key not in self.transfers.stored:
                self.transfers.store(self.new_id(), node)
                return True
        return False

    def prefetch(self, tokens: list[int]) -> bool:
        """Start the copy of a prompt's first uncached page from the storage to the host."""
        nodes, size = self.match(tokens), self.sizes.page_size
        parent, rest = nodes[-1] if nodes else self.root, tokens[len(nodes) * size :][:size]
        key = self.key(parent.key, rest)
        if len(rest) < size or key not in self.transfers.stored or not (self.transfers.free.pages or self.evict_host()):
            return False
        if parent.parent is not None and parent.device is None and parent.host is None:
            return False
        node = parent.children.setdefault(key, Node(key, parent, self.content(tokens, len(nodes))))
        if node.moving:
            return False
        self.transfers.prefetch(self.new_id(), node)
        return True

    def prune(self, node: Node) -> None:
        """Remove nodes without a page, a child, a lock or a transfer."""
        while node.parent is not None and not (node.device or node.host or node.children or node.locks or node.moving):
            del node.parent.children[node.key]
            node = node.parent

    def share(self, run: Run, node: Node) -> None:
        """Let a run share a cached page."""
        self.emit(Share(run.name, DEVICE, [self.page_of(node)], [node.key]))

    def key(self, parent: str, page: list[int]) -> str:
        """The name of the prefix that ends with a page of tokens."""
        return blake2b(f"{parent}/{page}".encode(), digest_size=4).hexdigest()

    def content(self, tokens: list[int], index: int) -> str:
        """The content label of page `index` of a request with these tokens: all tokens up to its end."""
        return " ".join(map(str, tokens[: (index + 1) * self.sizes.page_size]))

    def page_of(self, node: Node) -> int:
        """The device page of a node that has one."""
        assert node.device is not None, "it is on the device"
        return node.device

    def loads_of(self, node: Node) -> list[int]:
        """The load in flight that brings a node's page, if there is one."""
        flying = self.transfers.in_flight.items()
        return [id for id, transfer in flying if transfer.kind == "load" and transfer.node is node]

    def count(self) -> None:
        """Emit the counts of free pages, and of unused cached pages."""
        used, nodes = self.transfers.used(), list(self.root.below())
        device = [node.device for node in nodes if node.device and not node.locks and node.device not in used[DEVICE]]
        host = [node.host for node in nodes if node.host and node.host not in used[HOST]]
        self.emit(Count(DEVICE, free=[*self.free.pages], cached=[*device]))
        self.emit(Count(HOST, free=[*self.transfers.free.pages], cached=[*host]))

    def check_evicted(self) -> None:
        """Check that nothing is cached after everything was evicted.

        Raises:
            AssertionError: an unused prefix is never evicted.
        """
        left = len(list(self.root.below()))
        assert not left, f"{left} cached prefixes are never evicted"

    def new_id(self) -> int:
        """The number of the next operation."""
        self._ids += 1
        return self._ids


def _sample(tokens: list[int]) -> int:
    """The next token: a function of all tokens before it."""
    return sum(tokens) % 3
