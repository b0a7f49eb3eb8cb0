"""LoRA adapters of MAX: the engine's own manager of slots and routing, with a path for each adapter's weights.

The manager sorts a batch by its slots, routes ranges of tokens to slots, and keeps the packed weights of a batch. Only
reading and packing tensors is stood in for: a packed buffer is the path of each slot's weights.
"""

import random
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy

from kvattach.max.modules import Engine

BASE = "base"
"""The model without an adapter."""


class Weights(NamedTuple):
    """Stands in for an adapter's tensors."""

    name: str
    path: str


class Held(NamedTuple):
    """Stands in for a buffer of the driver."""

    array: Any

    def to(self, device: object) -> "Held":
        """Do nothing: there is one device."""
        return self


def stand_in(lora: Any) -> None:
    """Let the engine's manager read and pack paths instead of tensors."""
    lora.Buffer = SimpleNamespace(from_numpy=Held)
    lora._UnfusedLoRAModel = lambda name, path, *_: Weights(name, path)
    lora.LoRAManagerV3._resolve_adapter_path = lambda _, path: path
    lora.LoRAManagerV3._pack_adapter_buffers = lambda _, adapters, device: [
        {slot: weights.path for slot, weights in adapters.items()}
    ]


class Adapters:
    """The adapters of one server. A name may get other weights, while no request uses it."""

    def __init__(self, engine: Engine, names: int, slots: int, rng: random.Random) -> None:
        """Load as many adapters as there are `names`; so many of them as there are `slots` can be active at once."""
        config = SimpleNamespace(max_num_loras=slots, max_lora_rank=8, lora_paths=[])
        self.manager = engine.lora.LoRAManagerV3(config, BASE, None, 1, 1, 1, 1)
        self._rng, self._names, self._versions = rng, [f"adapter{number}" for number in range(names)], 0
        self._of: dict[str, str] = {}
        """Request -> its adapter."""
        for name in self._names:
            self._load(name)

    def chosen(self, request: str) -> str:
        """The adapter of a request, or the base model."""
        name = self._of[request] = self._rng.choice([BASE, *self._names])
        return name

    def replace(self, requests: Iterable[str]) -> None:
        """Give a name that none of these requests uses other weights, if there is one."""
        idle = sorted({*self._names} - {self._of[request] for request in requests})
        if idle:
            name = self._rng.choice(idle)
            self.manager.unload_adapter(name)
            self._load(name)

    def _load(self, name: str) -> None:
        self._versions += 1
        self.manager.load_adapter(f"{name}={name}/{self._versions}")

    def routed(self, batch: Sequence[Any]) -> dict[str, str]:
        """The weights that a pass uses for each request, by the manager's routing; empty: none."""
        starts = numpy.cumsum([0, *(context.tokens.active_length for context in batch)])
        ids, offsets, end, packed = self.manager.input_buffers(batch, starts, None)
        borders = [int(border) for border in offsets.array]
        used: dict[str, str] = {}
        for context, start in zip(batch, starts, strict=False):
            group = sum(border <= start for border in borders) - 1
            routed = start < len(end.array) and 0 <= group < len(ids.array)
            used[str(context.request_id)] = packed.get(int(ids.array[group]), "") if routed else ""
        return used
