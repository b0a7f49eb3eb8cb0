"""The state of the tiered engine: sizes, free pages, requests, and the nodes of the prefix tree."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvspec.memory.events import Event, Pool

Emit = Callable[[Event], object]
"""Takes each memory event as it happens."""
DEVICE, HOST, STORAGE = "device", "host_tier", "storage"
FORWARD = "forward"
"""The stream of forward passes; each kind of transfer has its own, or shares one."""


class Sizes(NamedTuple):
    """The sizes of the engine, in tokens, pages and launches, and its policies."""

    page_size: int = 2
    device_pages: int = 10
    host_pages: int = 8
    overlap: int = 2
    """Forward passes that may be in flight."""
    chunk: int = 5
    """The most tokens that a pass prefills of one request."""
    write_through: bool = True
    """Whether pages are copied to the host at their publication; else at their eviction (write-back)."""
    storage: bool = True

    def pools(self) -> dict[str, Pool]:
        """The pools, as in the header of a trace."""
        pools = {DEVICE: Pool(self.page_size, self.device_pages), HOST: Pool(self.page_size, self.host_pages)}
        return pools | ({STORAGE: Pool(self.page_size, keyed=True)} if self.storage else {})


@dataclass(eq=False)
class Node:
    """One cached page of tokens; `key` names the prefix that ends with it."""

    key: str
    parent: "Node | None"
    label: str
    """The content of the page."""
    device: int | None = None
    """Its page on the device."""
    host: int | None = None
    locks: int = 0
    """Requests that have it in their table."""
    moving: int = 0
    """Transfers in flight that read or write one of its pages."""
    children: "dict[str, Node]" = field(default_factory=dict)

    def path(self) -> "list[Node]":
        """The nodes from the root's child to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def below(self) -> "Iterator[Node]":
        """All longer prefixes."""
        for child in self.children.values():
            yield child
            yield from child.below()


class Run(NamedTuple):
    """One residency of a request: its name labels the pages that it computes, until their content is known."""

    name: str
    request: str


@dataclass
class Request:
    """One request. Lengths in tokens."""

    tokens: list[int]
    target: int
    """Its length when it finishes."""
    run: Run | None = None
    table: list[int] = field(default_factory=list)
    locked: list[Node] = field(default_factory=list)
    """The cached pages at the beginning of its table."""
    queued: int = 0
    """Positions that are computed or queued."""
    computed: int = 0
    """Positions that the host has seen computed."""
    loads: list[int] = field(default_factory=list)
    """Transfers that bring pages of its table."""


class FreeList:
    """The free pages of one pool."""

    def __init__(self, pages: int) -> None:
        """All of them, numbered from 1."""
        self.pages = deque(range(1, pages + 1))

    def take(self) -> int:
        """Take the page that has been free for the longest time."""
        return self.pages.popleft()

    def give_back(self, page: int) -> None:
        """Free a page."""
        self.pages.append(page)
