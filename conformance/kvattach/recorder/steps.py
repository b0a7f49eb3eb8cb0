"""The requests of a recording, and their steps."""

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(eq=False, slots=True)
class Entry:
    """One request. Lengths in tokens."""

    name: str
    req: "weakref.ref[Any]"
    session: str | None
    apart: str | None
    """The extra key that separates its prefixes from those of other requests."""
    input_len: int
    outputs: int
    """The number of output tokens that exist, or that prepared steps will sample."""
    matched: bool = False
    running: bool = False
    run: int = 0
    seq_len: int = 0
    prepared: "Step | None" = None
    ends: dict[int, int] = field(default_factory=dict)
    """Ended run -> the number of output tokens at its end."""
    ended: int = 0
    """The last run with a written end."""


class Step(NamedTuple):
    """A step of one request, from its preparation until its outcome is known."""

    entry: Entry
    run: int
    output: int | None
    """The index of the output token that it samples; `None` if it samples none."""

    @property
    def settled(self) -> bool:
        """Whether its outcome is final: it samples nothing, its token is known, or its request has left."""
        return self.output is None or self.run in self.entry.ends or self.token is not None

    @property
    def token(self) -> int | None:
        """The sampled token, if it is known."""
        req = self.entry.req()
        if self.output is None or req is None:
            return None
        outputs = req.output_ids
        known = self.entry.ends.get(self.run, len(outputs))
        return int(outputs[self.output]) if self.output < known else None

    def is_lost(self, token: int | None) -> bool:
        """Whether its sampled token is missing; `token` is an earlier value of `self.token`."""
        return token is None and self.output is not None
