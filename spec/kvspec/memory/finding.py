"""What a law says of an event: what it breaks, or that no engine can mean it."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvspec.memory.events import Event, Page

PAGES_AN_EVENT = 1 << 20
"""An event names at most so many pages one by one: its cost follows what it names."""


class Malformed(ValueError):
    """An event that no engine can mean: the file is wrong."""


class Finding(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A rule of the law was broken."""

    rule: str
    what: str
    event: int
    """The number of the event, from 1."""
    at: str | None = None
    pool: str | None = None
    page: Page | None = None
    holder: str | None = None


class Watching(Protocol):
    """A law that follows what happens to some pools. It can be pickled: whoever explores goes on from copies."""

    def step(self, event: Event, /) -> Sequence[Finding]:
        """Judge one event and move on; what it breaks, most often nothing.

        Raises:
            Malformed: no engine can mean this.
        """

    def names(self, pool: str) -> dict[str, Page]:
        """Each name under which a page of a pool is published, and the page."""
