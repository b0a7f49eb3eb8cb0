"""Records what a running SGLang process does with its KV cache, as a trace for `kvspec check`.

    from kvattach.recorder import record

    recorder = record(scheduler.tree_cache, "/var/log/kv/trace.jsonl.zst")

Call it in the scheduler's process, once the cache is made. A recording begins as soon as the engine holds nothing,
which is at once after the start and after each flush of the cache. `conformance/README.md` says what is told and what
is not.

Not here: memory events, which `kvattach` tells.
"""

from kvattach.recorder.recorder import NotRecordable, Recorder, record

__all__ = ["NotRecordable", "Recorder", "record"]
