"""What a law says of an event: what it breaks, or that no engine can mean it."""

from typing import Protocol

import msgspec

from kvspec.memory.events import Event, OpId, Page

PAGES_AN_EVENT = 1 << 20
"""An event names at most so many pages one by one: its cost follows what it names."""

LONGEST = 400
"""Characters of what a finding says: names may be as long as a line, and an event may have a finding for each page."""

FINDINGS = 1000
"""Findings of one event and rule that are told one by one; of further ones the number."""

OWNERS, CONTENT = "owners", "content"
"""What a finding is about, if others can follow from it: from who has a page all that happens to it, from what is in a
page only what is found there. Nothing follows from an order that is missing, or from what has left the engine."""

Writer = tuple[OpId, int]
"""An operation, and the number of the event that queued it."""


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
    about: str = ""
    """`OWNERS`, `CONTENT`, or neither."""
    cause: int | None = None
    """The event of an earlier finding on the same page or holder, of which this may be a consequence."""
    earlier: str | None = None
    """The place of the earlier of two uses that race."""
    other: Writer | None = None
    """The operation of the earlier of two uses that race; else the last one that wrote in the page, where that is known
    and somebody else's content is found there."""
    more: int = 0
    """So many further findings of the same rule the event has, past the first `FINDINGS`: they are not told."""


class Watching(Protocol):
    """A law that follows what happens to some pools. It can be pickled: whoever explores goes on from copies."""

    def step(self, event: Event, /) -> list[Finding]:
        """Judge one event and move on; what it breaks, most often nothing.

        Raises:
            Malformed: no engine can mean this.
        """

    def names(self, pool: str) -> dict[str, Page]:
        """Each name under which a page of a pool is published, and the page."""
