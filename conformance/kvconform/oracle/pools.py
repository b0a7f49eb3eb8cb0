"""The pools in answers: resources that are handed out and freed by number, their owners, and their names."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvspec.model.answer import PoolName
from kvspec.model.state import State
from kvspec.tokens import PrefixKey

FREE = "is free already"
STORE = "the prefix store"


class Pool(NamedTuple):
    """A pool of resources that are handed out and freed by number: pages, window pages, state slots."""

    kind: str
    given: str
    """The part of an answer with the numbers that are handed out."""
    rule: str
    """The rule that each number has one owner."""
    due: str
    """The rule that sets how many are handed out."""
    size: int
    owners: Mapping[int, object]
    whose: Callable[[State, int], tuple[str, str]]
    """The rule that freeing a number in use breaks, and its owner."""

    def use(self, state: State, number: int) -> tuple[str, str]:
        """The rule that is broken when a number in use is freed, and why the number is in use."""
        if 1 <= number <= self.size and number in self.owners:
            return self.whose(state, number)
        return self.rule, FREE if 1 <= number <= self.size else "does not exist"


def pool_of(state: State, name: PoolName) -> Pool | None:
    """A pool by its name; `None` if the memory does not have it (20070, 17850)."""
    config = state.config
    if name == "pages":
        return Pool("page", "pages", "PAGE-1", "PAGE-2", config.num_pages, state.owner, _whose_page)
    if name == "window" and config.sliding_window:
        return Pool(
            "window page", "window_pages", "SWA-1", "SWA-1", config.num_window_pages, state.window_owner, _whose_side
        )
    if name == "states" and config.num_states:
        return Pool("state slot", "states", "MAMBA-1", "MAMBA-1", config.num_states, state.state_owner, _whose_state)
    return None


def _whose_page(state: State, page: int) -> tuple[str, str]:
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return "PAGE-1", f"belongs to {STORE}"
    position, name = state.tables[owner].index(page) * state.config.page_size, record_name(state, owner)
    if position < state.lengths[owner].committed:
        return "TAIL-2", f"still holds committed positions of {name}, from {position} on"
    return "PAGE-1", f"belongs to {name}"


def _whose_side(state: State, window_page: int) -> tuple[str, str]:
    page = state.window_owner[window_page]
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return "SWA-1", f"is behind page {page} of {STORE}"
    return "SWA-2", f"is behind page {page} of {record_name(state, owner)}, which is still read"


def _whose_state(state: State, slot: int) -> tuple[str, str]:
    return "MAMBA-1", f"belongs to {owner_name(state, state.state_owner[slot])}"


def record_name(state: State, record: int) -> str:
    """The holder of a record, in words."""
    for req, request in state.requests.items():
        if request.record == record:
            return f"request {req}"
    for session, slot in state.sessions.items():
        if slot.record == record:
            return f"the slot of session {session}"
    return "no holder"


def owner_name(state: State, owner: int | str | PrefixKey) -> str:
    """The owner of a page or a state slot, in words."""
    if isinstance(owner, bytes):
        return STORE
    return f"request {owner}" if isinstance(owner, str) else record_name(state, owner)
