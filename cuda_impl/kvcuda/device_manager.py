"""The device manager: one method for each operation of `kvspec.events`, none of which reads the device.

Each method first refuses what must be refused, looking at the operation as a whole, and changes the state only then.
Lengths, rows and numbers of pages are the host's; the pages themselves only the device knows, so answers name none.
The operations stand where the specification's model has them, in a module for each part of a request's life.
"""

from kvcuda.leaving import Leaving
from kvcuda.looking import Looking
from kvcuda.prefill import Prefilling
from kvcuda.running import Running
from kvcuda.waiting import Waiting


class DeviceManager(Waiting, Prefilling, Running, Leaving, Looking):
    """The memory of one engine: rows, pages of one or two pools, state slots, the prefix store, the session slots."""
