"""The memory model: the law below every engine's policy.

Pools hold pages. A page is held, published, written and read. Nothing else exists here: no request, no session, no
tree. Read in this order: `events` (what can happen), `kvspec.rules` (what is forbidden), `order` (what happens
before what), `pages` (what is remembered), `holding` (who refers to pages, and by which names they are found) and `law`
(what operations do to slots).

`kvspec.memory.law.Law` says it slot by slot, as plainly as can be. Who checks millions of events takes `kvlaw.Law`,
which comes to the same findings with intervals and vector clocks, and says more of each.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvspec.memory.events import Event, Page, Pool

__all__ = ["Finding", "Malformed", "Pool", "Watching"]


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
