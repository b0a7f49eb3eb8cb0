"""The canary's input: the pools of a memory, and for each pass the slots that it reads and writes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from kvcuda.arrays import Ints
from kvcuda.canary.words import Kind

WORD = 8
"""Bytes of a word: bytes are digested in words."""
FIRST_BYTES = 16
"""Bytes of each slot that are digested, unless all are."""


class Span(NamedTuple):
    """The bytes of each slot at one place of a tensor: `words` words of 8 bytes."""

    address: int
    page_stride: int
    """In bytes."""
    slot_stride: int
    """In bytes."""
    words: int


def spans_of(tensor: torch.Tensor, *, page_dim: int, slot_dim: int | None = None, whole: bool = False) -> list[Span]:
    """The bytes of each slot in one layer's K or V.

    `page_dim` numbers the pages, `slot_dim` the slots of a page; without it the former numbers slots. Of each slot the
    first 16 bytes are taken, or with `whole` all of them, one span for each contiguous piece.

    Raises:
        ValueError: a piece is no whole number of 8-byte words.
    """
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    others = [dim for dim in range(tensor.dim()) if dim not in (page_dim, slot_dim)]
    piece, outer = size, list[int]()
    for dim in sorted(others, key=lambda dim: strides[dim]):
        if strides[dim] == piece and not outer:
            piece *= tensor.shape[dim]
        else:
            outer.append(dim)
    if not whole:
        piece, outer = min(piece, FIRST_BYTES), []
    if piece % WORD:
        raise ValueError(f"{piece} bytes of a slot are no whole number of words of {WORD}")
    slot_stride = 0 if slot_dim is None else strides[slot_dim]
    return [
        Span(
            tensor.data_ptr() + sum(int(i) * strides[dim] for i, dim in zip(index, outer, strict=True)),
            strides[page_dim],
            slot_stride,
            piece // WORD,
        )
        for index in np.ndindex(*(tensor.shape[dim] for dim in outer))
    ]


class Pool(NamedTuple):
    """One pool of slots: KV of one kind of layer, recurrent states, or a host tier."""

    name: str
    slots: int
    """Slots, page 0 included, which takes the writes of padding and is never read."""
    page_size: int = 1
    """Tokens a page; 1 for states."""
    block_tables: bool = False
    """Tables list pages; otherwise a row lists the slot index of each position."""
    kind: Kind = Kind.SLOTS
    window: int = 0
    """Positions before the first new one that a pass reads; 0 for all."""
    translation: torch.Tensor | None = None
    """int64 [slots of another pool]: the slot in this pool for each slot of the table; `None` without translation."""
    spans: Sequence[Span] = ()
    """The real bytes that are digested."""


class Places(NamedTuple):
    """Where a pass finds its slots in one pool."""

    table: torch.Tensor
    """int32: rows of slot indices, or block tables. Read when the launch runs, not when it is queued."""
    offsets: Ints
    """int64 [requests]: the index in the table of each request's entry for position 0, whether it exists or not."""
    new_slots: torch.Tensor
    """[new tokens]: the slot that each is written to, numbered as in the table; negative for none."""


class States(NamedTuple):
    """Where a pass finds its recurrent states; int64 [requests] each, 0 for no slot."""

    sources: Ints
    slots: Ints
    borders: Ints
    """Lengths in tokens, within the new ones, whose states are kept too."""
    border_slots: Ints


class Known(NamedTuple):
    """The host's knowledge of one request in a pass."""

    position: int
    label: int
    """The label of the prefix that ends with this position, computed from the request's tokens."""
    fresh: bool = False
    """The pass begins behind this position, and the request's earlier writes no longer count: it is new, was preempted,
    resumes a session, or goes back by more than its drafts."""


START = Known(-1, 0, fresh=True)
"""A request that begins with its first token."""


class Pass(NamedTuple):
    """One forward pass. The requests' new tokens follow each other in the order of `names`."""

    names: Sequence[str]
    counts: Ints
    """int64 [requests]: new tokens of each."""
    input_ids: torch.Tensor
    """[new tokens], int32 or int64."""
    positions: torch.Tensor
    """[new tokens], int32 or int64."""
    places: Sequence[Places | States]
    """One for each pool that a pass uses, in the order of the pools."""
    known: Mapping[int, Known]
    """By the request's index. A request that was in no pass before must be fresh."""
    longest: int = 0
    """An upper bound on the tokens of each request; 0 if none is known."""
