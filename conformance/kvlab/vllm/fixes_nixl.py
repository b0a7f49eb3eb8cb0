"""Fixes of known defects of vLLM's NIXL connector."""

from kvattach.patches import Patches
from kvlab.injection import mend


def fix_pairing(patches: Patches) -> None:
    """If decode has longer blocks, the parts of its last block without tokens are left out after a hit, too."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker as Worker
    except ImportError:
        return
    clipped = "if len(mapped) > len(remote_group):\n            mapped = mapped[: len(remote_group)]"
    left_out = "mapped = mapped[: max(0, len(mapped) - -len(remote_group) % block_size_ratio)]"
    mend(patches, "parts left out", (Worker, "_map_block_ids_for_block_size_ratio", clipped, left_out))
