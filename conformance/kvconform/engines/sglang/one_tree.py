"""What the one tree of SGLang's releases since 0.5.19 holds, whatever language its core is in."""

from collections.abc import Iterable
from typing import Any

from kvspec.events import Config


class OneTree:
    """Where an adapter finds the pages of the tree."""

    config: Config
    prefix_cache: Any

    def _store_pages(self) -> Iterable[int]:
        if not self.config.prefix_cache:
            return []
        size = self.config.page_size
        return (slot // size for slot in self.prefix_cache.all_values_flatten().tolist()[::size])
