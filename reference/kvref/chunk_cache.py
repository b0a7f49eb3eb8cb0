"""The prefix store of a system that keeps no prefixes."""

from kvref.radix_cache import RadixCache
from kvref.request import KvRecord
from kvspec.tokens import Tokens


class ChunkCache(RadixCache):
    """A tree that never grows: every match is empty, every lock is on the root, and there is nothing to evict."""

    def publish(self, kv: KvRecord, tokens: Tokens, length: int) -> None:
        """Publish nothing: the request keeps its pages."""
