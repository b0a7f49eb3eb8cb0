"""Walks through the states of a scope that cover each transition, or each pair of successive transitions.

A walk begins in an empty system. If its place has an uncovered step, the walk takes it. If not, it goes the shortest
way to the nearest place with one, and ends if there is none. So the last step of a walk is in no other walk: earlier
walks did not cover it, and later ones never reach the place that it leads to. Finding the fewest operations is a rural
postman problem in a directed graph, with restarts. This greedy search takes somewhat more.

A transition is an operation that the scope allows in a state, whether it is carried out or must be refused. Choices of
the implementation are left out, since no vector can request them: the eviction of one of several evictable pages, a
cursor that moves less far than allowed, a state that the store takes from its holder.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from msgspec.structs import replace

from kvconform.exploring.canonical import key
from kvconform.exploring.expanding import carry_out
from kvconform.exploring.moves import Move, Node, choices, evictions
from kvconform.exploring.scope import SCOPES, Scope, scope_named
from kvconform.oracle import Model, NotedState
from kvspec.events import CacheUnfinished, Complete, Evict, Launch, Operation, Refusal, SwaEvict
from kvspec.model.hybrid import furthest_cursor
from kvspec.model.state import State

Targets = list[list[int]]
"""For each place, the places to which its steps lead. Walks begin in the first place."""


class Cover(NamedTuple):
    """A scope, and the steps that walks must cover in it."""

    scope: str
    without: tuple[str, ...] = ()
    """Optional operations of the scope that are left out."""
    pairs: bool = False
    """Cover each pair of successive transitions, not only each transition."""

    @property
    def name(self) -> str:
        """The name of its walks, before their number."""
        return self.scope.replace("-", "_") + ("_pairs" if self.pairs else "")

    @property
    def what(self) -> str:
        """A description of the cover."""
        what = "each pair of successive transitions" if self.pairs else "each transition"
        without = f", without {', '.join(self.without)}" if self.without else ""
        return f"{what} in the scope {self.scope} ({SCOPES[self.scope].about}{without})"


COVERS = (
    Cover("tiny"),
    Cover("speculative", ("close_session", "give_back")),
    Cover("chunks", ("abort", "retract")),
    Cover("hold-and-wait", ("evict", "retract")),
    Cover("three-in-flight", ("abort", "close_session", "preempt")),
    Cover("sliding-window", ("abort", "preempt", "retract")),
    Cover("recurrent-states", ("abort", "preempt", "retract")),
    Cover("tiny", ("cache_unfinished", "evict", "preempt", "retract"), pairs=True),
    Cover("speculative", ("abort", "close_session", "give_back", "preempt"), pairs=True),
    Cover("chunks", ("abort", "cache_unfinished", "evict", "retract"), pairs=True),
    Cover("recurrent-states", ("abort", "cache_unfinished", "evict", "preempt", "retract"), pairs=True),
)
"""Each is covered in at most 100,000 operations, pairs in 10,000. The operations left out make that possible."""


class Graph(NamedTuple):
    """The states of a scope by number, the empty one first."""

    moves: list[list[Move]]
    """The possible moves in each state."""
    targets: Targets


def walks_of(cover: Cover) -> list[list[Operation[Any]]]:
    """The operations of each walk."""
    moves, targets = graph(scope_named(cover.scope, cover.without))
    made = []
    for walk in walks(in_pairs(targets) if cover.pairs else targets):
        place, operations, flights = 0, list[Operation[Any]](), list[int]()
        for step in walk:
            before, place = place, targets[place][step]
            operations += (_numbered(op, flights, refused=place == before) for op in moves[before][step])
        made.append(operations)
    return made


def _numbered(op: Operation[Any], flights: list[int], *, refused: bool) -> Operation[Any]:
    """The operation with this walk's launch number: the smallest free one to launch, the oldest to complete.

    States that differ only in launch numbers count as one, so the operation may have been found with other numbers.
    """
    if isinstance(op, Launch):
        free = next(number for number in count(1) if number not in flights)
        flights += [] if refused else [free]
        return replace(op, launch=free)
    if isinstance(op, Complete):
        oldest = flights[0]
        del flights[: not refused]
        return replace(op, launch=oldest)
    return op


def graph(scope: Scope) -> Graph:
    """All states of a scope, breadth-first."""
    model, root = Model(scope.config), Node(NotedState(scope.config), frozenset())
    numbers, unseen, found = {key(root): 0}, deque([root]), Graph([], [])
    while unseen:
        node, here = unseen.popleft(), len(found.targets)
        steps: list[tuple[int, Move]] = []
        for move, came, _ in choices(scope, node):
            if not all(_can_be_asked(node.state, op) for op in move):
                continue
            state = node.state.copy()
            try:
                carry_out(model, state, move)
            except Refusal:
                steps.append((here, move))
                continue
            after = Node(state, node.came if came is None else node.came | {came})
            name = key(after)
            if name not in numbers:
                numbers[name] = len(numbers)
                unseen.append(after)
            steps.append((numbers[name], move))
        steps.sort(key=lambda step: step[0] != here)  # first the steps that change nothing: one operation each
        found.moves.append([move for _, move in steps])
        found.targets.append([target for target, _ in steps])
    return found


def _can_be_asked(state: State, op: Operation[Any]) -> bool:
    """Whether the request determines this answer, for an implementation that does no more than requested."""
    match op:
        case Evict():
            asked = op.n, op.window, op.states
            return max(asked) > 1 or sum((one.n, one.window, one.states) == asked for one in _evictions(state)) == 1
        case SwaEvict():
            return op.obs is None or op.obs.evicted_len == furthest_cursor(state, *state.running(op.req))
        case CacheUnfinished():
            return op.obs is None
    return True


def _evictions(state: State) -> Iterator[Evict]:
    return (op for move in evictions(state) for op in move if isinstance(op, Evict))


def in_pairs(targets: Targets) -> Targets:
    """Turn steps into places: a walk is at the place of its last step, and begins in place 0."""
    numbers: dict[tuple[int, int], int] = {}
    for place, leading in enumerate(targets):
        for step in range(len(leading)):
            numbers[place, step] = len(numbers) + 1
    ends = [0, *(targets[place][step] for place, step in numbers)]
    return [[numbers[end, step] for step in range(len(targets[end]))] for end in ends]


def walks(targets: Targets) -> Iterator[list[int]]:
    """Walks that together take all steps of all places. A walk lists the step that it takes in each place."""
    left = [[*range(len(leading))][::-1] for leading in targets]
    spent: set[int] = set()
    """Places from which no uncovered step can be reached."""
    while (way := _nearest(targets, left, spent, 0)) is not None:
        place, walk = 0, list[int]()
        while way is not None:
            for step in way:
                place = targets[place][step]
            walk += way
            while left[place]:
                walk.append(left[place].pop())
                place = targets[place][walk[-1]]
            way = _nearest(targets, left, spent, place)
        yield walk


def _nearest(targets: Targets, left: list[list[int]], spent: set[int], place: int) -> list[int] | None:
    """The shortest way from a place to an uncovered step. If there is none, all searched places become spent."""
    came: dict[int, tuple[int, int] | None] = {place: None}
    unseen = deque([place])
    while unseen:
        place = unseen.popleft()
        if left[place]:
            way = []
            while (before := came[place]) is not None:
                place, step = before
                way.append(step)
            return way[::-1]
        for step, target in enumerate(targets[place]):
            if target not in came and target not in spent:
                came[target] = place, step
                unseen.append(target)
    spent.update(came)
    return None
