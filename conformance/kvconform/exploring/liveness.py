"""LIVE-1: from every state with work waiting, the scheduler alone can complete all of it.

Work is waiting if some request is in the system; it is complete if there is none. Clients do nothing any more: no abort
or close helps. So LIVE-1 holds exactly if every state has a path to a state without requests, along the scheduler's
operations only. A state without such a path is a deadlock (no operation changes anything) or a livelock.

A scheduler must be able to take these steps when an operation is refused for lack of room (CAP-1), the cheapest first;
`kvref.scheduler` takes them in this order:

1. `evict` pages of the prefix store that are not locked;
2. `preempt` idle session slots, the least recently used first: KV dropped, tokens kept;
3. end the lend of a turn that waits with its session's KV (`kvconform.exploring.moves.give_back`), whose slot can be
   preempted then. Without this, two matched turns that are not admitted hold the pool forever;
4. `retract` the request admitted last, never the only one that runs.

Leave any of them out, and some scope has a deadlock; `kvspec explore --without` shows its shortest trace.
"""

from array import array


class Services:
    """For each state, the other states to which the scheduler's operations lead."""

    def __init__(self) -> None:
        """Begin without states."""
        self.ends = array("L")
        """For each state, the end of its targets."""
        self.targets = array("L")

    def of(self, state: int) -> "array[int]":
        """The states to which one operation leads."""
        return self.targets[self.ends[state - 1] if state else 0 : self.ends[state]]


def stuck(services: Services, waits: bytearray) -> int | None:
    """The earliest state from which no state without requests is reachable; `None` if there is none.

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
    """For each state, the beginning of its sources, and all sources."""
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
