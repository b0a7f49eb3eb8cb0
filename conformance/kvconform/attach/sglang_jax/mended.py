"""sglang-jax without a defect that it had before its pull request 994, so that whatever is found is another one."""

from kvconform.attach.patches import Patches
from kvconform.attach.planting import Defect, plant
from kvconform.engines.sglang_jax.engine import Engine

_COUNTED = """= adder.new_chunked_reqs[dp_rank]
            self.chunked_reqs[dp_rank].is_chunked += 1"""

_ALWAYS_COUNTED = """= adder.new_chunked_reqs[dp_rank]
        if self.chunked_reqs[dp_rank] is not None:
            self.chunked_reqs[dp_rank].is_chunked += 1"""


def count_every_chunk(engine: Engine, patches: Patches) -> None:
    """A prompt's later chunks are not taken for its last one.

    Raises:
        NotPlanted: the checkout has other lines there.
    """
    places = ((engine.scheduler.Scheduler, "get_new_batch_prefill", _COUNTED, _ALWAYS_COUNTED),)
    plant(Defect("every chunk counted", "later chunks count as chunks", places), patches)
