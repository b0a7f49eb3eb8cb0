"""The memory model: the rules of memory below every engine's policy.

Pools hold pages. A page is held, published, written and read. Nothing else exists here: no request, no session, no
tree. Read in this order: `events` (the events), `kvspec.rules` (the rules), `order` (the order of operations),
`agreement` (the decisions of several hosts), `pages` (the state), `announced` (the blocks that routers know), `holding`
(references and names of pages) and `checker` (reads and writes of slots).

`kvspec.memory.checker.Checker` checks slot by slot, as plainly as can be. The fast checker, `kvcheck.Checker`, makes
the same findings with intervals and vector clocks, adds details to each, and refuses malformed events.
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
