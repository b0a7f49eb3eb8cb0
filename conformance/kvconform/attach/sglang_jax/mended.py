"""sglang-jax without defects that it is known to have, so that whatever is found is another one."""

from kvconform.attach.patches import Patches
from kvconform.attach.planting import Defect, plant
from kvconform.engines.sglang_jax.engine import Engine

_COUNTED = """= adder.new_chunked_reqs[dp_rank]
            self.chunked_reqs[dp_rank].is_chunked += 1"""

_ALWAYS_COUNTED = """= adder.new_chunked_reqs[dp_rank]
        if self.chunked_reqs[dp_rank] is not None:
            self.chunked_reqs[dp_rank].is_chunked += 1"""

_FORGOTTEN = """self.process_batch_result(tmp_batch, tmp_result)
        self.last_batch = None
        self.cur_batch = None
"""

_KEPT = """self.process_batch_result(tmp_batch, tmp_result)
    if self.last_batch and self.last_batch.forward_mode.is_extend():
        self.last_batch.filter_batch()
        if self.running_batch.is_empty():
            self.running_batch = self.last_batch
        elif not self.last_batch.is_empty():
            self.running_batch.merge_batch(self.last_batch)
    self.last_batch = None
    self.cur_batch = None
"""

_GOES_ON = "self._engine_paused = False\n"

_HAS_ROOM = """self._engine_paused = False
    for info in self.running_batch.reqs_info:
        info.batch_is_full = False
"""


def count_every_chunk(engine: Engine, patches: Patches) -> None:
    """A prompt's later chunks are not taken for its last one (its pull request 994).

    Raises:
        NotPlanted: the checkout has other lines there.
    """
    places = ((engine.scheduler.Scheduler, "get_new_batch_prefill", _COUNTED, _ALWAYS_COUNTED),)
    plant(Defect("every chunk counted", "later chunks count as chunks", places), patches)


def keep_what_was_prefilled(engine: Engine, patches: Patches) -> None:
    """A pause adds those of the last prefill to the running ones; prompts are not in chunks.

    Raises:
        NotPlanted: the checkout has other lines there.
    """
    places = ((engine.scheduler.Scheduler, "pause_generation", _FORGOTTEN, _KEPT),)
    plant(Defect("prefilled kept", "a pause forgets nobody", places), patches)


def look_for_room(engine: Engine, patches: Patches) -> None:
    """After a pause the batch is not taken for full.

    Raises:
        NotPlanted: the checkout has other lines there.
    """
    places = ((engine.scheduler.Scheduler, "continue_generation", _GOES_ON, _HAS_ROOM),)
    plant(Defect("room looked for", "a pause leaves room", places), patches)
