"""The law, fast: intervals and vector clocks in place of slots and a graph.

It finds what the law of `kvspec.memory` finds, at a cost that follows what changed. Read in this order: `flights` (what
operations in flight use), `clocks` (what orders two uses), `labels` (when two contents are the same), `state` (what is
remembered), `holding` (who refers to pages), `counting` (the engine's own figures), `races` (what else uses some
slots), `uses` (what operations do to slots) and `ending` (how they end); `appending` counts decode steps in place of
judging each.

`Law.step` takes one event and returns what it breaks. It never stops: after a finding the state is mended in the way
that hides least, and what may be a consequence says so.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kvcheck import counting, ending, holding, uses
from kvcheck.finding import Finding, Malformed
from kvcheck.state import State
from kvspec.memory import events
from kvspec.memory.events import Event, Page, Pool

__all__ = ["Checker", "Finding", "Malformed"]

_EVENTS: dict[type[Event], Callable[[State, Any], None]] = {
    events.Take: holding.take,
    events.Share: holding.share,
    events.Release: holding.release,
    events.Transfer: holding.transfer,
    events.Publish: holding.publish,
    events.Drop: holding.drop,
    events.Reserve: holding.reserve,
    events.EndHolder: holding.end_holder,
    events.Idle: holding.idle,
    events.Count: counting.count,
    events.Failed: holding.failed,
    events.Map: uses.map_table,
    events.Unmap: uses.unmap,
    events.Begin: uses.begin,
    events.Wait: uses.wait,
    events.Send: uses.send,
    events.Receive: uses.receive,
    events.End: ending.end,
    events.Deliver: ending.deliver,
    events.Unify: uses.unify,
}


class Checker:
    """The law, watching one engine's memory."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Pools in which everything is free.

        Raises:
            Malformed: a pool's sizes make no sense.
        """
        self.state = State(dict(pools))

    def step(self, event: Event) -> list[Finding]:
        """Judge one event and move on; what it breaks, most often nothing.

        Raises:
            Malformed: no engine can mean this.
        """
        state = self.state
        state.event += 1
        state.at = event.at
        _EVENTS[type(event)](state, event)
        if not state.findings:
            return []
        found, state.findings, state.by_code = state.findings, [], {}
        return found

    def names(self, pool: str) -> dict[str, Page]:
        """Each name under which a page of a pool is published, and the page."""
        return {key: page for page, found in self.state.pools[pool].pages.items() for key in found.keys}

    @property
    def checked(self) -> Counter[str]:
        """How often each rule was judged: what is not told is not."""
        return Counter(self.state.checked)

    @property
    def unchecked(self) -> dict[str, Counter[str]]:
        """Pool -> how often something was not told of it that a rule judges by, if ever."""
        return {name: Counter(pool.unchecked) for name, pool in self.state.pools.items() if pool.unchecked}
