"""Sizes, free pages, and the nodes of the prefix tree: what the tiered engine remembers."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvspec.memory.events import Event, Pool

Tell = Callable[[Event], object]
DEVICE, HOST, STORAGE = "device", "host_tier", "storage"
FORWARD = "forward"
"""The stream of forward passes; each kind of transfer has its own, or shares one."""


class Sizes(NamedTuple):
    """How large the engine is, in tokens, pages and launches, and which policies it has."""

    page_size: int = 2
    device_pages: int = 10
    host_pages: int = 8
    overlap: int = 2
    """Forward passes that may be in flight."""
    chunk: int = 5
    """Tokens that a pass prefills of one request at most."""
    write_through: bool = True
    """Whether pages are copied to the host when they are published; else when they are evicted (write-back)."""
    storage: bool = True

    def pools(self) -> dict[str, Pool]:
        """The pools, as the header of a trace names them."""
        pools = {DEVICE: Pool(self.page_size, self.device_pages), HOST: Pool(self.page_size, self.host_pages)}
        return pools | ({STORAGE: Pool(self.page_size, keyed=True)} if self.storage else {})


@dataclass(eq=False)
class Node:
    """One cached page of tokens: the prefix that ends with it is named by `key`."""

    key: str
    parent: "Node | None"
    label: str
    """What the page holds."""
    device: int | None = None
    """Its page on the device."""
    host: int | None = None
    locks: int = 0
    """Requests that have it in their table."""
    moving: int = 0
    """Transfers in flight that read or write one of its pages."""
    children: "dict[str, Node]" = field(default_factory=dict)

    def path(self) -> "list[Node]":
        """From the root's child to this node."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def below(self) -> "Iterator[Node]":
        """Every longer prefix."""
        for child in self.children.values():
            yield child
            yield from child.below()


class Run(NamedTuple):
    """A stretch of work for one request: what it computes is labelled with its name until it is known."""

    name: str
    request: str


@dataclass
class Request:
    """One request. Lengths in tokens."""

    tokens: list[int]
    target: int
    """It is finished with so many tokens."""
    run: Run | None = None
    table: list[int] = field(default_factory=list)
    locked: list[Node] = field(default_factory=list)
    """The cached pages at the beginning of its table."""
    queued: int = 0
    """Positions that are computed, or queued to be."""
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
        """Hand the page out that has been free for longest."""
        return self.pages.popleft()

    def give_back(self, page: int) -> None:
        """A page is free again."""
        self.pages.append(page)
