"""Hooks into vLLM's KV events: each batch that it publishes for routers, beside the names that its pools have then.

The hash of an event is the end of the key under which a block is cached. The content of a block is computed from the
tokens, the adapter and the salt in its event, behind its parent's content: so it is what a router takes it for.
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
"""Hashes that are remembered; content behind one that is forgotten is not checked."""


class Attached(Protocol):
    """The part of the scheduler's hooks that these use."""

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
        """The tiers of whose pools routers know all names, with these pools."""
        self._batches = 0
        self._paths: dict[Any, str] = {}
        """The number of an adapter -> the path of its weights."""
        self._chains: dict[Any, str] = {}
        """Hash -> the end of the chain of its content, as `chained` made it; the newest ones."""
        self._unit = 1
        """Tokens of one link of a chain."""
        self._images: dict[str, None] = {}
        """The engine's newest hashes of images and sounds, which older releases' keys have as they have a salt."""
        self._embeds = False
        """Whether there was a prompt of embeddings, whose events look like those of one with a salt."""

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
        """A request with an adapter: its events have the adapter's number, and not which weights that stands for."""
        self._embeds |= getattr(request, "prompt_embeds", None) is not None
        self._images |= {feature.identifier: None for feature in getattr(request, "mm_features", None) or ()}
        _trim(self._images)
        lora = getattr(request, "lora_request", None)
        if lora is not None:
            self._paths[lora.adapter_id] = lora.lora_path

    def _published(self, batch: Any) -> None:
        """Routers get a batch; they know all names of the pools then."""
        announced = [event for raw in batch.events for event in self._announced(raw)] or [Announce()]
        announced += [Announce(tier, pool=pool) for tier, pool in self._tiers.items()]
        announced[0].batch = self._batches
        self._batches += 1
        for event in announced:
            event.at = "publish"
        self._attached.emit(*announced)

    def _announced(self, event: Any) -> Iterator[Announce]:
        """One event of a tier that has a pool."""
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            yield Announce(cleared=True)
        elif len(self._attached.groups) > 1 and not hasattr(event, "group_idx"):
            self._tiers = {}  # a release whose events name no group: no router knows of which group a block is
        elif (event.medium or GPU) in self._tiers:
            group = self._attached.groups[getattr(event, "group_idx", None) or 0]
            blocks = [_named(block, group) for block in event.block_hashes]
            if kind == "BlockRemoved":
                yield Announce(event.medium or GPU, removed=blocks)
            elif blocks:
                labels, parent = self._contents(event, group), event.parent_block_hash
                # Parents are kept with their children, but for windows, for states, and on the host.
                kept = event.medium in (None, GPU) and not (group.window or group.state)
                known = _named(parent, group) if parent is not None and kept else None
                yield Announce(event.medium or GPU, blocks, known, labels)

    def _contents(self, event: Any, group: Group) -> list[str] | None:
        """The labels of blocks as their names have them; `None` where an event does not have what these depend on.

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
        """Whether its blocks have images, or sounds: of these it has the engine's hash alone."""
        keys = [key for block in event.extra_keys or () for key in block or ()]
        return any(not isinstance(key, str) or key in self._images for key in keys)

    def _begins(self, event: Any) -> str:
        """The label before the first token: for which weights and with which salt."""
        extra = [*((event.extra_keys or [None])[0] or ())]
        if extra[:1] == [event.lora_name]:
            del extra[0]
        return foreign(self._paths.get(event.lora_id), extra[0] if extra else None)


def _trim(known: dict[Any, Any]) -> None:
    """Forget the oldest entries of those that are too many."""
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def _named(block: Any, group: Group) -> str:
    """A block's name as `residency.named` has it, from its hash: a number, or bytes."""
    end = block[-8:].hex() if isinstance(block, bytes) else f"{block:016x}"
    return f"{end}.{group.number}"
