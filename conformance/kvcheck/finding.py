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
    """The label, decision, batch or figure that is expected. A race within one operation has its first label here. An
    announced block has the label that its name promises, or the label of its earlier announcement."""
    found: str | int | None = None
    """The label, decision, batch or figure that was found instead. A leak has its number of pages here."""
    offsets: tuple[int, int] | None = None
    """The slots of one label that are expected and found."""
    owners: Owners | None = None
    """The owners of the page."""
    key: str | None = None
    """The key at hand. An announced block has its tier here, or its missing parent."""
    group: str = ""
    """The group of hosts at hand."""
    hosts: tuple[str | None, str | None] | None = None
    """The host whose decision differs or is missing, and the host that decided first."""
    table: str | None = None
    """The table at hand; `slot` is a position of it."""
    pages: tuple[Page, ...] = ()
    """Further pages: leaked pages, pages that a list omits, or the other page with the same key."""
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
    """Of two uses that race, the earlier one's operation. Where a page has wrong content, the last operation that wrote
    there, if it is known."""
    keyed: bool = False
    """The page is named by a key."""
    more: int = 0
    """The number of further findings of the same event and code that are not listed, past the first `FINDINGS`."""

    @property
    def identity(self) -> tuple[object, ...]:
        """All parts of the finding that stay the same when unrelated events are left out."""
        return tuple(getattr(self, name) for name in _IDENTITY)


_IDENTITY = [name for name in Finding.__struct_fields__ if name not in ("event", "cause", "other", "more")]
