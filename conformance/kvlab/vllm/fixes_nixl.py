"""vLLM's NIXL connector without defects that it is known to have."""

from contextlib import suppress

from kvattach.patches import Patches
from kvlab.injection import Defect, NotInjected, inject_fault


def fix_pairing(patches: Patches) -> None:
    """Where decode has longer blocks, the parts of its last one that no token has are left out behind a hit, too."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker as Worker
    except ImportError:
        return
    clipped = "if len(mapped) > len(remote_group):\n            mapped = mapped[: len(remote_group)]"
    left_out = "mapped = mapped[: max(0, len(mapped) - -len(remote_group) % block_size_ratio)]"
    places = ((Worker, "_map_block_ids_for_block_size_ratio", clipped, left_out),)
    with suppress(NotInjected):
        inject_fault(Defect("parts left out", "", places), patches)
