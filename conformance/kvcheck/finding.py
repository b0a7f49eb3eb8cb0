"""Findings of the fast checker: the plain checker's, with a cause, the other operation and the owners."""

from typing import NamedTuple

from kvspec import memory
from kvspec.memory.events import OpId, Page


class Malformed(ValueError):
    """An event that makes no sense for any engine: the file is wrong."""


FINDINGS = 1000
"""The most findings of one event and code that are listed one by one. Further ones are counted."""

PAGES_AN_EVENT = 1 << 20
"""The most pages that an event may name one by one: its cost follows their number."""

OWNERS, CONTENT = "owners", "content"
"""The subject of a finding that can cause others. A wrong owner of a page can cause any finding on the page; wrong
content only findings on content. A missing order causes none, and neither does a delivered result."""

Writer = tuple[OpId, int]
"""An operation, and the number of the event that queued it."""


SHOWN = 8
"""The most pages that a finding names one by one."""

OWNERS_SHOWN = 4
"""The most holders that a finding names one by one."""


class Owners(NamedTuple):
    """The owners of a page at a finding."""

    holders: tuple[str, ...]
    """The holders in order, at most `OWNERS_SHOWN`."""
    total: int
    """How many holders there are."""
    key: str | None
    """The first key that finds the page."""


class Finding(memory.Finding, forbid_unknown_fields=True, omit_defaults=True):
    """A finding with the details that its text needs."""

    about: str = ""
    """`OWNERS`, `CONTENT`, or neither."""
    cause: int | None = None
    """The event of an earlier finding on the same page or holder, of which this may be a consequence."""
    operation: OpId | None = None
    """The operation at hand."""
    expected: str | int | None = None
    """The label, decision or batch that is expected, or the figure that is right; of a race within one operation its
    first label, of an announced block the label that its name promises, or that it was announced with before."""
    found: str | int | None = None
    """The label that is there, the decision, the batch or the engine's figure; of a leak the number of pages."""
    offsets: tuple[int, int] | None = None
    """The slots of one label that are expected and found."""
    owners: Owners | None = None
    """The owners of the page."""
    key: str | None = None
    """The key at hand; of an announced block its tier, or the parent that it lacks."""
    group: str = ""
    """The group of hosts at hand."""
    hosts: tuple[str | None, str | None] | None = None
    """A host of it, and the one that made first what it did not decide."""
    table: str | None = None
    """The table at hand; `slot` is a position of it."""
    pages: tuple[Page, ...] = ()
    """Further pages: those of a leak, those that a list misses, or the other page with the same key."""
    figure: str = ""
    """Which of the engine's figures: free, cached or held."""
    message: str = ""
    """The engine's own words."""
    earlier: str | None = None
    """The place of the earlier of two uses that race."""
    stream: str = ""
    """The stream of the earlier of two uses that race."""
    did: str = ""
    """The kind of the earlier use: reads or writes."""
    other: Writer | None = None
    """The operation of the earlier of two uses that race; else the last one that wrote in the page, where that is known
    and other content is found there."""
    keyed: bool = False
    """The page is named by a key."""
    more: int = 0
    """The number of further findings of the same event and code that are not listed, past the first `FINDINGS`."""

    @property
    def identity(self) -> tuple[object, ...]:
        """All parts of the finding that stay the same when unrelated events are left out."""
        return tuple(getattr(self, name) for name in _IDENTITY)


_IDENTITY = [name for name in Finding.__struct_fields__ if name not in ("event", "cause", "other", "more")]
