"""What the fast law says of a finding besides: what it may follow from, and who else has part in it."""

from kvspec import memory
from kvspec.memory.events import OpId


class Malformed(ValueError):
    """An event that no engine can mean: the file is wrong."""


LONGEST = 400
"""Characters of what a finding says: names may be as long as a line, and an event may have a finding for each page."""

FINDINGS = 1000
"""Findings of one event and rule that are told one by one; of further ones the number."""

PAGES_AN_EVENT = 1 << 20
"""An event names at most so many pages one by one: its cost follows what it names."""

OWNERS, CONTENT = "owners", "content"
"""What a finding is about, if others can follow from it: from who has a page all that happens to it, from what is in a
page only what is found there. Nothing follows from an order that is missing, or from what has left the engine."""

Writer = tuple[OpId, int]
"""An operation, and the number of the event that queued it."""


class Finding(memory.Finding, forbid_unknown_fields=True, omit_defaults=True):
    """A rule of the law was broken."""

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
