"""Stands in for the device behind MAX's cache: staged tables, and a pipeline that runs no model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy

from kvattach.max.hooks import Attached, Launch
from kvattach.max.modules import Engine
from kvlab.max.adapters import Adapters
from kvlab.tokens import Tokens


class Buffer:
    """Stands in for a buffer of the driver: integers of a shape, of which the device and the host share one."""

    dtype = "int64"

    def __init__(self, shape: Sequence[int], device: object = None, **described: object) -> None:
        """Make zeros. The type and the kind of memory are ignored."""
        self._array, self.device = numpy.zeros(shape, numpy.int64), device

    @classmethod
    def from_numpy(cls, array: Any, device: object = None) -> "Buffer":
        """A buffer of these numbers."""
        made = cls((0,), device)
        made._array = numpy.asarray(array, numpy.int64)
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def num_elements(self) -> int:
        """The number of numbers."""
        return int(self._array.size)

    def to_numpy(self) -> Any:
        """The numbers, shared."""
        return self._array

    def view(self, dtype: object, shape: Sequence[int]) -> "Buffer":
        """The same numbers in another shape."""
        return Buffer.from_numpy(self._array.reshape(shape), self.device)

    def to(self, device: object) -> "Buffer":
        """The same buffer: there is one memory."""
        return self

    def __getitem__(self, index: slice) -> "Buffer":
        return Buffer.from_numpy(self._array[index], self.device)

    def inplace_copy_from(self, source: "Buffer") -> None:
        """Take the numbers of a buffer of the same shape."""
        self._array[...] = source._array


class Stager:
    """Stands in for `GraphInputStager`: the staged inputs of a forward pass, on one device."""

    def __init__(self, described: Sequence[Any]) -> None:
        """Ignore the descriptions of the inputs."""

    @contextmanager
    def stage(self) -> Iterator["Stager"]:
        """The tables of one pass."""
        yield self

    def get(self, name: str, shape: tuple[int, ...]) -> tuple[Buffer, tuple[Buffer, ...]]:
        """The buffer to fill, and the buffer on the device."""
        made = Buffer(shape)
        return made, (made,)


class Pipeline:
    """Stands in for MAX's pipelines: `tokens` gives the result of a pass.

    The order is that of `OverlapTextGenerationPipeline._execute`: it launches a pass, waits for the previous one,
    replaces the placeholders by that one's tokens, and steps the cache. Without `overlap` it waits for a pass at once.
    """

    def __init__(
        self,
        engine: Engine,
        attached: Attached,
        tokens: Tokens,
        cache: Any,
        *,
        overlap: bool,
        adapters: Adapters | None,
    ) -> None:
        """Make a pipeline without launches. MAX refuses adapters with `overlap`."""
        self.lora = None if adapters is None else adapters.manager
        self._adapters = adapters
        self._future: int = engine.context.FUTURE_TOKEN
        self._attached, self._tokens, self._cache, self._overlap = attached, tokens, cache, overlap
        self._launched: tuple[Launch, list[Any], list[int]] | None = None
        self._sampled: dict[Any, int] = {}
        """Request -> its last token on the device."""

    def has_pending_outputs(self) -> bool:
        """Whether a launched pass has not been waited for."""
        return self._launched is not None

    def release(self, request: Any) -> None:
        """Do nothing: the pipeline keeps no state of a finished request."""

    def execute(self, inputs: Any) -> dict[Any, Any]:
        """Launch a pass. Returns the tokens of the previous pass with `overlap`, otherwise of this one."""
        batch, outputs, launch = inputs.flat_batch, {}, None
        if inputs:
            if self._adapters is None:
                self._cache.runtime_inputs(inputs.batches)
            else:
                batch = self._adapters.manager.sort_lora_batch(batch)
                self._attached.routed = self._adapters.routed(batch)
                self._cache.runtime_inputs([batch])
            launch = self._attached.launch, batch, [self._sample(context) for context in batch]
        if self._overlap:
            outputs = self._answer()
            for context in batch:
                context.update_with_future_token()
        elif launch is not None:
            self._launched = launch
            outputs = self._answer()
        for context in batch:
            self._cache.step(context)
        if self._overlap:
            self._launched = launch
        return outputs

    def _sample(self, context: Any) -> int:
        """The token that a pass samples for a request."""
        name, window = str(context.request_id), context.tokens
        start, taken = window.processed_length, window.active.tolist()
        if taken and taken[-1] == self._future:
            taken[-1] = self._sampled[context.request_id]
        self._tokens.consume(name, start, taken, "execute")
        if window.actively_chunked:
            return 0
        token = self._sampled[context.request_id] = self._tokens.sample(name, start + len(taken))
        return token

    def _answer(self) -> dict[Any, Any]:
        """Wait for the last pass, and update its requests with their tokens."""
        outputs: dict[Any, Any] = {}
        if self._launched is None:
            return outputs
        (launch, batch, tokens), self._launched = self._launched, None
        self._attached.finished(launch)
        for context, token in zip(batch, tokens, strict=True):
            if not self._overlap:
                context.update(token)
            elif context.tokens.generated_length:
                context.realize_future_token(token)
            output = context.to_generation_output()
            if output.tokens:
                outputs[context.request_id] = output
        return outputs
