"""The memory model: the law below every engine's policy.

Pools hold pages. A page is held, published, written and read. Nothing else exists here: no request, no session, no
tree. Read in this order: `events` (what can happen), `kvspec.rules` (what is forbidden), `order` (what happens
before what), `pages` (what is remembered), `holding` (who refers to pages, and by which names they are found) and `law`
(what operations do to slots).

`kvspec.memory.law.Law` says it slot by slot, as plainly as can be. Who checks millions of events takes `kvlaw.Law`,
which comes to the same findings with intervals and vector clocks, and says more of each.
"""

from kvspec.memory.events import Pool
from kvspec.memory.finding import Finding, Malformed, Watching

__all__ = ["Finding", "Malformed", "Pool", "Watching"]
