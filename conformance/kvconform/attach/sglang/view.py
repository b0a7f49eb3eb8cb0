"""What the hooks see of a release's tree: its nodes, their pages on the device and on the host, and their locks."""

from collections.abc import Iterator
from typing import Any

from kvconform.attach.hooks import chained
from kvconform.attach.run import Run
from kvconform.attach.sglang.release import Release

Ids = list[int]
"""Numbers of pages."""


KV = "kv"
HOST = "host"
NEW = "admission"
"""Who holds what was allocated or locked for requests that no launch has shown yet."""
TREE = "tree"
"""Who gives back what the tree itself no longer has. It never holds anything."""


class Stay(Run):
    """A request while it has a row."""

    def __init__(self, name: str, page_size: int) -> None:
        """It has no pages yet."""
        super().__init__(name, page_size)
        self.pages: Ids = []
        self.row = -1


class Tree:
    """One tree, whichever kind the release has."""

    def __init__(self, release: Release, cache: Any, page_size: int) -> None:
        """A tree of pages of `page_size` tokens."""
        self._cache, self._size = cache, page_size
        self._full = release.component.ComponentType.FULL if release.unified else None

    def node(self, named: Any) -> Any:
        """The node that a release names: by a number, or as it is."""
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

    def nodes(self) -> Iterator[Any]:
        """Every node but the root."""
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            yield node

    def walk(self, key: Any) -> Any:
        """The node that a key ends at, in a tree that looks its children up by part of a key."""
        node = self.root
        while len(key):
            child = node.children.get(self._child_key(key))
            shared = 0 if child is None else self._shared(child.key, key)
            if not shared or shared < len(child.key):
                break
            node, key = child, key[shared:]
        return node

    def _child_key(self, key: Any) -> Any:
        """How a tree looks a child up; later releases ask the key itself."""
        find = getattr(self._cache, "get_child_key_fn", None)
        return find(key) if find is not None else key.child_key(self._size)

    def _shared(self, one: Any, other: Any) -> int:
        """How many tokens, in whole pages, two keys have in common."""
        match = getattr(self._cache, "key_match_fn", None)
        return int(match(one, other) if match is not None else one.match(other, page_size=self._size))

    def device(self, node: Any) -> Ids:
        """The pages that a node has on the device."""
        return self.pages(node.value if self._full is None else node.component_data[self._full].value)

    def host(self, node: Any) -> Ids:
        """The pages that a node has on the host."""
        return self.pages(node.host_value if self._full is None else node.component_data[self._full].host_value)

    def locks(self, node: Any) -> int:
        """How often a node is locked."""
        return int(node.lock_ref if self._full is None else node.component_data[self._full].lock_ref)

    def labels(self, node: Any) -> list[str]:
        """The names of a node's pages: what the tree says they hold. Kept with the node until it is split."""
        kept: tuple[int, list[str]] | None = getattr(node, "kvspec_labels", None)
        if kept is not None and kept[0] == len(node.key):
            return kept[1]
        above = node.parent
        last = self.labels(above)[-1] if above is not self.root else ""
        tokens = list(node.key.token_ids)[: len(node.key)]
        made: list[str] = []
        for start in range(0, len(tokens), self._size):
            last = chained(last, tuple(tokens[start : start + self._size]))
            made.append(last)
        node.kvspec_labels = (len(node.key), made)
        return made

    def pages(self, indices: Any) -> Ids:
        """The pages that slot indices, whole pages in order, are in; none for `None`."""
        if indices is None:
            return []
        return [index // self._size for index in indices[:: self._size].tolist()]
