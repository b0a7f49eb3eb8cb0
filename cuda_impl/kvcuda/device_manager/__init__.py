"""The device manager: one method for each operation of `kvspec.events`, none of which reads the device.

Each method first refuses what must be refused, looking at the operation as a whole, and changes the state only then.
Lengths, rows and numbers of pages are the host's; the pages themselves only the device knows, so answers name none.

    state      the parts, who is there, and what several operations ask
    waiting    open_session, submit, match_prefix, take_state, free_state
    prefill    extend
    running    decode, launch, complete, verify
    leaving    retract, finish, abort, close_session, preempt; cache_unfinished, evict_pages, swa_evict
    looking    report
"""

from kvcuda.device_manager.leaving import Leaving
from kvcuda.device_manager.looking import Looking
from kvcuda.device_manager.prefill import Prefilling
from kvcuda.device_manager.running import Running
from kvcuda.device_manager.waiting import Waiting


class DeviceManager(Waiting, Prefilling, Running, Leaving, Looking):
    """The memory of one engine: rows, pages of one or two pools, state slots, the prefix store, the session slots."""
