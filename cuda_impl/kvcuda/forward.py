"""What a launch hands to the forward pass of a model."""

from collections.abc import Callable
from typing import NamedTuple

from kvcuda.tensors import Ints


class ForwardBatch(NamedTuple):
    """What a forward pass is to do: for each request, compute positions [start, end) of a row. Arrays int64 [batch]."""

    launch: int
    reqs: list[str]
    rows: Ints
    starts: Ints
    ends: Ints
    outs: Ints
    """Where in `out_cache_loc` the slots of each request's new positions begin."""


Forward = Callable[[ForwardBatch], object]
"""Enqueues a forward pass on the forward lane. It must not wait for it."""
