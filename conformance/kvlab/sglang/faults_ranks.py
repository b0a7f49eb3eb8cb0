"""Defects of ranks: SGLang's host cache makes the same decisions on all ranks; here each decides for itself."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_ranks(release: Release) -> list[Defect]:
    """Four of them, the last with a storage."""
    cache, reduced = release.cache_class, "self._all_reduce(ready_counts, torch.distributed.ReduceOp.MIN)"
    counts = "count_values = list(map(int, ready_counts.tolist()))"
    return [
        Defect(
            "each rank's own acks",
            "a rank takes the transfers as complete that are so on itself",
            ((cache, "_sync_hicache_ready_counts", reduced, "pass"),),
        ),
        Defect(
            "each rank's own writes",
            "a rank unlocks the nodes whose copies are complete on itself",
            ((cache, "_sync_hicache_ready_counts", counts, f"{counts}; count_values[0] = write_acks"),),
        ),
        Defect(
            "no collective without acks",
            "a rank that has no transfer complete goes on without the others",
            ((cache, "_sync_hicache_ready_counts", reduced, f"{reduced} if write_acks + load_acks else None"),),
        ),
        Defect(
            "each rank's own prefetches",
            "a rank takes a prefetch as complete that is so on itself",
            ((cache, "_sync_hicache_ready_counts", "tuple(count_values[2:-2]),", "storage_queue_sizes,"),),
        ),
    ]
