"""What holders hold, and every way by which it changes hands: rows, private pages, and locks on cached prefixes."""

from collections.abc import Iterable

from kvcuda.memory import DeviceMemory
from kvcuda.prefix_tree import PrefixTree
from kvcuda.records import KvRecord
from kvcuda.row_table import RowTable
from kvspec import lengths
from kvspec.events import Config
from kvspec.pages import ceil_pages
from kvspec.tokens import Tokens


class Holdings:
    """The rows, the prefix store and the device's memory of one manager, which change together."""

    def __init__(self, config: Config, memory: DeviceMemory) -> None:
        """Nobody holds anything."""
        self.page_size = config.page_size
        self.keeps_prefixes = config.prefix_cache
        self.memory = memory
        self.rows = RowTable(config.num_rows)
        self.tree = PrefixTree(config.num_pages)

    def publish(self, kv: KvRecord, tokens: Tokens, length: int) -> None:
        """Publish the whole pages of a holder's first `length` tokens; its lock moves up to them (20070, 20476).

        In pages, with `known` the end of what the store has already:

        [0, protected)         the store's already, locked by this holder
        [protected, known)     duplicates: freed, and the row names the store's pages instead
        [known, length)        the store takes them over
        """
        row, memory, tree = kv.row, self.memory, self.tree
        before = self.rows.lengths(row)
        first, last = before.protected // self.page_size, length // self.page_size
        if last <= first or not self.keeps_prefixes:
            return
        key = tokens.pages[first:last]
        match = tree.known(kv.last_node, key)
        if match.epoch == memory.epoch:
            memory.flush()  # its pages are listed in the arena before they are read there
        memory.replace(row, first, match.runs)
        node = match.last_node
        if match.pages < len(key):
            node = tree.add(node, key[match.pages :])
            memory.publish(row, first + match.pages, node.runs)
            node.epoch = memory.epoch
        tree.lock(node)
        tree.unlock(kv.last_node)
        kv.last_node = node
        self.rows.set_lengths(row, lengths.publish(before, last * self.page_size, self.page_size))

    def free_tail(self, kv: KvRecord, prefix_len: int) -> None:
        """Free what the next extend would orphan, and cut the lengths to what is left (22862).

        [0, prefix_len)                    stays
        [prefix_len, ceil(prefix_len))     stays: the rest of a page that holds kept tokens too
        [ceil(prefix_len), allocated)      freed, in whole pages
        """
        before = self.rows.lengths(kv.row)
        tail = lengths.tail(prefix_len, before.allocated, self.page_size)
        self.memory.free(kv.row, tail.start, tail.stop)
        self.rows.set_lengths(kv.row, lengths.resume(before, prefix_len, self.page_size))

    def release(self, kv: KvRecord) -> None:
        """Release everything that a record has; its holder must forget it (994).

        In pages:

        [0, protected)                 the prefix store's: unlocked, they stay cached
        [protected, ceil(allocated))   private: freed, the page that is held in part and the over-allocated ones too
        the row                        free, or withheld while a launch in flight reads it
        """
        held = self.rows.lengths(kv.row)
        self.memory.free(kv.row, held.protected // self.page_size, ceil_pages(held.allocated, self.page_size))
        self.tree.unlock(kv.last_node)
        self.rows.let_go(kv.row)

    def evict(self, num_pages: int) -> int:
        """Give up at least `num_pages` pages of the prefix store, or all that can be; returns how many."""
        before = self.tree.evictable
        self.memory.evict(self.tree.evict(num_pages))
        return before - self.tree.evictable

    def held_tokens(self, holders: Iterable[KvRecord]) -> int:
        """Tokens of the holders' private pages, a page that is held in part counted whole (20070)."""
        return sum(lengths.held_tokens(self.rows.lengths(kv.row), self.page_size) for kv in holders)
