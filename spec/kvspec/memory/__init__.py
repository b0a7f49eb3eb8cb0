"""The memory model: the law below every engine's policy.

Pools hold pages. A page is held, published, written and read. Nothing else exists here: no request, no session, no
tree. Read in this order: `events` (what can happen), `kvspec.memory_rules` (what is forbidden) and `finding` (what a
law says of an event).
"""

from kvspec.memory.events import Pool
from kvspec.memory.finding import Finding, Malformed, Watching

__all__ = ["Finding", "Malformed", "Pool", "Watching"]
