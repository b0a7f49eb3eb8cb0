"""What the one tree of SGLang's releases since 0.5.19 holds."""

from collections.abc import Iterable
from typing import Any

from kvspec.events import Config


class OneTree:
    """The part of an adapter that walks through the tree."""

    config: Config
    engine: Any
    prefix_cache: Any

    def _nodes(self) -> Iterable[Any]:
        core = getattr(self.prefix_cache, "tree_core", None)  # a chunk cache has none
        waiting = [] if core is None else [*core.root_node.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _store_pages(self) -> Iterable[int]:
        size = self.config.page_size
        for node in self._nodes():
            value = node.component_data[self.engine.full].value
            if value is not None:
                yield from (slot // size for slot in value.tolist()[::size])
