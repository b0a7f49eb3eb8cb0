"""LIVE-1: from every state with work waiting, the scheduler alone can bring all of it to its end.

"Work is waiting" where some request is in the system; it has come to its end where none is. Clients do nothing any
more: no abort and no close helps. So LIVE-1 holds exactly if every state has a path to one without requests, along the
scheduler's operations only; a state without such a path is a deadlock (no operation changes anything) or a livelock.

A scheduler must be able to take these steps when an operation is refused for lack of room (CAP-1), the cheapest first;
`kvref.scheduler` takes them in this order:

1. `evict` pages of the prefix store that are not locked;
2. `preempt` idle session slots, the least recently used first: KV dropped, tokens kept;
3. end the lend of a turn that waits with its session's KV (`kvconform.exploring.moves.give_back`), whose slot can be
   preempted then. Without this, two turns that have matched and are not admitted hold the pool for ever;
4. `retract` the request admitted last, never the only one that runs.

Leave any of them out, and some scope has a deadlock; `kvspec explore --without` shows its shortest trace.
"""

from array import array


class Services:
    """For each state, the other states that the scheduler's operations lead to."""

    def __init__(self) -> None:
        """No states."""
        self.ends = array("L")
        """Where the targets of each state end."""
        self.targets = array("L")

    def of(self, state: int) -> "array[int]":
        """The states that one operation leads to."""
        return self.targets[self.ends[state - 1] if state else 0 : self.ends[state]]


def stuck(services: Services, waits: bytearray) -> int | None:
    """A state from which no state without requests is reachable, as early as there is one; `None` if there is none.

    A deadlock comes before a state that only leads to one.
    """
    begins, sources = _reversed(services)
    can_end = bytearray(not waiting for waiting in waits)
    unseen = [state for state, waiting in enumerate(waits) if not waiting]
    while unseen:
        state = unseen.pop()
        for source in sources[begins[state] : begins[state + 1]]:
            if not can_end[source]:
                can_end[source] = True
                unseen.append(source)
    doomed = [state for state, live in enumerate(can_end) if not live]
    dead = (state for state in doomed if not services.of(state))
    return next(dead, doomed[0]) if doomed else None


def _reversed(services: Services) -> "tuple[array[int], array[int]]":
    """For each state, where its sources begin, and all sources."""
    count = len(services.ends)
    begins = array("L", bytes(array("L").itemsize * (count + 1)))
    for target in services.targets:
        begins[target + 1] += 1
    for state in range(count):
        begins[state + 1] += begins[state]
    free = begins[:]
    sources = array("L", bytes(array("L").itemsize * len(services.targets)))
    start = 0
    for source, end in enumerate(services.ends):
        for target in services.targets[start:end]:
            sources[free[target]] = source
            free[target] += 1
        start = end
    return begins, sources
