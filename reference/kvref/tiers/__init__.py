"""A host tier that an implementer can follow, told in the events of the memory model.

A small engine with what a host cache needs and nothing else: a prefix tree over pages that may lie on the device, on
the host, or both (`state`); transfers between the two and to a storage, each with its pins and its fences
(`transfers`); requests that are prefilled and decoded with overlap (`engine`); and a driver that lets streams run ahead
of each other, transfers fail and requests leave at any moment (`driver`). It stands beside `kvref.manager`, which knows
no second tier; `kvref.scheduler` can drive it too (`manager`, `scheduled`).
"""

from kvref.tiers.engine import TieredEngine
from kvref.tiers.manager import TieredManager
from kvref.tiers.state import Sizes

__all__ = ["Sizes", "TieredEngine", "TieredManager"]
