"""The device manager: one method for each operation of `kvspec.events`, none of which reads the device.

Each method first checks the whole operation and refuses it if it is not allowed; only then it changes the state.
Lengths, rows and numbers of pages are the host's. Only the device knows the pages, so answers name none.

    state       the parts, the requests, and checks that several operations share
    waiting     open_session, submit, match_prefix, take_state, free_state
    prefill     extend
    running     decode, launch, complete, verify
    release     retract, finish, abort, close_session, preempt; cache_unfinished, evict_pages, swa_evict
    inspection  report
"""

from kvcuda.device_manager.inspection import Inspection
from kvcuda.device_manager.prefill import Prefilling
from kvcuda.device_manager.release import Release
from kvcuda.device_manager.running import Running
from kvcuda.device_manager.waiting import Waiting


class DeviceManager(Waiting, Prefilling, Running, Release, Inspection):
    """The memory of one engine: rows, pages of one or two pools, state slots, prefix store and session slots."""
