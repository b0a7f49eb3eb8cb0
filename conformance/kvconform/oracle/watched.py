"""The oracle's state with a memory below it, which gets the memory events of each change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvconform.oracle.meaning import Memory, waiting
from kvconform.oracle.notes import NotedState
from kvspec.store import Publication
from kvspec.tokens import PrefixKey, Tokens


@dataclass(eq=False, repr=False)
class WatchedState(NotedState):
    """A noted state with a memory below."""

    memory: Memory = field(kw_only=True)

    def begin_record(self, tokens: Tokens, row: int, prefix_len: int, seq_len: int) -> int:
        """A record begins."""
        record = super().begin_record(tokens, row, prefix_len, seq_len)
        self.memory.begin(self, record, row, self.records[record].locked)
        return record

    def forget_record(self, record: int) -> None:
        """A record ends."""
        row, locked, states, _ = self.records[record]
        self.memory.forget(self, record, row, locked, states, self.sides_behind(self.private(record)))
        super().forget_record(record)

    def take_pages(self, record: int, pages: list[int], window_pages: list[int]) -> None:
        """Free pages become a record's own."""
        if pages:
            self.memory.take_pages(record, len(self.tables[record]), pages, window_pages)
        super().take_pages(record, pages, window_pages)

    def release_private(self, record: int, pages: list[int]) -> None:
        """Private pages become free."""
        self.memory.release_pages(record, pages, self.sides_behind(pages))
        super().release_private(record, pages)

    def cut_table(self, record: int, index: int) -> None:
        """A block table ends earlier."""
        self.memory.cut(record, index)
        super().cut_table(record, index)

    def leave_behind(self, record: int, until: int, pages: list[int]) -> None:
        """A cursor advances."""
        self.memory.release_sides(record, self.sides_behind(pages))
        super().leave_behind(record, until, pages)

    def take_states(self, record: int, slots: Sequence[int]) -> None:
        """State slots become a record's own."""
        if slots:
            early = {slot: self.state_owner[slot] for slot in slots if slot in self.state_owner}
            self.memory.take_states(self, record, early, [slot for slot in slots if slot not in early])
        super().take_states(record, slots)

    def publish(self, record: int, plan: Publication) -> None:
        """Pages go to the store."""
        first, locked = self.lengths[record].protected // self.config.page_size, self.records[record].locked
        tombstones = [self.store.pages[key] for key, _ in plan.exchanged]
        super().publish(record, plan)
        self.memory.publish(self, record, first, plan, locked, tombstones)

    def publish_state(self, record: int, key: PrefixKey, slot: int, new: int | None = None) -> None:
        """A state goes to the store."""
        self.memory.publish_state(self, record, key, slot, new)
        super().publish_state(record, key, slot, new)

    def drop(self, keys: Mapping[PrefixKey, int], losing: Sequence[PrefixKey]) -> None:
        """Pages leave the store."""
        self.memory.drop("pages", keys)
        super().drop(keys, losing)

    def drop_sides(self, window_pages: Iterable[int]) -> None:
        """Window pages leave the store."""
        behind = [self.window_owner[window_page] for window_page in window_pages]
        self.memory.drop_sides({self.owner[page]: page for page in behind}, self.window_of)
        super().drop_sides(window_pages)

    def drop_states(self, slots: Iterable[int]) -> None:
        """States leave the store."""
        self.memory.drop("states", {key: slot for key, slot in self.store.states.items() if slot in slots})
        super().drop_states(slots)

    def hand_over(self, record: int) -> None:
        """A session slot has lent its record to a turn, or got it back."""
        self.memory.transfer(record)

    def give_back(self, req: str, slot: int) -> None:
        """The state slot of a waiting request has become free."""
        self.memory.release(waiting(req), "states", [slot])
        super().give_back(req, slot)
