"""The memory of all holders: rows, private pages with their window sides, state slots, and locks on cached prefixes.

Every transfer of it between holders, prefix store and free pages is here.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvcuda.memory import DeviceMemory
from kvcuda.prefix_tree import Match, Node, PrefixTree
from kvcuda.records import KvRecord
from kvcuda.row_table import RowTable
from kvcuda.state_slots import StateSlots
from kvspec import lengths
from kvspec.events import Config
from kvspec.pages import ceil_pages
from kvspec.tokens import Page, Tokens
from kvspec.window import evictable_until, left_behind, window_held_tokens


class PublishedState(NamedTuple):
    """State slots that changed hands with a publication; `None` if none did."""

    cached: int | None = None
    """The slot whose state the store has from now on."""
    taken: int | None = None
    """The free slot that the holder got in its place."""


class Evicted(NamedTuple):
    """An eviction: counts of pages and window pages, and the state slots."""

    pages: int
    window: int
    """Window pages."""
    states: list[int]
    """State slots."""


class Holdings:
    """The rows, the prefix store, the state slots and the device's memory of one manager, which change together."""

    def __init__(self, config: Config, memory: DeviceMemory) -> None:
        """Everything is free."""
        self.page_size = config.page_size
        self.keeps_prefixes = config.prefix_cache
        self.memory = memory
        self.rows = RowTable(config.num_rows, memory.streams.listener)
        self.window = config.sliding_window
        self.tree = PrefixTree(
            config.num_pages, ceil_pages(self.window, self.page_size), has_states=bool(config.num_states)
        )
        self.states = StateSlots(config)

    def publish(self, kv: KvRecord, tokens: Tokens, length: int) -> None:
        """Publish the whole pages of a holder's first `length` tokens; its lock moves up to them (20070, 20476).

        In pages, with `known` the end of the prefix that the store has already:

        [0, protected)         the store's already, locked by this holder
        [protected, known)     duplicates: freed, and the row lists the store's pages instead
        [known, length)        become the store's

        Pages before the cursor have no window side: they revive no tombstone, and become tombstones themselves.
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
        self._replace(kv, first, match)
        node = self._hand_over(kv, match.last_node, first + match.pages, key[match.pages :])
        tree.lock(node)
        tree.unlock(kv.last_node)
        kv.last_node = node
        self.rows.set_lengths(row, lengths.publish(before, last * self.page_size, self.page_size))

    def _replace(self, kv: KvRecord, first: int, match: Match) -> None:
        """Free a holder's duplicates of a match, from page `first` on; its row lists the store's pages instead.

        If the store's page is a tombstone and the holder's still has its window side, the side moves behind the store's
        page (rule SWA-6).
        """
        row, cursor = kv.row, self._cursor_page(kv.row)
        if not self.window:
            self.memory.replace(row, first, match.runs)
            return
        for node in match.nodes:
            end = first + len(node.key)
            if not node.has_window and cursor < end:
                if first < cursor:
                    bare = self.tree.split(node, cursor - first)
                    self.memory.replace(row, first, bare.runs, cursor)
                    first = cursor
                self.memory.revive(row, first, node.runs)
                self.tree.revive(node)
            else:
                self.memory.replace(row, first, node.runs, cursor)
            first = end

    def _hand_over(self, kv: KvRecord, node: Node, first: int, key: list[Page]) -> Node:
        """Give the store a holder's pages from page `first` on, which continue the prefix that ends at `node`.

        Those before the cursor become tombstones. Returns the node where the prefix ends now.
        """
        bare = min(max(self._cursor_page(kv.row) - first, 0), len(key))
        for begin, end, has_window in ((0, bare, False), (bare, len(key), bool(self.window))):
            if begin < end:
                node = self.tree.add(node, key[begin:end], has_window=has_window)
                self.memory.publish(kv.row, first + begin, node.runs)
                node.epoch = self.memory.epoch
        return node

    def _cursor_page(self, row: int) -> int:
        """The first private page of a row that still has its window side."""
        return int(self.rows.cursor[row]) // self.page_size if self.window else 0

    def copy_state(self, kv: KvRecord) -> PublishedState:
        """Publish the state at the end of a holder's published prefix, if it has kept it and a slot is free (17850).

        The store takes the slot of the state, and the holder the free one: nothing is copied.
        """
        slot = self._state_due(kv)
        if not slot or not self.states.available:
            return PublishedState()
        fresh = self.states.take()
        kv.give(slot, [fresh])
        self.tree.keep_state(kv.last_node, slot)
        return PublishedState(slot, fresh)

    def leave_state(self, kv: KvRecord) -> int | None:
        """The same for a holder that is about to release everything: it needs no slot in exchange."""
        slot = self._state_due(kv)
        if not slot:
            return None
        kv.give(slot, [])
        self.tree.keep_state(kv.last_node, slot)
        return slot

    def _state_due(self, kv: KvRecord) -> int:
        """The slot with the state after a holder's protected prefix, if the store lacks it; 0 if there is none."""
        if not kv.tracked or kv.last_node.state:
            return 0
        return kv.kept_at(int(self.rows.protected[kv.row]))

    def kept_state(self, kv: KvRecord, length: int) -> int:
        """The slot that keeps the state after a holder's first `length` tokens: its own, or the store's (rule MAMBA-3).

        Not the slot that it computes in.
        """
        return kv.kept_at(length) or kv.last_node.state

    def source_of_state(self, kv: KvRecord, length: int) -> int:
        """The slot with the state after a holder's first `length` tokens."""
        return kv.state if self.rows.state_at[kv.row] == length else self.kept_state(kv, length)

    def resumable(self, kv: KvRecord, target: int) -> int:
        """The length at most `target`, in tokens, from which a turn can resume (rule MAMBA-3).

        A recurrent state cannot go back by a token. If the state that the record computes is past `target`, the turn
        resumes at the last page border whose state the record or the store has kept; 0 if there is none.
        """
        if not self.states.size or self.rows.launched[kv.row] <= target:
            return target
        protected = int(self.rows.protected[kv.row])
        kept = [tracked.border for tracked in kv.tracked if protected <= tracked.border <= target]
        return max(kept + [protected] * bool(kv.last_node.state), default=0)

    def shed(self, kv: KvRecord, position: int) -> int:
        """Give back the window sides that no step at `position` or later reads; returns the cursor (20070)."""
        cursor = self.window_cursor(kv)
        until = max(cursor, evictable_until(position, self.window, self.page_size))
        pages = left_behind(self.rows.lengths(kv.row), cursor, until, self.page_size)
        self.memory.shed(kv.row, pages.start, pages.stop)
        self.rows.cursor[kv.row] = until
        return until

    def free_tail(self, kv: KvRecord, prefix_len: int) -> None:
        """Free the pages that the next extend would orphan, and cut the lengths (22862).

        [0, prefix_len)                    kept
        [prefix_len, ceil(prefix_len))     kept: the rest of a page that holds kept tokens too
        [ceil(prefix_len), allocated)      freed, in whole pages
        """
        before = self.rows.lengths(kv.row)
        tail = lengths.tail(prefix_len, before.allocated, self.page_size)
        self.memory.free(kv.row, tail.start, tail.stop, self._cursor_page(kv.row))
        self.rows.set_lengths(kv.row, lengths.resume(before, prefix_len, self.page_size))
        self.rows.launched[kv.row] = min(int(self.rows.launched[kv.row]), prefix_len)
        kv.cut_borders(prefix_len)

    def release(self, kv: KvRecord) -> None:
        """Release everything that a record has; its holder must forget it (994).

        In pages:

        [0, protected)                 the prefix store's: unlocked, still cached
        [protected, ceil(allocated))   private: freed, with the last page in part, the over-allocated ones, and the
                                       window sides from the cursor on
        the state slots                free
        the row                        free, or withheld while a launch in flight reads it
        """
        held, cursor = self.rows.lengths(kv.row), self._cursor_page(kv.row)
        self.memory.free(kv.row, held.protected // self.page_size, ceil_pages(held.allocated, self.page_size), cursor)
        self.states.give_back(kv.states)
        self.tree.unlock(kv.last_node)
        self.rows.let_go(kv.row)

    def evict(self, num_pages: int, window: int = 0, states: int = 0) -> Evicted:
        """Evict at least so many pages, window sides and states of the prefix store, or all unlocked ones."""
        tree = self.tree
        pages, windows = tree.evictable, tree.window_evictable
        slots = []
        for node in tree.evict(num_pages):
            self.memory.evict(node.runs, sided=node.has_window)
            slots += [node.state] if node.state else []
        self.memory.drop(tree.evict_windows(window - windows + tree.window_evictable))
        slots += tree.evict_states(states - len(slots))
        self.states.give_back(slots)
        return Evicted(pages - tree.evictable, windows - tree.window_evictable, slots)

    def held_tokens(self, holders: Iterable[KvRecord]) -> int:
        """Tokens of the holders' private pages; a page that is held in part counts whole (20070)."""
        return sum(lengths.held_tokens(self.rows.lengths(kv.row), self.page_size) for kv in holders)

    def window_held_tokens(self, holders: Iterable[KvRecord]) -> int:
        """Tokens of their private window pages (20070)."""
        cursor = self.rows.cursor
        return sum(window_held_tokens(self.rows.lengths(kv.row), int(cursor[kv.row]), self.page_size) for kv in holders)

    def window_cursor(self, kv: KvRecord) -> int:
        """The start of a record's private pages that still have their window side, in tokens."""
        return max(int(self.rows.protected[kv.row]), int(self.rows.cursor[kv.row]))
