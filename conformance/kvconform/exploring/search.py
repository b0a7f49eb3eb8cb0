"""Breadth-first search through all reachable states of a scope, on one process or several.

States are numbered in the order in which they are found, and are expanded in that order, so the first trace to a state,
to a broken rule, or to an event is a shortest one. Processes expand parts of the frontier and name the states by their
keys. Only one process assigns the numbers, in order, so the result does not depend on the number of processes. Of a
state only its number and its two neighbours in the search tree are kept.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kvcheck import Checker
from kvconform.exploring.canonical import Key, key
from kvconform.exploring.checkpoint import Checkpoint, Grown
from kvconform.exploring.expanding import Expansion, KeyOf, Spread, carry_out, expanders, packed, unpacked
from kvconform.exploring.liveness import Services, stuck
from kvconform.exploring.moves import Node, choices
from kvconform.exploring.scope import Scope
from kvconform.oracle import Model
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.vectors.runner import Counterexample
from kvspec.events import Operation, Refusal
from kvspec.invariants import check
from kvspec.rules import Violation

LARGEST_PART = 128
"""The most states that one process expands at a time."""

Progress = Callable[[int, int, int], object]
"""Receives the states found, the states expanded, and the depth reached."""


class Explored(NamedTuple):
    """The result of exhausting a scope."""

    scope: Scope
    states: int
    transitions: int
    depth: int
    """The number of operations of the longest of all shortest traces."""
    seconds: float
    witnesses: dict[str, Sequence[Operation[Any]]]
    """Event reached -> the operations of a shortest trace to it."""
    checked: Counter[str]
    """Rule -> how often a step checked it, besides `kvspec.invariants`, which checks every state."""
    finding: Counterexample | None
    """The shortest trace to a broken rule; `None` if every rule holds in every state."""
    keys: frozenset[Key]
    """The names of all states."""

    @property
    def missing(self) -> set[str]:
        """Events that the scope declares but did not reach."""
        return set(self.scope.sometimes - self.witnesses.keys())

    @property
    def holds(self) -> bool:
        """Whether every rule holds, and every declared event was reached."""
        return self.finding is None and not self.missing


def exhaust(
    scope: Scope,
    *,
    jobs: int = 1,
    key_of: KeyOf = key,
    progress: Progress = lambda *_: None,
    live: bool = True,
    checker: bool = False,
    spread: Spread | None = None,
    checkpoint: Checkpoint | None = None,
) -> Explored:
    """Exhaust a scope, or find the shortest trace to a broken rule.

    `jobs` is the number of processes, unless `spread` expands parts elsewhere. `live` also checks LIVE-1, once all
    states are known. With `checker`, the memory checker checks the memory events of each transition, and each state is
    compared with the checker's. With a `checkpoint` the search resumes from the level in it.
    """
    begin = time.perf_counter()
    tree = _Tree(scope, key_of, progress, checker=checker)
    grown = None if checkpoint is None else checkpoint.tree_of(scope.name)
    if grown is not None:
        begin -= grown.seconds
    with expanders(scope, key_of, jobs, spread) as (pack, expand):
        frontier = [pack(tree.root())] if grown is None else [pack(unpacked(one)) for one in tree.restore(grown)]
        for following in tree.grow(frontier, expand):
            if checkpoint is not None:
                checkpoint.after_level(partial(tree.grown, following, begin))
    finding = None if tree.broken is None else tree.demonstrate(tree.broken)
    if finding is None and live:
        dead = stuck(tree.services, tree.waits)
        finding = None if dead is None else _show_stuck(tree, dead)
    return Explored(
        scope,
        len(tree.parents),
        tree.transitions,
        tree.depth,
        time.perf_counter() - begin,
        {label: tree.trace(tree.path(*place)) for label, place in tree.witnesses.items()},
        tree.checked,
        finding,
        frozenset(tree.numbers),
    )


_KEPT = ("parents", "choices", "waits", "services", "numbers", "witnesses", "checked", "transitions", "depth")
"""The parts of a tree from which a search resumes."""


class _Tree:
    """The search tree, by numbers of states, and the events reached in it."""

    def __init__(self, scope: Scope, key_of: KeyOf, progress: Progress, *, checker: bool) -> None:
        self.scope = scope
        self._checker = checker
        self.parents = array("L", [0])
        self.choices = array("H", [0])
        """For each state, the choice of its parent that led to it."""
        self.waits = bytearray([False])
        """For each state, whether it has requests."""
        self.services = Services()
        self.numbers: dict[Key, int] = {key_of(self.root()): 0}
        self.witnesses: dict[str, tuple[int, int]] = {}
        """Event -> its first state and choice."""
        self.checked: Counter[str] = Counter()
        self.transitions = 0
        self.depth = 0
        self.broken: tuple[int, int] | None = None
        """The state and choice that break a rule."""
        self._progress = progress

    def root(self) -> Node:
        """The initial state."""
        return Node(Model(self.scope.config, checker=Checker if self._checker else None).state, frozenset())

    def grown(self, frontier: list[Any], begin: float) -> Grown:
        """The tree so far, from which a search can resume; the search began at `begin`."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return Grown(self.scope.name, time.perf_counter() - begin, kept, [packed(one) for one in frontier])

    def restore(self, grown: Grown) -> list[bytes]:
        """Resume from a tree. Returns its frontier."""
        for name in _KEPT:
            setattr(self, name, grown.tree[name])
        return grown.frontier

    def grow(
        self, frontier: list[Any], expand: Callable[[list[list[Any]]], Iterator[Expansion]], width: int = 8
    ) -> Iterator[list[Any]]:
        """Expand levels until no state is new or a rule is broken. Yields each new frontier."""
        first = len(self.parents) - len(frontier)
        while frontier:
            size = max(1, min(LARGEST_PART, len(frontier) // width))
            parts = [frontier[start : start + size] for start in range(0, len(frontier), size)]
            following: list[Any] = []
            done = first
            for part, expansion in zip(parts, expand(parts), strict=True):
                self._add(done, expansion, following)
                done += len(part)
                self._progress(len(self.parents), done, self.depth)
                if self.broken is not None:
                    return
            frontier, first = following, done
            self.depth += bool(following)
            yield following

    def _add(self, first: int, expansion: Expansion, following: list[Any]) -> None:
        """Number the new states of an expansion, which began at state `first`."""
        numbers, place = self.numbers, 0
        for source, degree in enumerate(expansion.degrees, start=first):
            for index in range(place, place + degree):
                name = expansion.keys[index]
                number = numbers.get(name)
                if number is None:
                    number = numbers[name] = len(self.parents)
                    packed, waits = expansion.fresh[name]
                    self.parents.append(source)
                    self.choices.append(expansion.numbers[index])
                    self.waits.append(waits)
                    following.append(packed)
                if expansion.serves[index] and number != source:
                    self.services.targets.append(number)
            place += degree
            self.services.ends.append(len(self.services.targets))
        self.transitions += len(expansion.keys)
        for label, (position, number) in expansion.reached.items():
            self.witnesses.setdefault(label, (first + position, number))
        self.checked.update(expansion.checked)
        if expansion.broken is not None:
            position, number = expansion.broken
            self.broken = first + position, number

    def path(self, state: int, choice: int | None = None) -> list[int]:
        """The choices on the way to a state, and `choice` after it."""
        taken = [] if choice is None else [choice]
        while state:
            taken.append(self.choices[state])
            state = self.parents[state]
        taken.reverse()
        return taken

    def trace(self, path: Iterable[int]) -> list[Operation[Any]]:
        """The operations of successive choices, with their answers."""
        return [op for move, _ in _walk(self.scope, self.root(), path) for op in move]

    def demonstrate(self, broken: tuple[int, int]) -> Counterexample:
        """A counterexample for the failure after a state's choice."""
        operations: list[Operation[Any]] = []
        try:
            for _, node in _walk(self.scope, self.root(), self.path(*broken), operations):
                check(node.state)
        except Violation as violation:
            return Counterexample(operations, RuleBroken(violation, len(operations), operations[-1]))
        except Refusal as refusal:
            operations[-1].refused = refusal.refused
            changed = Violation("OP-1", f"the refused operation changed the state: {refusal}")
            return Counterexample(operations, RuleBroken(changed, len(operations), operations[-1]))
        except Exception as error:
            return Counterexample(operations, ImplementationFailed(len(operations), operations[-1], error))
        raise AssertionError("a failure shows again, since nothing here is drawn")


def _walk(
    scope: Scope, node: Node, path: Iterable[int], operations: list[Operation[Any]] | None = None
) -> Iterator[tuple[Sequence[Operation[Any]], Node]]:
    """Take choices in order; each operation is appended to `operations` before it is carried out."""
    model = Model(scope.config)
    for wanted in path:
        move, came, _ = next(choice for number, choice in enumerate(choices(scope, node)) if number == wanted)
        state = node.state.copy()
        for op in move:
            if operations is not None:
                operations.append(op)
            carry_out(model, state, (op,))
        node = Node(state, node.came if came is None else node.came | {came})
        yield move, node


def _show_stuck(tree: _Tree, dead: int) -> Counterexample:
    """A counterexample for LIVE-1 in a state."""
    path = tree.path(dead)
    operations = tree.trace(path)
    *_, (_, node) = _walk(tree.scope, tree.root(), path)
    state = node.state
    waiting = ", ".join(sorted(state.requests))
    held = ", ".join(
        f"{name} holds {len(state.private(record))}"
        for name, record in [
            *((f"request {req}", request.record) for req, request in sorted(state.requests.items())),
            *((f"the slot of session {name}", session.record) for name, session in sorted(state.sessions.items())),
        ]
        if record is not None
    )
    end = "nothing that the scheduler may do changes the state any more"
    if tree.services.of(dead):
        end = "no choice of the scheduler brings all of them to an end"
    what = (
        f"{waiting} wait, and {end}. Of {tree.scope.config.num_pages} pages {state.free_pages} are free, "
        f"{len(state.store.pages)} are the prefix store's, {held or 'no holder has any'}"
    )
    return Counterexample(operations, RuleBroken(Violation("LIVE-1", what), len(operations), operations[-1]))
