"""Defects for SGLang 0.5.23 in further memory that launches read: index tensors, pinned memory, results."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_buffers(release: Release) -> list[Defect]:
    """Five of them."""
    relay = release.relay.FutureMap
    scheduler, batch = release.scheduler.Scheduler, release.batches.ScheduleBatch
    results = release.scheduler.SchedulerBatchResultProcessor
    kept = "self.batch_record_buf[self.batch_record_ct] = [batch, attr_snapshot]"
    copied = (relay, "resolve_seq_lens_cpu")
    return [
        Defect(
            "lengths changed in place",
            "the lengths of the next step are written into the tensor that the launch in flight reads",
            ((batch, "prepare_for_decode", "self.seq_lens = self.seq_lens + 1", "self.seq_lens.add_(1)"),),
        ),
        Defect(
            "batch not kept",
            "the index tensors of a launch in flight are given back",
            ((scheduler, "record_batch_in_overlap", kept, kept.replace("[batch, attr_snapshot]", "[]")),),
        ),
        Defect(
            "pinned lengths read too early",
            "the host reads lengths from pinned memory that are still being copied there",
            ((*copied, "self.fwd_prepare_d2h_stream.synchronize()", "pass"),),
        ),
        Defect(
            "pinned lengths copied too early",
            "lengths are copied to pinned memory before the launch in flight has them",
            ((*copied, "self.fwd_prepare_d2h_stream.wait_event(self.publish_ready)", "pass"),),
        ),
        Defect(
            "result read too early",
            "the tokens of a step are read while they are still being copied to the host",
            ((results, "process_batch_result_decode", "result.copy_done.synchronize()", "pass"),),
        ),
    ]
