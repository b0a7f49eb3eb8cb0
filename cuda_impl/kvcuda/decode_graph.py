"""A decode step as one CUDA graph: allocate, write the rows, forward pass; captured once per batch size."""

from typing import Any

import torch

from kvcuda import digest_kernels
from kvcuda.backend import DEVICE
from kvcuda.digest import FIELDS as MODEL_FIELDS
from kvcuda.digest_step import DigestStep
from kvcuda.forward import ForwardBatch
from kvcuda.staging import Slot, padded
from kvcuda.telling import Uses
from kvcuda.words import FIELDS


class DecodeGraph:
    """Decode steps of `batch` requests each, of a manager that the digest model runs on.

    The graph reads its words from fixed buffers, which each step fills before it replays. It runs on the forward lane,
    the manager's part too, so the scheduler's lane waits for it before it touches the ring again. On the CPU
    there are no graphs: the same kernels run one by one.
    """

    def __init__(self, step: DigestStep, batch: int) -> None:
        """Capture the step. To be made before any request runs: capturing computes position 0 of row 0 once."""
        self._step = step
        self._batch = batch
        self._manager_words: Any = torch.zeros(padded((1 + batch) * FIELDS), dtype=torch.int32, device=DEVICE)
        self._model_words: Any = torch.zeros(padded(batch * MODEL_FIELDS), dtype=torch.int32, device=DEVICE)
        self._out_cache_loc = step.manager.memory.out_cache_loc
        self._graph: Any = None
        if DEVICE == "cuda":
            self._enqueue()  # compiles the kernels, which cannot be done while capturing
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._enqueue()

    def _enqueue(self) -> None:
        self._step.manager.memory.enqueue_decode(self._manager_words, self._batch)
        if self._step.model.layers.window:
            self._step.model.enqueue_look_up(self._model_words, self._batch)
        self._step.model.enqueue(digest_kernels.decode_kernel, self._model_words, self._batch)

    def decode_and_launch(self, launch: int, reqs: list[str]) -> None:
        """`decode(reqs)` and `launch(launch, reqs)` in one replay.

        Raises:
            Refusal: as `decode`.
            ValueError: not as many requests as were captured, or `out_cache_loc` was allocated anew since.
        """
        manager = self._step.manager
        if len(reqs) != self._batch or manager.memory.out_cache_loc is not self._out_cache_loc:
            raise ValueError(f"the graph was captured for {self._batch} requests and the first out_cache_loc")
        slot = manager.stage_decode(reqs)
        manager.launch(launch, reqs, lambda batch: self._replay(slot, batch))
        done = manager.launches[-1].done
        assert done is not None, "a launch with a forward pass has an event"
        manager.lanes.scheduler.wait(done)

    def _replay(self, slot: Slot, batch: ForwardBatch) -> None:
        """Fill the fixed words and enqueue the graph on the forward lane."""
        lane = self._step.manager.lanes.forward
        begin = self._step.note_decode(batch)
        model_slot = self._step.model.stage_decode(batch, begin)

        def work() -> None:
            slot.upload_to(self._manager_words, (1 + self._batch) * FIELDS)
            model_slot.upload_to(self._model_words, self._batch * MODEL_FIELDS)
            if self._graph is None:
                self._enqueue()
            else:
                self._graph.replay()

        lane.run(work, self._uses(slot, model_slot, batch))
        lane.record(slot.passed)
        lane.record(model_slot.passed)

    def _uses(self, slot: Slot, model_slot: Slot, batch: ForwardBatch) -> Uses | None:
        """What the kernels of a step use, if somebody listens."""
        model, listener = self._step.model, self._step.manager.lanes.listener
        uses, noted = model.uses(model_slot, batch), model.look_up_uses(model_slot, batch)
        if listener is None or uses is None or noted is None:
            return None
        return listener.decode(slot, self._out_cache_loc).joined(uses, noted)
