"""Expands states of the frontier: their choices, and the checks of each new state, on one process or several."""

import multiprocessing
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from kvconform.exploring.canonical import Key
from kvconform.exploring.moves import Node, choices
from kvconform.exploring.scope import Scope
from kvconform.oracle import Model, NotedState
from kvconform.signals import ignore_terminal
from kvspec.events import Complete, Operation, Refusal, Verify
from kvspec.invariants import check

KeyOf = Callable[[Node], Key]
Spread = Callable[[Callable[[list[Any]], "Expansion"], list[list[Any]]], "Iterator[Expansion]"]
"""Expands parts of the frontier elsewhere, and returns their results in order."""


class Expansion(NamedTuple):
    """The states that follow some states after one step."""

    degrees: list[int]
    """For each state, the number of choices that were carried out."""
    numbers: list[int]
    """For each such choice, its number among all choices of the state."""
    keys: list[Key]
    """The states to which these choices lead."""
    serves: bytearray
    """Whether these choices are the scheduler's."""
    fresh: dict[Key, tuple[Any, bool]]
    """New states, and whether they have requests."""
    reached: dict[str, tuple[int, int]]
    """Reached event -> its first state, counted from the first of the part, and the choice."""
    checked: defaultdict[str, int]
    broken: tuple[int, int] | None
    """The first state and choice that break a rule; later ones were not carried out."""


class Expander:
    """Expands states, and checks every rule in each one that it meets for the first time."""

    def __init__(self, scope: Scope, key_of: KeyOf, pack: Callable[[Node], Any], unpack: Callable[[Any], Node]) -> None:
        """Expand states of a scope. `pack` turns a state into a value that another process can read."""
        self.scope = scope
        self.key_of = key_of
        self.pack = pack
        self.unpack = unpack
        self.model = Model(scope.config)
        self.met: set[Key] = set()
        self.labels: set[str] = set()

    def __call__(self, packed: Sequence[Any]) -> Expansion:
        """Expand some states."""
        found = Expansion([], [], [], bytearray(), {}, {}, defaultdict(int), None)
        for position, one in enumerate(packed):
            before = len(found.numbers)
            try:
                self._expand(self.unpack(one), position, found)
            except _Broken as broken:
                return found._replace(broken=(position, broken.number))
            found.degrees.append(len(found.numbers) - before)
        return found

    def _expand(self, node: Node, position: int, found: Expansion) -> None:
        state, own_key = None, None
        for number, (move, came, serves) in enumerate(choices(self.scope, node)):
            adds = any(isinstance(op, (Complete, Verify)) for op in move)
            if state is None or adds:
                state = node.state.copy(tokens=adds)
                state.checked = found.checked
            try:
                carry_out(self.model, state, move)
                refused = False
            except Refusal:
                refused = True
            except Exception as error:
                raise _Broken(number) from error
            if refused:
                own_key = own_key or self.key_of(node)
                if self.key_of(node._replace(state=state)) != own_key:
                    raise _Broken(number)
                continue
            after = Node(state, node.came if came is None else node.came | {came})
            name = self.key_of(after)
            found.numbers.append(number)
            found.keys.append(name)
            found.serves.append(serves)
            for label in {name for name, times in state.reached.items() if times} - self.labels:
                self.labels.add(label)
                found.reached[label] = position, number
            if name not in self.met:
                self.met.add(name)
                self._check(state, number)
                forget_counts(state)
                found.fresh[name] = self.pack(after), bool(state.requests)
            state = None

    def _check(self, state: NotedState, number: int) -> None:
        try:
            check(state)
        except Exception as error:
            raise _Broken(number) from error


class _Broken(Exception):
    """A rule is broken after the choice `number`, or the specification itself failed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def carry_out(model: Model, state: NotedState, move: Iterable[Operation[Any]]) -> None:
    """Carry a move out on a state; the model answers it."""
    model.state = state
    for op in move:
        model.step(op)


def forget_counts(state: NotedState) -> None:
    """Drop the counts of the way to a state: they do not belong to the state."""
    for counter in (state.unchecked, state.unreported, state.reached, state.chosen):
        counter.clear()
    state.checked = defaultdict(int)


@contextmanager
def expanders(
    scope: Scope, key_of: KeyOf, jobs: int, spread: Spread | None
) -> Iterator[tuple[Callable[[Node], Any], Callable[[list[list[Any]]], Iterator[Expansion]]]]:
    """The functions that pack a state, and that expand parts of the frontier in order."""
    if spread is not None:
        yield packed, partial(spread, partial(_expand_alone, scope, key_of))
        return
    if jobs == 1:
        expander = Expander(scope, key_of, _same, _same)
        yield _same, lambda parts: map(expander, parts)
        return
    with multiprocessing.Pool(jobs, _start, (scope, key_of)) as pool:
        yield packed, lambda parts: pool.imap(_work, parts)


def _same(node: Node) -> Node:
    return node


def packed(node: Node | bytes) -> bytes:
    """A state as bytes; a packed state stays the same."""
    return node if isinstance(node, bytes) else pickle.dumps(node, pickle.HIGHEST_PROTOCOL)


def unpacked(one: bytes) -> Node:
    """A state from its bytes."""
    node: Node = pickle.loads(one)
    return node


def _expand_alone(scope: Scope, key_of: KeyOf, part: list[Any]) -> Expansion:
    """Expand a part without memory of other parts: it may be repeated, on any machine and in any order."""
    return Expander(scope, key_of, packed, unpacked)(part)


_expander: Expander | None = None


def _start(scope: Scope, key_of: KeyOf) -> None:
    """Make the expander of this process."""
    ignore_terminal()
    global _expander  # noqa: PLW0603 - a pool's processes have no other place
    _expander = Expander(scope, key_of, packed, unpacked)


def _work(packed: list[Any]) -> Expansion:
    assert _expander is not None
    return _expander(packed)
