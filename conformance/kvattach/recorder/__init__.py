"""Records the KV-cache operations of a running SGLang process as a trace for `kvspec check`.

    from kvattach.recorder import record

    recorder = record(scheduler.tree_cache, "/var/log/kv/trace.jsonl.zst")

Call it in the scheduler's process, once the cache exists. A recording begins when the engine holds nothing: right after
the start, and after each flush of the cache. `conformance/README.md` lists the recorded operations and the gaps.

Not here: memory events, which the hooks of `kvattach` emit.
"""

from kvattach.recorder.known import NotRecordable
from kvattach.recorder.recorder import Recorder, record

__all__ = ["NotRecordable", "Recorder", "record"]
