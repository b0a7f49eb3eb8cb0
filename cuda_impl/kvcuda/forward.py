"""A launch's input to the forward pass of a model."""

from collections.abc import Callable
from typing import NamedTuple

from kvcuda.arrays import Ints


class StateBatch(NamedTuple):
    """The slots of the recurrent states of a forward pass, for each request. Arrays int64 [batch]."""

    sources: Ints
    """Slots with the states to begin from; 0, which is no slot, for the state of no tokens."""
    slots: Ints
    """Slots for the states after the last positions."""
    borders: Ints
    """The last page borders that are passed, in tokens; 0 if none is."""
    border_slots: Ints
    """Slots for the states at these borders; 0 if none is passed."""


class ForwardBatch(NamedTuple):
    """A forward pass: for each request, compute positions [start, end) of a row. Arrays int64 [batch]."""

    launch: int
    reqs: list[str]
    rows: Ints
    starts: Ints
    ends: Ints
    outs: Ints
    """Indices into `out_cache_loc` where the slots of each request's new positions begin."""
    states: StateBatch | None
    """The slots of recurrent states, if there are any."""

    def only(self, chosen: list[int]) -> "ForwardBatch":
        """The same for some of the requests, by their indices in the batch."""
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
"""Enqueues a forward pass on the forward stream, and does not wait for it."""
