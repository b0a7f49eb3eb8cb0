"""What the one tree of SGLang's releases since 0.5.19 holds."""

from collections.abc import Callable, Iterable
from typing import Any

from kvspec.events import Config


class OneTree:
    """Where an adapter finds the nodes of the tree, and their pages."""

    config: Config
    engine: Any
    prefix_cache: Any
    _nodes: Callable[[], Iterable[Any]]

    def _root(self) -> Any:
        core = getattr(self.prefix_cache, "tree_core", None)
        return None if core is None else core.root_node

    def _store_pages(self) -> Iterable[int]:
        size = self.config.page_size
        for node in self._nodes():
            value = node.component_data[self.engine.full].value
            if value is not None:
                yield from (slot // size for slot in value.tolist()[::size])
