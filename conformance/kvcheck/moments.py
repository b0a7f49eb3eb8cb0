"""Clocks: for each stream the last moment before, as trees that share subtrees.

A clock never changes. A clock with another moment copies a path of the tree, and a join takes whole subtrees of both.
So the cost of a clock is what it adds to its sources, for any number of streams.
"""

from collections.abc import Iterator
from functools import cache
from operator import is_
from typing import Any

_BITS = 3
_WIDTH = 1 << _BITS
_MASK = _WIDTH - 1

Node = tuple[Any, ...]
"""`_WIDTH` moments or nodes."""
Clock = tuple[int, Node]
"""The number of bits of a stream's number that select below the root, and the root."""

START: Clock = (0, (0,) * _WIDTH)
"""The clock before everything."""


def moment(clock: Clock, stream: int) -> int:
    """The last moment before, for a stream given by number."""
    shift, node = clock
    if stream >> shift >= _WIDTH:
        return 0
    while shift:
        node = node[stream >> shift & _MASK]
        shift -= _BITS
    last: int = node[stream & _MASK]
    return last


def after(clock: Clock, stream: int, last: int) -> Clock:
    """The clock that also comes after a moment of a stream."""
    if moment(clock, stream) >= last:
        return clock
    shift, node = clock
    while stream >> shift >= _WIDTH:
        shift, node = shift + _BITS, _above(shift, node)
    return shift, _changed(node, shift, stream, last)


def join(one: Clock, other: Clock) -> Clock:
    """The clock after everything that one of the two comes after."""
    if one is other:
        return one
    (high, above), (low, node) = (one, other) if one[0] >= other[0] else (other, one)
    while low < high:
        low, node = low + _BITS, _above(low, node)
    return high, _joined(above, node, high)


def meet(one: Clock, other: Clock) -> Clock:
    """The clock after everything that both come after."""
    (high, above), (low, node) = (one, other) if one[0] >= other[0] else (other, one)
    while low < high:
        low, node = low + _BITS, _above(low, node)
    return high, _met(above, node, high)


def later(one: Clock, other: Clock) -> Iterator[int]:
    """The streams with a later moment in `other`, which comes after `one`."""
    (shift, node), (high, above) = one, other
    while shift < high:
        shift, node = shift + _BITS, _above(shift, node)
    yield from _differing(node, above, high, 0)


@cache
def _nothing(shift: int) -> Node:
    """The node without any moments before."""
    return (_nothing(shift - _BITS),) * _WIDTH if shift else START[1]


def _above(shift: int, node: Node) -> Node:
    """A node with the given one as its first."""
    return _nothing(shift + _BITS) if node is _nothing(shift) else (node, *(_nothing(shift),) * (_WIDTH - 1))


def _changed(node: Node, shift: int, stream: int, last: int) -> Node:
    children = list(node)
    place = stream >> shift & _MASK
    children[place] = _changed(node[place], shift - _BITS, stream, last) if shift else last
    return tuple(children)


def _joined(one: Node, other: Node, shift: int) -> Node:
    """The join of two nodes: one of the two itself if it comes after the other, so that later joins are quick."""
    if one is other or other is _nothing(shift):
        return one
    if one is _nothing(shift):
        return other
    if shift:
        both = tuple([_joined(left, right, shift - _BITS) for left, right in zip(one, other, strict=True)])
        same = [all(map(is_, both, node)) for node in (one, other)]
    else:
        both = tuple([left if left >= right else right for left, right in zip(one, other, strict=True)])
        same = [both == one, both == other]
    return one if same[0] else other if same[1] else both


def _met(one: Node, other: Node, shift: int) -> Node:
    if one is other or _nothing(shift) in (one, other):
        return one if one is other else _nothing(shift)
    both = zip(one, other, strict=True)
    return tuple([_met(left, right, shift - _BITS) if shift else min(left, right) for left, right in both])


def _differing(one: Node, other: Node, shift: int, first: int) -> Iterator[int]:
    for place, (left, right) in enumerate(zip(one, other, strict=True)):
        if left is not right:
            if shift:
                yield from _differing(left, right, shift - _BITS, first + (place << shift))
            elif left != right:
                yield first + place
