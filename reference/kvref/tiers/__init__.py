"""A reference host tier, which emits the events of the memory model.

A minimal engine with a host cache: a prefix tree over pages that may be on the device, on the host, or both (`state`);
transfers between the two and to a storage, each with its pins and its fences (`transfers`); requests that are prefilled
and decoded with overlap (`engine`); and a driver in which streams run ahead of each other, transfers fail and requests
leave at any moment (`driver`). `kvref.manager` has no second tier. `kvref.scheduler` can drive this engine too
(`manager`, `scheduled`).
"""

from kvref.tiers.engine import TieredEngine
from kvref.tiers.manager import TieredManager
from kvref.tiers.state import Sizes

__all__ = ["Sizes", "TieredEngine", "TieredManager"]
