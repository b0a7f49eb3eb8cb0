"""The hooks' view of a release's tree: its nodes, their pages on the device and on the host, and their locks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, NamedTuple

from kvattach.books import in_runs
from kvattach.hooks import chained
from kvattach.residency import Run
from kvattach.sglang.pictures import Pictures, Seen, labelled
from kvattach.sglang.release import Release

Ids = list[int]
"""Numbers of pages."""
Space = tuple[str | None, str | None]
"""The extra key and the salt of a key: it does not match pages with other ones."""


KV = "kv"
WINDOW = "window"
STATES = "states"
HOST = "host"
STORAGE = "storage"
ROWS = "rows"
METADATA = "metadata"
NEW = "admission"
"""The holder of pages that were allocated or locked for requests before their first launch."""
TREE = "tree"
"""The holder for whom the tree frees its own pages. It never holds anything."""
EITHER = "tree or caller"
"""Stands for the tree where a function frees pages of the tree, and for its caller where it frees others."""


REMEMBERED = 100_000
"""The most namespaces with a remembered first label, the last used. Pages of a forgotten one have other names."""


def space(key: Any) -> Space:
    """The namespace of a key, or of a request; older releases have no salts there."""
    return key.extra_key, getattr(key, "cache_salt", None)


class Stay(Run):
    """A request while it has a row, or a session's slot between two turns."""

    def __init__(self, name: str, page_size: int, rid: str, whose: str = "", named: Space = (None, None)) -> None:
        """Begin without pages. `rid` is empty for a slot; `named` is the namespace of a request."""
        super().__init__(name, page_size, whose)
        self.rid, self.named = rid, named
        self.said: list[int] = []
        """For a slot: the tokens of the previous turn."""
        self.run = name
        """For a slot: the name of the previous turn."""
        self.pages: dict[str, Ids] = {}
        """Pool -> the pages in its table; the table of pages has the request's name."""
        self.entries = bytearray()
        """The first entry of each page in its row at the last launch, as bytes."""
        self.row = -1
        self.captured = 0
        """The tokens that were captured for its labels, in whole pages."""
        self.known = 0
        """The same, as far as captures are resolved."""
        self.lock: Any = None
        """The lock with which it was launched last."""
        self.looked = 0
        """The most tokens that were captured of its row, in whole pages."""
        self.seen = 0
        """The pages of these, as far as captures are resolved."""
        self.reads_from = 0
        """The first page that layers with a window read in its last launch."""
        self.state: tuple[int, str] | None = None
        """The number of tokens that its recurrent state has seen after its last launch, and the label of that state."""
        self.images: dict[int, Seen] = {}
        """The places of its images and sounds."""

    def _chained(self, before: str, page: tuple[int, ...]) -> str:
        """The label of the next page."""
        if not self.images:
            return chained(before, page)
        start = len(self._labels) * self._size
        return labelled(before, page, [self.images.get(start + at) for at in range(len(page))])

    def table(self, pool: str) -> str:
        """The name of its table of a pool."""
        return self.name if pool == KV else f"{self.name} {pool}"


class Spot(NamedTuple):
    """A node of a tree in Python, with its key at the time of a capture."""

    node: Any
    key: Any
    above: "Spot | None"


class Tree:
    """One tree in Python, of any kind that releases have."""

    opaque = False
    """Whether the number of locks of a node is invisible."""

    def __init__(self, release: Release, cache: Any, page_size: int, pictures: Pictures) -> None:
        """View a tree with pages of `page_size` tokens."""
        self._cache, self._size, self._pictures = cache, page_size, pictures
        self._torch = release.torch
        kinds = release.component.ComponentType if release.unified else None
        self._full = kinds.FULL if kinds is not None else None
        self._components = {KV: None}
        if kinds is not None:
            self._components = {KV: kinds.FULL, WINDOW: kinds.SWA, STATES: kinds.MAMBA}
        self.pools = [KV]
        """The pools with pages in its nodes."""
        self._whose: dict[Space, str] = {}
        """Namespace of keys -> the first label of its last user (`kvattach.residency.foreign`)."""
        self._used: tuple[Space, str] | None = None
        """The namespace that was used last, and its first label."""
        if kinds is not None:
            self.pools += [WINDOW] * cache.supports_swa() + [STATES] * cache.supports_mamba()

    def used(self, named: Space, whose: str) -> None:
        """A request uses a namespace, with this first label."""
        if (named, whose) == self._used:
            return
        self._used = named, whose
        self._whose.pop(named, None)
        self._whose[named] = whose
        if len(self._whose) > REMEMBERED:
            del self._whose[next(iter(self._whose))]

    def whose(self, named: Space) -> str:
        """The first label of a namespace."""
        return self._whose.get(named, "")

    def node(self, named: Any) -> Any:
        """The node that a release gives, as a number or as an object."""
        return self._cache.tree_core.node_by_id(named) if isinstance(named, int) else named

    @property
    def root(self) -> Any:
        """The root."""
        return self._cache.tree_core.root_node if self._full is not None else self._cache.root_node

    def path(self, named: Any) -> list[Any]:
        """The nodes from below the root to a node."""
        node, path = self.node(named), []
        while node is not None and node is not self.root:
            path.append(node)
            node = node.parent
        return path[::-1]

    def common(self, path: list[Any], others: list[Any]) -> list[int]:
        """How many nodes a path shares with the path to each of the others, which a release gives."""
        places = {id(node): at for at, node in enumerate(path, 1)}
        counts = []
        for other in others:
            node = self.node(other)
            while node is not None and id(node) not in places:
                node = node.parent
            counts.append(places.get(id(node), 0))
        return counts

    def nodes(self) -> Iterator[Any]:
        """Every node but the root."""
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            yield node

    def walk(self, key: Any, below: Any = None) -> Any:
        """The node at which a key ends, below another node or the root. Children are looked up by part of a key."""
        node = self.root if below is None else below
        while len(key):
            child = node.children.get(self._child_key(key))
            shared = 0 if child is None else self._shared(child.key, key)
            if not shared or shared < len(child.key):
                break
            node, key = child, key[shared:]
        return node

    def _child_key(self, key: Any) -> Any:
        """The part of a key by which a tree looks up a child. In later releases the key itself returns it."""
        find = getattr(self._cache, "get_child_key_fn", None)
        return find(key) if find is not None else key.child_key(self._size)

    def _shared(self, one: Any, other: Any) -> int:
        """The number of common tokens of two keys, in whole pages."""
        match = getattr(self._cache, "key_match_fn", None)
        return int(match(one, other) if match is not None else one.match(other, page_size=self._size))

    def device(self, node: Any, pool: str = KV) -> Ids:
        """The pages of a node in a pool on the device."""
        return self._of_pool(pool, self._value(node, pool))

    def _value(self, node: Any, pool: str) -> Any:
        return node.value if self._full is None else node.component_data[self._components[pool]].value

    def _of_pool(self, pool: str, value: Any) -> Ids:
        """The pages of a node's value, which has slots. Only a slot of a state is itself a page."""
        if pool == STATES:
            return [] if value is None else list(value.tolist())
        return self.pages(value)

    def values(self, path: list[Any]) -> list[Any]:
        """The tensors with the pages of a path, in all pools; `None` where a node has none."""
        return [self._value(node, pool) for node in path for pool in self.pools]

    def pages_of(self, path: list[Any], values: Sequence[Any]) -> Iterator[Ids]:
        """The pages of each node of a path in each pool, from its `values`."""
        return map(self._of_pool, self.pools * len(path), values)

    def length(self, node: Any) -> int:
        """The number of tokens of a node."""
        return len(node.key)

    def backed(self, node: Any) -> Any:
        """The tensor with the slots of a node on the host; `None`: it has none there."""
        return node.host_value if self._full is None else node.component_data[self._full].host_value

    def locks(self, node: Any, pool: str = KV) -> int:
        """The number of locks on a node's pages of a pool."""
        return int(node.lock_ref if self._full is None else node.component_data[self._components[pool]].lock_ref)

    def spots(self, path: list[Any]) -> list[Any]:
        """The nodes of a path as they are now."""
        spots: list[Spot] = []
        for node in path:
            spots.append(Spot(node, node.key, spots[-1] if spots else None))
        return spots

    def labels(self, spot: Any) -> list[str]:
        """The names of a node's pages, by their tokens in the tree. They are kept with the node until it is split."""
        node, key, above = spot
        kept: tuple[int, list[str]] | None = getattr(node, "kvspec_labels", None)
        if kept is not None and kept[0] == len(key):
            return kept[1]
        last = self.whose(space(key)) if above is None else self.labels(above)[-1]
        tokens = list(key.token_ids)[: len(key)]
        made: list[str] = []
        for start in range(0, len(tokens), self._size):
            last = self._pictures.chained(last, tokens[start : start + self._size])
            made.append(last)
        node.kvspec_labels = (len(key), made)
        return made

    def pages(self, indices: Any) -> Ids:
        """The pages of slot indices, which are whole pages in order; none for `None`."""
        if indices is None:
            return []
        if self._size == 1:
            return list(indices.tolist())
        return [index // self._size for index in indices[:: self._size].tolist()]

    def inserted(self, named: Any, key: Any) -> list[Any]:
        """The path to the node that an insert of a key has ended at."""
        return self.path(named if self._full is not None else self.walk(key))

    def learns(self, key: Any, pages: Ids, names: dict[int, str]) -> None:
        """A key was inserted: its path has these pages; `names` are those of the tree's pages."""

    def books(self, pool: str) -> tuple[list[tuple[int, int]], list[Any]]:
        """The tree's part of a `count` event: the number of pages and of locks of each node, and a tensor.

        It has the first slots of all their pages, one after the other.
        """
        size = 1 if pool == STATES else self._size
        values = [(self._value(node, pool), self.locks(node, pool)) for node in self.nodes()]
        firsts = [(value[::size], locks) for value, locks in values if value is not None]
        counts = [(len(first), locks) for first, locks in firsts]
        return counts, [self._torch.cat([first for first, _ in firsts])] if firsts else []

    def counted(
        self, pool: str, counts: list[tuple[int, int]], firsts: Sequence[Any], without: set[int]
    ) -> dict[str, Any]:
        """The same in an event: the number of locks of each page, from the `books`."""
        size = 1 if pool == STATES else self._size
        pages = iter((firsts[0] // size).tolist() if firsts else [])
        references = {page: locks for many, locks in counts for page in islice(pages, many) if page not in without}
        return {"references": references}


@dataclass(frozen=True)
class Span:
    """A node with only its place on its path, in tokens."""

    id: int
    start: int
    stop: int
    indices: Any = field(compare=False)
    """The tensor with the slots of the path."""


class OpaqueTree(Tree):
    """A tree with its core in Rust: nodes have numbers, paths have slots, and the numbers of locks are invisible."""

    opaque = True

    def __init__(self, release: Release, cache: Any, page_size: int, pictures: Pictures) -> None:
        """View an empty tree with pages of `page_size` tokens."""
        super().__init__(release, cache, page_size, pictures)
        self._core = cache.tree_core
        self._labels: list[str] = []
        """The names of the last inserted pages, from the root on."""

    def node(self, named: Any) -> Any:
        """The number itself."""
        return named

    def path(self, named: Any) -> list[Span]:
        """The spans from below the root to a node. A core that does not show the nodes between them has one span."""
        if not hasattr(self._core, "collect_path_info"):
            indices = self._core.collect_full_device_indices(named, self._core.root_node_handle())
            return [Span(named, 0, len(indices), indices)] if len(indices) else []
        (path,) = self._core.collect_path_info([named])
        indices = self._cache.path_device_indices(named)
        return [Span(node.node_id, node.path_start, node.path_end, indices) for node in path]

    def common(self, path: list[Span], others: list[Any]) -> list[int]:
        """How many spans a path shares with the path to each of the others. Pages of paths are not read."""
        places = {span.id: at for at, span in enumerate(path, 1)}
        ways = self._core.collect_path_info(others)
        return [max((places.get(one.node_id, 0) for one in way), default=0) for way in ways]

    def _in_pages(self, span: Span) -> slice:
        return slice(span.start // self._size, span.stop // self._size)

    def _value(self, node: Span, pool: str) -> Any:
        if pool == KV:
            return node.indices[node.start : node.stop]
        return self._core.get_component_device_value(node.id, self._components[pool])

    def values(self, path: list[Span]) -> list[Any]:
        """One tensor has the pages of the whole path."""
        others = [self._value(span, pool) for span in path for pool in self.pools[1:]]
        return [path[0].indices, *others] if path else []

    def pages_of(self, path: list[Span], values: Sequence[Any]) -> Iterator[Ids]:
        """The pages of each span of a path in each pool, from its `values`."""
        if path:
            pages, others = self.pages(values[0]), iter(values[1:])
            for span in path:
                yield pages[self._in_pages(span)]
                for pool in self.pools[1:]:
                    yield self._of_pool(pool, next(others))

    def spots(self, path: list[Span]) -> list[Span]:
        """Spans never change."""
        return path

    def length(self, node: Span) -> int:
        """The number of tokens of a span."""
        return node.stop - node.start

    def locks(self, node: Span, pool: str = KV) -> int:
        """The number is invisible."""
        return 0

    def labels(self, spot: Span) -> list[str]:
        """The names of a span's pages, after an insert that covers it."""
        return self._labels[self._in_pages(spot)]

    def learns(self, key: Any, pages: Ids, names: dict[int, str]) -> None:
        """A key was inserted: its path has these pages; `names` are those of the tree's pages."""
        self._labels = [names[page] for page in takewhile(names.__contains__, pages)]
        tokens = list(key.token_ids)[: len(key)]
        for start in range(len(self._labels) * self._size, len(tokens), self._size):
            last = self._labels[-1] if self._labels else self.whose(space(key))
            self._labels.append(self._pictures.chained(last, tokens[start : start + self._size]))

    def books(self, pool: str) -> tuple[list[tuple[int, int]], list[Any]]:
        """The tree's part of a `count` event: the slots without locks. Locks of states are invisible."""
        if pool == STATES:
            return [], []
        window = pool == WINDOW
        unlocked = self._core.walk_for_kv_canary(unlocked_only=True, swa_resident_only=window).slot_indices
        if window:
            unlocked = self._cache.token_to_kv_pool_allocator.full_to_swa_index_mapping[unlocked]
        return [], [unlocked]

    def counted(
        self, pool: str, counts: list[tuple[int, int]], firsts: Sequence[Any], without: set[int]
    ) -> dict[str, Any]:
        """The same in an event: the pages without locks."""
        return {"cached": in_runs((firsts[0] // self._size).unique().cpu().numpy())} if firsts else {}


def tree_of(release: Release, cache: Any, page_size: int, pictures: Pictures) -> Tree:
    """The view of a tree, by the language of its core."""
    core = getattr(cache, "tree_core", None)
    opaque = type(core).__name__.startswith("Rust")
    return (OpaqueTree if opaque else Tree)(release, cache, page_size, pictures)
