"""Stands in for the device behind MAX's cache: tables that are staged for it, and a pipeline that runs no model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy

from kvattach.max.hooks import Attached, Launch
from kvattach.max.modules import Engine
from kvlab.tokens import Tokens


class _Array:
    """A buffer of the host."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._array = numpy.zeros(shape, numpy.uint32)

    def to_numpy(self) -> Any:
        return self._array


class Stager:
    """Stands in for `GraphInputStager`: what a forward pass stages, on one device."""

    def __init__(self, described: Sequence[Any]) -> None:
        """Nothing is kept of what may be staged."""

    @contextmanager
    def stage(self) -> Iterator["Stager"]:
        """The tables of one pass."""
        yield self

    def get(self, name: str, shape: tuple[int, ...]) -> tuple[_Array, tuple[_Array, ...]]:
        """The buffer to be filled, and that on the device."""
        made = _Array(shape)
        return made, (made,)


class Pipeline:
    """Stands in for MAX's pipelines: the answer of a pass is what `tokens` has for it.

    The order is that of `OverlapTextGenerationPipeline._execute`: a pass is launched, the one before is waited for, its
    tokens replace their placeholders, and the cache takes a step. Without `overlap` a pass is waited for at once.
    """

    def __init__(self, engine: Engine, attached: Attached, tokens: Tokens, cache: Any, *, overlap: bool) -> None:
        """Nothing is launched."""
        self._future: int = engine.context.FUTURE_TOKEN
        self._attached, self._tokens, self._cache, self._overlap = attached, tokens, cache, overlap
        self._launched: tuple[Launch, list[Any], list[int]] | None = None
        self._sampled: dict[Any, int] = {}
        """Request -> its last token, as the device has it."""

    def has_pending_outputs(self) -> bool:
        """Whether a pass was launched and not waited for."""
        return self._launched is not None

    def release(self, request: Any) -> None:
        """A request has left: nothing of it is kept here but the cache."""

    def execute(self, inputs: Any) -> dict[Any, Any]:
        """Launch a pass, and answer the tokens of the one before, or its own."""
        batch, outputs, launch = inputs.flat_batch, {}, None
        if inputs:
            self._cache.runtime_inputs(inputs.batches)
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
        """Wait for the last pass, and give its requests their tokens."""
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
