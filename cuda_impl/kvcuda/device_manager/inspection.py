"""The manager's own figures."""

from typing import Literal

from kvcuda.device_manager.state import ManagerState
from kvspec.events import Figures, Refusal


class Inspection(ManagerState):
    """Operations that change nothing."""

    def report(self, mode: Literal["idle", "busy"] = "busy") -> Figures:
        """The manager's own figures, each pool's by its own definition: their sum is the check (20070, 22213).

        Raises:
            Refusal: the mode is `idle`, but a request holds memory.
        """
        if mode == "idle" and self.holders:
            raise Refusal("OP-1", f"{len(self.holders)} requests hold memory: this is not idle")
        page_size = self.config.page_size
        idle_slots = [kv for _, kv in self.sessions.idle()]
        figures = Figures(
            available=self.memory.available * page_size,
            evictable=self.holdings.tree.evictable * page_size,
            protected=self.holdings.tree.protected * page_size,
            session_held=self.holdings.held_tokens(idle_slots),
            uncached=self.holdings.held_tokens(self.holders.values()),
            rows_available=self.rows.available,
            rows_requests=len(self.holders),
            rows_sessions=len(idle_slots),
            rows_withheld=self.rows.withheld,
        )
        tree, holders = self.holdings.tree, self.holders.values()
        if self.config.sliding_window:
            figures.window_available = self.memory.windows.available * page_size
            figures.window_evictable = tree.window_evictable * page_size
            figures.window_protected = tree.window_protected * page_size
            figures.window_session_held = self.holdings.window_held_tokens(idle_slots)
            figures.window_uncached = self.holdings.window_held_tokens(holders)
        if self.states.size:
            figures.states_available = self.states.available
            figures.states_evictable = tree.states_evictable
            figures.states_protected = tree.states_protected
            figures.states_sessions = sum(len(kv.states) for kv in idle_slots)
            early = sum(request.state > 0 for request in self.requests.values())
            figures.states_requests = sum(len(kv.states) for kv in holders) + early
        return figures
