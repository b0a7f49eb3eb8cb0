"""Explores an implementation beside the specification.

Every choice of the scope is carried out on both, in every state; so are operations that they must refuse (`misuses`).
After each operation the implementation's snapshot and figures are compared. The search is breadth-first, and reaches
each state of the *specification* in only one way, the first: it finds the shortest of these traces. An implementation
may remember more than the specification sees, for instance the order of its free pages. A search that distinguishes
such states (`full_state`) shows whether another way to the same state is even shorter.
"""

import pickle
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from kvconform.exploring.canonical import Key, key
from kvconform.exploring.moves import Choice, Node, choices
from kvconform.exploring.scope import TOKEN, Scope
from kvconform.features import lacks, needs_now
from kvconform.oracle import Model, NotedState
from kvconform.protocol import Implementation
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken, make
from kvconform.vectors.runner import Counterexample, Factory, carry_out, try_out, unanswered
from kvspec.events import (
    CacheUnfinished,
    CloseSession,
    Complete,
    Decode,
    Evict,
    Extend,
    Finish,
    FreeState,
    Launch,
    MatchPrefix,
    Operation,
    Preempt,
    Refusal,
    Report,
    Retract,
    Snapshot,
    Submit,
    SwaEvict,
    TakeState,
    Verify,
)
from kvspec.model.state import State

Progress = Callable[[int, int, int], object]
"""Receives the states found, the states expanded, and the depth reached."""


class Compared(NamedTuple):
    """The result of exploring an implementation."""

    scope: Scope
    states: int
    transitions: int
    depth: int
    seconds: float
    finding: Counterexample | None
    """The shortest trace to an answer that is not allowed; `None` if there is none."""
    complete: bool
    """Whether the whole scope was explored, or all of it up to a finding, and not only the part within the limit."""


class _Place(NamedTuple):
    """A state of both, and the way to it."""

    number: int
    node: Node
    twin: Any
    """The implementation, in the form of its copier."""


def compare(
    scope: Scope,
    factory: Factory,
    *,
    full_state: bool = False,
    deepest: int | None = None,
    progress: Progress = lambda *_: None,
) -> Compared:
    """Explore an implementation in lock-step with the specification, up to the first answer that is not allowed.

    Operations are left out if they need a feature that the implementation declares as lacking.

    With `full_state` two states are the same only if the implementation's whole memory is the same, too. `deepest` is
    the number of operations after which the search stops.
    """
    begin = time.perf_counter()
    root = Node(NotedState(scope.config), frozenset())
    twins, lacking = copier(factory, scope), lacks(factory)
    parents, taken = array("L", [0]), array("H", [0])
    first = twins.first()
    frontier = [_Place(0, root, first)]
    met = {_name(root, first, full_state)}
    transitions = depth = expanded = 0

    def result(finding: Counterexample | None, *, complete: bool = True) -> Compared:
        return Compared(
            scope,
            len(parents),
            transitions,
            depth,
            time.perf_counter() - begin,
            finding,
            complete or finding is not None,
        )

    while frontier:
        if depth == deepest:
            return result(None, complete=False)
        following: list[_Place] = []
        for place in frontier:
            for number, (choice, is_misuse) in enumerate(_all_choices(scope, place.node, lacking)):
                transitions += 1
                try:
                    after = _take(scope, place.node, choice, twins.copy(place.twin))
                except (RuleBroken, ImplementationFailed):
                    operations = _trace(scope, factory, parents, taken, place.number, number)
                    return result(_demonstrate(scope, factory, operations))
                if after is None or is_misuse:
                    continue
                node, implementation = after
                kept = twins.keep(implementation, place.twin, choice.move)
                name = _name(node, kept, full_state)
                if name not in met:
                    met.add(name)
                    following.append(_Place(len(parents), node, kept))
                    parents.append(place.number)
                    taken.append(number)
            expanded += 1
            progress(len(parents), expanded, depth)
        frontier = following
        depth += bool(following)
    return result(None)


def _name(node: Node, twin: Any, full_state: bool) -> Key:
    if not full_state:
        return key(node)
    return blake2b(key(node) + (twin if isinstance(twin, bytes) else pickle.dumps(twin)), digest_size=16).digest()


def _all_choices(scope: Scope, node: Node, lacking: frozenset[str]) -> Iterator[tuple[Choice, bool]]:
    """Each choice that needs no lacking feature, and whether it is a misuse."""
    right = ((choice, False) for choice in choices(scope, node, chooses_victims=False))
    wrong = ((Choice((op,)), True) for op in misuses(scope, node.state))
    for choice, is_misuse in chain(right, wrong):
        if not any(needs_now(node.state, op) & lacking for op in choice.move):
            yield choice, is_misuse


def _take(
    scope: Scope, node: Node, choice: Choice, implementation: Implementation
) -> tuple[Node, Implementation] | None:
    """Carry a choice out on both and compare everything; `None` if it is refused.

    Raises:
        RuleBroken: an answer is not allowed.
        ImplementationFailed: there was no answer.
    """
    model = Model(scope.config)
    model.state = node.state.copy()
    proxy = OracleProxy(implementation, model)
    refused = False
    for asked in choice.move:
        op = unanswered(asked)
        try:
            proxy(op)
        except Refusal:
            refused = True
            break
    for look in looks(model.state):
        carry_out(proxy, look)
    return None if refused else (Node(model.state, _came(node, choice)), implementation)


def _came(node: Node, choice: Choice) -> frozenset[str]:
    return node.came if choice.came is None else node.came | {choice.came}


def looks(state: State) -> Iterator[Operation[Any]]:
    """All operations that change nothing."""
    yield Snapshot()
    yield Report("busy")
    if all(request.record is None for request in state.requests.values()):
        yield Report("idle")


def misuses(scope: Scope, state: State) -> Iterator[Operation[Any]]:
    """Operations on existing names that are currently invalid: each must be refused, and change nothing."""
    for req, request in sorted(state.requests.items()):
        chunked, prepared = req in state.mid_prefill, req in state.prepared
        yield Submit(req, [TOKEN])
        if not request.running:
            yield from (Finish(req), Retract(req), Decode([req]), CacheUnfinished(req))
            if request.prefix_len is None:
                yield Extend([(req, len(request.tokens))])
            continue
        yield from (MatchPrefix(req), CacheUnfinished(req, not chunked))
        if prepared or chunked:
            yield from (Finish(req), Decode([req]))
        if prepared:
            yield from (CacheUnfinished(req, chunked), Extend([(req, len(request.tokens))]))
        else:
            yield Launch(99, [req])
        step = next(iter(state.speculating.get(req, ())), None)
        if step is None or not step.completed:
            yield Verify(req, 1, [TOKEN])
        if step is not None:
            yield Decode([req])
        if chunked and state.flights:
            yield Complete(next(iter(state.flights)), {req: TOKEN})
    for name, session in sorted(state.sessions.items()):
        if session.turn is not None:
            yield Submit("late", [*session.history.elements(), TOKEN], name)
        if session.record is None:
            yield Preempt(name)
        if session.closing:
            yield CloseSession(name)
    for launch in list(state.flights)[1:]:
        yield Complete(launch)
    yield Evict(0)
    yield from _hybrid_misuses(scope, state)
    if any(request.record is not None for request in state.requests.values()):
        yield Report("idle")


def _hybrid_misuses(scope: Scope, state: State) -> Iterator[Operation[Any]]:
    """The same for operations on window sides and recurrent states."""
    for req, request in sorted(state.requests.items()):
        if scope.config.sliding_window and not request.running:
            yield SwaEvict(req)
        if scope.config.num_states:
            if request.state is None:
                yield FreeState(req)
            if request.state is not None or request.record is not None or request.prefix_len is None:
                yield TakeState(req)
            if request.running:
                yield Decode([req], 2)


def _trace(
    scope: Scope, factory: Factory, parents: "array[int]", taken: "array[int]", state: int, last: int
) -> list[Operation[Any]]:
    """The operations on the way to a state and the choice after it, carried out again."""
    path, lacking = [last], lacks(factory)
    while state:
        path.append(taken[state])
        state = parents[state]
    node, implementation = Node(NotedState(scope.config), frozenset()), make(factory, scope.config)
    operations: list[Operation[Any]] = []
    for wanted in reversed(path):
        choice, _ = next(choice for number, choice in enumerate(_all_choices(scope, node, lacking)) if number == wanted)
        operations += choice.move
        try:
            after = _take(scope, node, choice, implementation)
        except (RuleBroken, ImplementationFailed):
            break
        node = node if after is None else after[0]
    return operations


def _demonstrate(scope: Scope, factory: Factory, operations: list[Operation[Any]]) -> Counterexample:
    """Show the failure at the end of a trace, by a snapshot and both reports."""
    shown = try_out(operations, scope.config, factory)
    for look in (Report("busy"), Report("idle")):
        shown = shown or try_out([*operations, look], scope.config, factory)
    if shown is None:
        error = RuntimeError("what was found did not show again: the implementation is not repeatable")
        return Counterexample(operations, ImplementationFailed(len(operations), operations[-1], error))
    return shown


class Copier:
    """Keeps and restores an implementation in a given state, as bytes, which is fastest."""

    def __init__(self, factory: Factory, scope: Scope) -> None:
        """Copy implementations that the factory makes."""
        self._factory = factory
        self._scope = scope

    def first(self) -> Any:
        """A fresh implementation, kept."""
        return self.keep(make(self._factory, self._scope.config), None, ())

    def keep(self, implementation: Implementation, before: Any, move: Iterable[Operation[Any]]) -> Any:
        """Keep an implementation that has carried `move` out since it was kept as `before`."""
        return pickle.dumps(implementation, pickle.HIGHEST_PROTOCOL)

    def copy(self, kept: Any) -> Implementation:
        """The kept implementation, for one use."""
        implementation: Implementation = pickle.loads(kept)
        return implementation


class DeepCopier(Copier):
    """Keeps objects that cannot be serialised."""

    def keep(self, implementation: Implementation, before: Any, move: Iterable[Operation[Any]]) -> Any:
        """Keep the object itself, which is not changed any more."""
        return implementation

    def copy(self, kept: Any) -> Implementation:
        """A deep copy."""
        implementation: Implementation = deepcopy(kept)
        return implementation


class Replayer(Copier):
    """Makes a fresh implementation each time and repeats all operations, for objects that cannot be copied."""

    def keep(self, implementation: Implementation, before: Any, move: Iterable[Operation[Any]]) -> Any:
        """Keep the operations."""
        return (*(before or ()), *map(unanswered, move))

    def copy(self, kept: Any) -> Implementation:
        """A fresh implementation in the same state."""
        implementation = make(self._factory, self._scope.config)
        proxy = OracleProxy(implementation, Model(self._scope.config))
        for op in kept:
            carry_out(proxy, unanswered(op))
        return implementation


def copier(factory: Factory, scope: Scope) -> Copier:
    """The fastest copier that works for the implementation, tried on a fresh one."""
    for kind in (Copier, DeepCopier):
        try:
            found = kind(factory, scope)
            found.copy(found.first())
        except ImplementationFailed:
            raise
        except Exception:  # any reason that prevents a copy
            continue
        return found
    return Replayer(factory, scope)
