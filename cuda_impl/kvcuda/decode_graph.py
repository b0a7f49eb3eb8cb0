"""A decode step as one CUDA graph: allocate, write the rows, forward pass; captured once per batch size."""

import torch

from kvcuda.backend import DEVICE
from kvcuda.digest import FIELDS as MODEL_FIELDS
from kvcuda.digest_step import DigestStep
from kvcuda.forward import ForwardBatch
from kvcuda.memory_events import Uses
from kvcuda.staging import Slot, padded
from kvcuda.words import FIELDS


class DecodeGraph:
    """Decode steps of `batch` requests each, with the manager's kernels and the digest model's.

    The graph reads its words from fixed buffers, which each step fills before it replays. All of it runs on the forward
    stream, the manager's kernels too, so the scheduler's stream waits for it before it uses the ring again. The CPU has
    no graphs: the same kernels run one by one.
    """

    def __init__(self, step: DigestStep, batch: int) -> None:
        """Capture the step. No request may run yet: the capture computes position 0 of row 0 once."""
        self._step = step
        self._batch = batch
        self._manager_words: torch.Tensor = torch.zeros(padded((1 + batch) * FIELDS), dtype=torch.int32, device=DEVICE)
        self._model_words: torch.Tensor = torch.zeros(padded(batch * MODEL_FIELDS), dtype=torch.int32, device=DEVICE)
        self._out_cache_loc = step.manager.memory.out_cache_loc
        self._graph: torch.cuda.CUDAGraph | None = None
        if DEVICE == "cuda":
            self._enqueue()  # compiles the kernels, which a capture cannot
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._enqueue()

    def _enqueue(self) -> None:
        self._step.manager.memory.enqueue_decode(self._manager_words, self._batch)
        if self._step.model.layers.window:
            self._step.model.enqueue_look_up(self._model_words, self._batch)
        self._step.model.enqueue(self._model_words, self._batch, decode=True)

    def decode_and_launch(self, launch: int, reqs: list[str]) -> None:
        """`decode(reqs)` and `launch(launch, reqs)` in one replay.

        Raises:
            Refusal: as `decode`.
            ValueError: the batch size is not the captured one, or `out_cache_loc` was allocated anew since.
        """
        manager = self._step.manager
        if len(reqs) != self._batch or manager.memory.out_cache_loc is not self._out_cache_loc:
            raise ValueError(f"the graph was captured for {self._batch} requests and the first out_cache_loc")
        slot = manager.stage_decode(reqs)
        manager.launch(launch, reqs, lambda batch: self._replay(slot, batch))
        done = manager.launches[-1].done
        assert done is not None, "a launch with a forward pass has an event"
        manager.streams.scheduler.wait(done)

    def _replay(self, slot: Slot, batch: ForwardBatch) -> None:
        """Fill the fixed words and enqueue the graph on the forward stream."""
        stream = self._step.manager.streams.forward
        begin = self._step.note_decode(batch)
        model_slot = self._step.model.stage_decode(batch, begin)

        def work() -> None:
            slot.upload_to(self._manager_words, (1 + self._batch) * FIELDS)
            model_slot.upload_to(self._model_words, self._batch * MODEL_FIELDS)
            if self._graph is None:
                self._enqueue()
            else:
                self._graph.replay()

        stream.run(work, self._uses(slot, model_slot, batch))
        stream.record(slot.passed)
        stream.record(model_slot.passed)

    def _uses(self, slot: Slot, model_slot: Slot, batch: ForwardBatch) -> Uses | None:
        """The memory that the kernels of a step use; `None` without a listener."""
        model, listener = self._step.model, self._step.manager.streams.listener
        uses, noted = model.uses(model_slot, batch), model.look_up_uses(model_slot, batch)
        if listener is None or uses is None or noted is None:
            return None
        return listener.decode(slot, self._out_cache_loc).joined(uses, noted)
