"""Hooks into vLLM's KV events: each batch that vLLM publishes for routers, to compare with the names in its pools.

The hash in an event is the end of the key under which a block is cached. A block's label is computed from its parent's
label and from the tokens, the adapter and the salt in its event: it is the content that a router expects.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kvattach.hooks import Hooks, chained
from kvattach.residency import foreign
from kvattach.vllm.residency import Group, labelled
from kvspec.memory.events import Announce

GPU = "GPU"
"""The tier of the block pool."""

REMEMBERED = 100_000
"""The most hashes that are remembered. Content after a forgotten hash is not checked."""


class Attached(Protocol):
    """The part of the scheduler's hooks that the hooks for routers use."""

    hooks: Hooks
    groups: list[Group]

    def emit(self, *events: Any) -> None:
        """Emit events, once there is a scheduler."""
        ...


class Routers:
    """Emits the announcements of one scheduler."""

    def __init__(self, attached: Attached) -> None:
        """There is no scheduler yet."""
        self._attached = attached
        self._tiers: Mapping[str, str] = {}
        """Tier -> its pool, of which routers know all names."""
        self._batches = 0
        self._paths: dict[Any, str] = {}
        """The number of an adapter -> the path of its weights."""
        self._chains: dict[Any, str] = {}
        """Hash -> the last link of its content's chain, as `chained` made it; the newest hashes only."""
        self._unit = 1
        """Tokens of one link of a chain."""
        self._images: dict[str, None] = {}
        """The engine's newest hashes of images and sounds. In keys of older releases they look like a salt."""
        self._embeds = False
        """Whether there was a prompt of embeddings. Its events look like those of a prompt with a salt."""

    def start(self, scheduler: Any, tiers: Mapping[str, str]) -> None:
        """A scheduler was made; it publishes the names of these pools, if it publishes any."""
        self._tiers, self._batches, self._embeds = tiers, 0, False
        self._unit = math.gcd(*(group.size for group in self._attached.groups))
        self._paths.clear()
        self._images.clear()
        self._chains.clear()
        publisher = getattr(scheduler, "kv_event_publisher", None)
        if publisher is not None and getattr(scheduler.kv_cache_manager.block_pool, "enable_kv_cache_events", False):
            self._attached.hooks.hook(publisher, "publish", before=self._published)

    def comes(self, request: Any) -> None:
        """Note what the events of a request leave out: the weights behind the number of its adapter, for one."""
        self._embeds |= getattr(request, "prompt_embeds", None) is not None
        self._images |= {feature.identifier: None for feature in getattr(request, "mm_features", None) or ()}
        _trim(self._images)
        lora = getattr(request, "lora_request", None)
        if lora is not None:
            self._paths[lora.adapter_id] = lora.lora_path

    def _published(self, batch: Any) -> None:
        """Routers get a batch, and then know all names of the pools."""
        announced = [event for raw in batch.events for event in self._announced(raw)] or [Announce()]
        announced += [Announce(tier, pool=pool) for tier, pool in self._tiers.items()]
        announced[0].batch = self._batches
        self._batches += 1
        for event in announced:
            event.at = "publish"
        self._attached.emit(*announced)

    def _announced(self, event: Any) -> Iterator[Announce]:
        """The announcement of one event, if its tier has a pool."""
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            yield Announce(cleared=True)
        elif len(self._attached.groups) > 1 and not hasattr(event, "group_idx"):
            self._tiers = {}  # the release's events name no group: no router knows the group of a block
        elif (event.medium or GPU) in self._tiers:
            group = self._attached.groups[getattr(event, "group_idx", None) or 0]
            blocks = [_named(block, group) for block in event.block_hashes]
            if kind == "BlockRemoved":
                yield Announce(event.medium or GPU, removed=blocks)
            elif blocks:
                labels, parent = self._contents(event, group), event.parent_block_hash
                # A parent is kept as long as its children, except for windows, for states, and on the host.
                kept = event.medium in (None, GPU) and not (group.window or group.state)
                known = _named(parent, group) if parent is not None and kept else None
                yield Announce(event.medium or GPU, blocks, known, labels)

    def _contents(self, event: Any, group: Group) -> list[str] | None:
        """The labels of an event's blocks; `None` if the event leaves out some of the content that they depend on.

        There is no label if the tokens do not fit the blocks.
        """
        size, unit, parent = event.block_size, self._unit, event.parent_block_hash
        if not event.token_ids:
            return None
        if len(event.token_ids) != size * len(event.block_hashes):
            return []
        before = self._begins(event) if parent is None else self._chains.get(parent)
        if before is None or size % unit or self._embeds or self._shows(event):
            return None
        labels: list[str] = []
        for index, block in enumerate(event.block_hashes):
            for at in range(index * size, (index + 1) * size, unit):
                before = chained(before, tuple(event.token_ids[at : at + unit]))
            labels.append(labelled(group, before))
            self._chains[block] = before
        _trim(self._chains)
        return labels

    def _shows(self, event: Any) -> bool:
        """Whether an event's blocks have images or sounds. Of these the event has only the engine's hash."""
        keys = [key for block in event.extra_keys or () for key in block or ()]
        return any(not isinstance(key, str) or key in self._images for key in keys)

    def _begins(self, event: Any) -> str:
        """The label before the first token, made from the adapter's weights and the salt."""
        extra = [*((event.extra_keys or [None])[0] or ())]
        if extra[:1] == [event.lora_name]:
            del extra[0]
        return foreign(self._paths.get(event.lora_id), extra[0] if extra else None)


def _trim(known: dict[Any, Any]) -> None:
    """Forget the oldest entries beyond `REMEMBERED`."""
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def _named(block: Any, group: Group) -> str:
    """A block's name in the form of `residency.named`, from its hash, which is a number or bytes."""
    end = block[-8:].hex() if isinstance(block, bytes) else f"{block:016x}"
    return f"{end}.{group.number}"
