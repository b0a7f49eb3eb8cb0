"""Takes the known defects of SGLang 0.5.22 and 0.5.23 away that are in none of its other lines."""

from kvconform.attach.patches import Patches
from kvconform.attach.planting import Defect, plant
from kvconform.attach.sglang.release import Release

_PREPARED = "set_mamba_track_indices_from_reqs(self)\n\n"
_TURNED = """set_mamba_track_indices_from_reqs(self)
            for req, length in zip(self.reqs, self.seq_lens_cpu.tolist()):
                if length % mamba_track_interval == 0:
                    other = self.req_to_token_pool.get_mamba_ping_pong_other_idx(req.kv.mamba_next_track_idx)
                    req.kv.mamba_next_track_idx = other

"""


def mend(release: Release, patches: Patches) -> None:
    """Let requests take turns with the slots in which they keep states when a launch is prepared, not afterwards.

    Raises:
        NotPlanted: the release has other lines.
    """
    results = release.scheduler.SchedulerBatchResultProcessor
    asked = "completed_mamba_boundary if lazy else known_mamba_boundary"
    turned = "completed_mamba_boundary if lazy or known_mamba_boundary is None else False"
    places = (
        (release.batches.ScheduleBatch, "prepare_for_decode", _PREPARED, _TURNED),
        (results, "_handle_finish_state_updated_req", asked, turned),
    )
    plant(Defect("state overwritten", "", places), patches)
