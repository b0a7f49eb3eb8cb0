"""The fast memory checker: intervals and vector clocks instead of slots and a graph.

It makes the findings of the plain checker in `kvspec.memory`, at a cost that follows the changes of each event. Read
in this order: `flights` (operations in flight and their uses), `clocks` (the order of two uses), `decisions` (those of
several hosts), `labels` (the identity of two contents), `pages`, `pools`, `announced` (the blocks that routers know)
and `state` (the state of each, and of tables), `holding` (references and names), `counting` (the engine's own figures),
`announcing` (announcements to routers), `tables` (their changes), `races` (unordered uses of the same slots), `parts`
(the slots of a use), `reads` and `writes` (their checks, and copies), `uses` (begin and wait), `groups` (the same for
many pages at once) and `ending` (ends and deliveries). `appending` counts decode steps without checking each.

`Checker.step` takes one event and returns its findings. It never stops: after a finding it continues from the state
that hides the fewest later findings, and a finding that may be a consequence names its cause.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kvcheck import announcing, counting, ending, holding, tables, uses
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
    events.Map: tables.map_table,
    events.Unmap: tables.unmap,
    events.Begin: uses.begin,
    events.Wait: uses.wait,
    events.Send: uses.send,
    events.Receive: uses.receive,
    events.Decide: holding.decide,
    events.Announce: announcing.announce,
    events.End: ending.end,
    events.Deliver: ending.deliver,
    events.Unify: tables.unify,
}


class Checker:
    """Checks the memory events of one engine."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Begin with free pools.

        Raises:
            Malformed: a pool's sizes make no sense.
        """
        self.state = State(dict(pools))

    def step(self, event: Event) -> list[Finding]:
        """Check one event and apply it. Returns its findings, usually none.

        Raises:
            Malformed: the event makes no sense for any engine.
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
        """Name -> the page of a pool that is published under it."""
        return {key: page for page, found in self.state.pools[pool].pages.items() for key in found.keys}

    @property
    def checked(self) -> Counter[str]:
        """Rule -> how often it was checked."""
        return Counter(self.state.checked)

    @property
    def unchecked(self) -> dict[str, Counter[str]]:
        """Pool -> rule -> how often it could not be checked, because labels were not reported."""
        return {name: Counter(pool.unchecked) for name, pool in self.state.pools.items() if pool.unchecked}
