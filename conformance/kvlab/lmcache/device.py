"""Stands in for the device behind LMCache's connectors.

It writes bytes that follow from the tokens, and compares the bytes that it reads. So labels and bytes check the same
content independently.
"""

import hashlib
import importlib
from collections.abc import Generator, Iterator
from typing import Any

import torch

from kvattach.lmcache.hooks import Attached
from kvspec.memory.events import Failed

LAYERS, HEADS, HEAD = 2, 1, 8


class Connector:
    """A connector for all layers at once."""

    def __init__(self, attached: Attached) -> None:
        """The tokens are those of the current call."""
        self._attached = attached

    def batched_from_gpu(self, objects: list[Any], starts: list[int], stops: list[int], **_: Any) -> Any:
        """Write chunks into memory objects."""
        self.write(objects, starts, stops)

    def batched_to_gpu(self, objects: list[Any], starts: list[int], stops: list[int], **_: Any) -> Any:
        """Read chunks from memory objects."""
        self.read(objects, starts, stops)

    def write(self, objects: list[Any], starts: list[int], stops: list[int], layer: int | None = None) -> None:
        """Write chunks of a layer, or of all layers."""
        for made, start, stop in zip(objects, starts, stops, strict=True):
            label = self._attached.label(start, stop, layer)
            self._attached.hooks.guarded(self._attached.wrote, made, label)
            made.tensor.copy_(_bytes(made, label))

    def read(self, objects: list[Any], starts: list[int], stops: list[int], layer: int | None = None) -> None:
        """Read chunks of a layer, or of all layers."""
        for made, start, stop in zip(objects, starts, stops, strict=True):
            label = self._attached.label(start, stop, layer)
            self._attached.hooks.guarded(self._attached.reads, made, label)
            if not torch.equal(made.tensor, _bytes(made, label)):
                self._attached.hooks.emit(Failed("assertion", f"other bytes are loaded for tokens {start} to {stop}"))


def _bytes(made: Any, label: str) -> Any:
    digest = hashlib.blake2b(label.encode(), digest_size=4).digest()
    return torch.full_like(made.tensor, int.from_bytes(digest) % 10_000)


def layerwise(connector: Connector) -> Any:
    """A connector that handles one layer at a time. It derives from the engine's class, as the engine requires."""
    of = importlib.import_module("lmcache.v1.gpu_connector.gpu_connectors").VLLMPagedMemLayerwiseGPUConnector

    class Layerwise(of):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            """Skip the real constructor."""

        def batched_from_gpu(self, layers: Any, starts: list[int], stops: list[int], **_: Any) -> Iterator[None]:
            for layer, objects in enumerate(layers):
                connector.write(objects, starts, stops, layer)
                yield
            yield

        def batched_to_gpu(self, starts: list[int], stops: list[int], **_: Any) -> Generator[None, list[Any], None]:
            for layer in range(LAYERS):
                connector.read((yield), starts, stops, layer)
            yield
            yield

        def get_shape(self, num_tokens: int) -> Any:
            return torch.Size([num_tokens, 2, HEADS * HEAD])

    return Layerwise()
