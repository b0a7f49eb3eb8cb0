"""The memory model: the law below every engine's policy.

Pools hold pages. A page is held, published, written and read. Nothing else exists here: no request, no session, no
tree. Read in this order: `events` (what can happen), `kvspec.rules` (what is forbidden), `order` (what happens
before what), `pages` (what is remembered), `holding` (who refers to pages, and by which names they are found) and
`checker` (what operations do to slots).

`kvspec.memory.checker.Checker` says it slot by slot, as plainly as can be. The fast checker, `kvcheck.Checker`, comes
to the same findings with intervals and vector clocks, says more of each, and refuses events that no engine can mean.
"""

import msgspec

from kvspec.memory.events import Page, Pool

__all__ = ["Finding", "Pool"]


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
