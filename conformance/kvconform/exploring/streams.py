"""Protocols with two streams and a transfer engine, in all interleavings of queueing and completion.

Each actor takes a list of steps in order. The order of the actors, and the time at which a device completes an
operation, are arbitrary. The memory checker checks the events. The right protocol must hold in every interleaving; each
mistake in it must give a finding, and breadth-first search finds the shortest trace to it.
"""

from collections import deque
from copy import deepcopy
from typing import NamedTuple

from kvcheck import Checker, Finding
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    Drop,
    End,
    Event,
    OpId,
    Publish,
    Release,
    Share,
    Take,
    Use,
    Wait,
)


class Step(NamedTuple):
    """One atomic step of an actor."""

    events: tuple[Event, ...]
    after: tuple[OpId, ...] = ()
    """Operations that the actor must have seen complete before."""
    free: tuple[str, int] | None = None
    """A page that must have no holder before the step: the allocator's condition."""
    cached: tuple[str, int] | None = None
    """A page that must be cached before the step: a lookup's condition."""


class Protocol(NamedTuple):
    """A protocol by which actors share pages."""

    name: str
    what: str
    actors: tuple[tuple[Step, ...], ...]
    mistake: str
    wrong: tuple[tuple[Step, ...], ...]
    """The actors with the mistake."""
    rule: str
    """The rule that the mistake breaks."""


class Explored(NamedTuple):
    """The result of a search."""

    states: int
    ends: int
    """The number of interleavings in which all actors finished."""
    finding: Finding | None
    trace: tuple[Event, ...]
    """The shortest trace to the finding."""


POOLS = {"pages": Pool(1, 2), "host": Pool(1, 2), "rows": Pool(2, 1, label_size=1)}


def explore(actors: tuple[tuple[Step, ...], ...]) -> Explored:
    """Explore all interleavings until the memory checker makes a finding."""
    todo: deque[tuple[tuple[int, ...], frozenset[OpId], Checker, tuple[Event, ...]]] = deque()
    todo.append(((), frozenset(), Checker(POOLS), ()))
    seen: set[tuple[tuple[int, ...], frozenset[OpId]]] = set()
    ends = 0
    while todo:
        taken, complete, checker, trace = todo.popleft()
        if (taken, complete) in seen:
            continue
        seen.add((taken, complete))
        ends += len(taken) == sum(map(len, actors))
        todo.extend((taken, complete | {id}, checker, trace) for id in _next_to_complete(checker, complete))
        for number, actor in enumerate(actors):
            place = taken.count(number)
            if place == len(actor) or not _may(checker, complete, actor[place]):
                continue
            following, events = deepcopy(checker), trace
            ended = [End(id) for id in actor[place].after if id in checker.state.clocks.flights]
            for event in (*ended, *actor[place].events):
                events = (*events, event)
                found = following.step(event)
                if found:
                    return Explored(len(seen), ends, found[0], events)
            todo.append(((*taken, number), complete, following, events))
    return Explored(len(seen), ends, None, ())


def _next_to_complete(checker: Checker, complete: frozenset[OpId]) -> list[OpId]:
    """The oldest unfinished operation of each stream, if all operations that it waits for are done."""
    running = {id: flight for id, flight in checker.state.clocks.flights.items() if id not in complete}
    return [
        id
        for id, flight in running.items()
        if not any(other != id and flight.is_after(earlier) for other, earlier in running.items())
    ]


def _may(checker: Checker, complete: frozenset[OpId], step: Step) -> bool:
    """Whether an actor may take a step."""
    if not complete >= {*step.after}:
        return False
    if step.free is not None:
        page = checker.state.pools[step.free[0]].pages.get(step.free[1])
        if page is not None and page.kind == "held":
            return False
    if step.cached is not None:
        page = checker.state.pools[step.cached[0]].pages.get(step.cached[1])
        return page is not None and bool(page.keys)
    return True


def _page(pool: str, page: int, holder: str, label: str | None = None) -> Use:
    return Use(None, pool, [page], holder=holder, labels=None if label is None else [label])


def _pass(id: str, holder: str, page: int, label: str) -> Begin:
    """A forward pass that writes a page."""
    return Begin(id, "gpu", writes=[_page("pages", page, holder, label)])


def _busy(holder: str, id: str, page: int, *before: Event) -> tuple[Step, ...]:
    """Another request, which takes a page, writes it and releases it."""
    taken = Step((*before, Take(holder, "pages", [page]), _pass(id, holder, page, holder)), free=("pages", page))
    return taken, Step((Release(holder, "pages", [page]),), after=(id,))


_STORED = (
    Take("tier", "host", [1]),
    Begin("old", "host", writes=[_page("host", 1, "tier", "x")]),
    Publish("host", [1], ["k"], ["x"]),
    Release("tier", "host", [1]),
)
"""A cached page of the host tier."""


def _backup(*pins: Event) -> Step:
    copy = Begin("backup", "copy", copies=[(_page("pages", 1, "transfer" if pins else "a"), _page("host", 1, "tier"))])
    return Step((Take("tier", "host", [1]), *pins, Wait("copy", "pass"), copy))


def _reuse(*pins: Event) -> tuple[tuple[Step, ...], ...]:
    taken = Step((Take("a", "pages", [1]), _pass("pass", "a", 1, "x")), free=("pages", 1))
    fence = (Step((Release("transfer", "pages", [1]),), after=("backup",)),) if pins else ()
    return (taken, _backup(*pins), Step((Release("a", "pages", [1]),))), fence, _busy("b", "next pass", 1)


def _load(*waits: Event) -> tuple[tuple[Step, ...], ...]:
    load = Begin("load", "copy", copies=[(Use(None, "host", [1]), _page("pages", 1, "a"))])
    forward = Begin("pass", "gpu", reads=[_page("pages", 1, "a", "x")])
    request = (
        Step((*_STORED, Take("a", "pages", [1]), load)),
        Step((*waits, forward)),
        Step((Release("a", "pages", [1]),), after=("load", "pass")),
    )
    return request, _busy("b", "other pass", 2)


def _look(*after: OpId) -> tuple[tuple[Step, ...], ...]:
    taken = Step((Take("a", "pages", [1]), _pass("pass", "a", 1, "x")))
    spill = Step((Begin("spill", "disk", reads=[_page("host", 1, "tier", "x")]),), after=after)
    return (taken, _backup(), spill), _busy("b", "other pass", 2)


def _row(*after: OpId) -> tuple[tuple[Step, ...], ...]:
    def written(id: str, stop: int, *labels: str) -> Begin:
        return Begin(id, "host", writes=[Use(None, "rows", [1], 0, stop, [*labels], "a")])

    forward = Begin("pass", "gpu", reads=[Use(None, "rows", [1], 0, 2, ["1", "2"], "a")])
    request = (
        Step((Take("a", "rows", [1]), written("row", 2, "1", "2"), forward)),
        Step((written("rewritten", 1, "3"),), after=after),
    )
    return request, _busy("b", "other pass", 2)


def _evict(*pins: Event) -> tuple[tuple[Step, ...], ...]:
    source = Use(None, "host", [1], holder="transfer" if pins else None)
    load = Begin("load", "copy", copies=[(source, _page("pages", 1, "a"))])
    back = Begin("backup", "back", copies=[(_page("pages", 2, "c"), _page("host", 1, "tier"))])
    wait = Wait("back", "filled")
    request = (
        Step((*pins, Take("a", "pages", [1]), load), cached=("host", 1)),
        *((Step((Release("transfer", "host", [1]),), after=("load",)),) if pins else ()),
    )
    filled = Step((*_STORED, Take("c", "pages", [2]), _pass("filled", "c", 2, "y")))
    evicted = Step((Drop("host", [1], ["k"]), Take("tier", "host", [1]), wait, back), free=("host", 1))
    return request, (filled, evicted)


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "page-reuse",
            "a backup pins its source until it is complete; only then is the page handed on",
            _reuse(Share("transfer", "pages", [1], pin=True)),
            "the page is reused before the fence",
            _reuse(),
            "MEM-RACE",
        ),
        Protocol(
            "load",
            "a forward pass waits for the load that it reads",
            _load(Wait("gpu", "load")),
            "the pass does not wait",
            _load(),
            "MEM-RACE",
        ),
        Protocol(
            "completion",
            "data that a backup has written is used when it has been seen complete",
            _look("backup"),
            "the completion is assumed without a check",
            _look(),
            "MEM-RACE",
        ),
        Protocol(
            "row",
            "a row is rewritten when the launch that reads it is complete",
            _row("pass"),
            "the row is rewritten in flight",
            _row(),
            "MEM-RACE",
        ),
        Protocol(
            "host-eviction",
            "a load pins its source; only a page without a holder is evicted",
            _evict(Share("transfer", "host", [1], ["k"], pin=True)),
            "the host page is evicted while it is loaded",
            _evict(),
            "MEM-RACE",
        ),
    )
}
"""Protocols by name."""
