"""What a launch hands to the forward pass of a model."""

from collections.abc import Callable
from typing import NamedTuple

from kvcuda.tensors import Ints


class StateBatch(NamedTuple):
    """Which slots the recurrent states of each request of a forward pass are read from and written to.

    Arrays int64 [batch].
    """

    sources: Ints
    """The slots with the states to begin from; 0, which is no slot, for the one before any token."""
    slots: Ints
    """Where the states after the last positions go."""
    borders: Ints
    """The last page borders that are passed, in tokens; 0 where none is."""
    border_slots: Ints
    """Where the states there go; 0 where none is passed."""


class ForwardBatch(NamedTuple):
    """What a forward pass is to do: for each request, compute positions [start, end) of a row. Arrays int64 [batch]."""

    launch: int
    reqs: list[str]
    rows: Ints
    starts: Ints
    ends: Ints
    outs: Ints
    """Where in `out_cache_loc` the slots of each request's new positions begin."""
    states: StateBatch | None
    """The slots of recurrent states, if there are any."""

    def only(self, chosen: list[int]) -> "ForwardBatch":
        """The same for some of the requests, by their places in the batch."""
        return ForwardBatch(
            self.launch,
            [self.reqs[i] for i in chosen],
            self.rows[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.outs[chosen],
            None if self.states is None else StateBatch(*(column[chosen] for column in self.states)),
        )


Forward = Callable[[ForwardBatch], object]
"""Enqueues a forward pass on the forward lane. It must not wait for it."""
