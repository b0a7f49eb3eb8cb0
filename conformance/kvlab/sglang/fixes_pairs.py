"""Fixes of known defects of SGLang's prefill and decode servers."""

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import mend


def fix_filled(release: Release, patches: Patches) -> None:
    """Decode gives pages to prefill only when no launch writes them any more."""
    asked = "decode_req.metadata_buffer_index = (\n"
    # The stream of a CPU, on which an operation is done when its call returns, cannot be waited for.
    stream = "self.scheduler.forward_stream"
    waits = (
        f"if self.scheduler.enable_overlap and hasattr({stream}, 'synchronize'):\n        {stream}.synchronize()\n    "
    )
    queue = release.pair.decode.DecodePreallocQueue
    mend(patches, "pages that are free", (queue, "_send_kv_metadata", asked, waits + asked))


def fix_sources(release: Release, patches: Patches) -> None:
    """Prefill keeps the pages that it sends until its worker is done, even if the request has failed."""
    mixin = release.pair.prefill.SchedulerDisaggregationPrefillMixin
    failed = "elif poll == KVPoll.Failed:\n            self.handle_inflight_transfer_failure(req)"
    busy = "req.disagg_kv_sender.kv_mgr._staging_outstanding.get(req.bootstrap_room, 0) > 0"
    waits = f"elif poll == KVPoll.Failed and {busy}:\n            undone_reqs.append(req)\n        {failed}"
    mend(patches, "sources kept", (mixin, "process_disagg_prefill_inflight_queue", failed, waits))


def fix_registered(release: Release, patches: Patches) -> None:
    """A transfer to a server whose registration was lost fails, and its thread goes on."""
    manager = release.pair.mooncake.MooncakeKVManager
    looked = "target_rank_registration_info: KVArgsRegisterInfo = (\n"
    fails = """if req.mooncake_session_id not in self.decode_kv_args_table:
                        self.conclude_failure(bootstrap_room=kv_chunk.room, failure_reason="not registered")
                        break
                    """
    mend(patches, "registration looked up", (manager, "transfer_worker", looked, fails + looked))


FIXES = (fix_filled, fix_sources, fix_registered)
