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
from kvspec.rules import rule_of

__all__ = ["Finding", "Pool"]


class Finding(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A rule of the memory model is broken."""

    code: str
    """The rule and the case, as `kvspec.rules` lists them: `MEM-NAME/unwritten`."""
    event: int
    """The number of the event, from 1."""
    at: str | None = None
    """The place in the engine that caused the event."""
    pool: str | None = None
    page: Page | None = None
    holder: str | None = None
    slot: int | None = None
    """The first slot of the page, or position of a table, that shows it."""

    @property
    def rule(self) -> str:
        """The id of the rule."""
        return rule_of(self.code)
