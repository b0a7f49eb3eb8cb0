"""Hooks into SGLang's KV events: each batch from its tree for routers, beside the pools' names at that time.

A page's name is the label of its content. So the content of an announced block gives its name: it is computed from the
tokens in the event, after those of its parent. A hash stands for the content that was announced with it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kvattach.hooks import Hooks, chained
from kvattach.sglang.release import Release
from kvattach.sglang.view import HOST, KV
from kvspec.memory.events import Announce

TIERS = {"GPU": KV, "CPU_PINNED": HOST}
"""Tier -> its pool."""

REMEMBERED = 100_000
"""The most hashes with remembered content. A block after a forgotten one gets a name that finds nothing."""


class Routers:
    """Emits the announcements of one memory."""

    def __init__(self, release: Release, hooks: Hooks, watched: Callable[[], Any], whose: Callable[[], str]) -> None:
        """Install the hooks; `watched` is the observed cache, `whose` the first label without a key."""
        self._hooks, self._watched, self._whose = hooks, watched, whose
        self._contents: dict[Any, str] = {}
        """Hash -> the name of the content with which it was announced."""
        self._tiers: dict[str, str] = {}
        self._ended: Any = None
        """The cache whose announcements are no longer compared."""
        self._batches = self._seen = 0
        """Batches so far, and what the hooks had seen until the last one."""
        if release.unified:
            hooks.hook(release.cache_class, "insert", before=self._comes)
            hooks.hook(release.cache_class, "take_events", after=self._taken)

    def start(self, pools: dict[str, Any]) -> None:
        """A memory was made, or the cache was flushed; these are its pools."""
        self._contents.clear()
        self._batches = 0
        cache = self._watched()
        core = getattr(cache, "tree_core", None)
        announced = core is not None and core.kv_events.enabled and cache is not self._ended
        self._tiers = {tier: pool for tier, pool in TIERS.items() if announced and pool in pools}

    def _comes(self, _: Any, params: Any, *__: Any, **___: Any) -> None:
        """Announcements do not name the owner of content, so nothing is compared once there are adapters or salts."""
        key = params.key
        if getattr(key, "extra_key", None) is not None or getattr(key, "cache_salt", None) is not None:
            self.end()

    def end(self) -> None:
        """Compare nothing of this cache from now on."""
        self._tiers, self._ended = {}, self._watched()

    def _taken(self, _: None, events: list[Any], cache: Any) -> None:
        # An idle server takes its events all the time.
        if self._tiers and cache is self._watched() and (events or self._hooks.seen != self._seen):
            self._seen = self._hooks.seen
            # A host page has its name before it is written, and is announced after it is written.
            writing = bool(cache.ongoing_write_through)
            known = [(tier, pool) for tier, pool in self._tiers.items() if pool == KV or not writing]
            with self._hooks.reporting():
                self._hooks.later(partial(self._announces, [*events], known))

    def _announces(self, events: list[Any], known: list[tuple[str, str]]) -> None:
        """These events were taken; the names of these pools, each with its tier, are complete."""
        announced = [one for event in events for one in self._announced(event)]
        announced += [Announce(tier, pool=pool) for tier, pool in known]
        announced[0].batch = self._batches
        self._batches += 1
        for event in announced:
            event.at = "take_events"
            self._hooks.emit(event)

    def _announced(self, event: Any) -> Iterator[Announce]:
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            yield Announce(cleared=True)
            return
        tier = getattr(event.medium, "value", event.medium) or "GPU"
        if kind == "BlockRemoved":
            yield Announce(tier, removed=[self._name(block) for block in event.block_hashes])
            return
        parent = None if event.parent_block_hash is None else self._name(event.parent_block_hash)
        yield Announce(tier, [*self._stored(event, parent or self._whose())], parent)

    def _stored(self, event: Any, before: str) -> Iterator[str]:
        """The names of stored blocks. Of a pair of tokens, as drafters use them, the first counts."""
        tokens = [token[0] if isinstance(token, tuple) else token for token in event.token_ids]
        for index, block in enumerate(event.block_hashes):
            before = chained(before, tuple(tokens[index * event.block_size : (index + 1) * event.block_size]))
            self._contents[block] = before
            yield before
        while len(self._contents) > REMEMBERED:
            del self._contents[next(iter(self._contents))]

    def _name(self, block: Any) -> str:
        return self._contents.get(block) or f"{block & (1 << 64) - 1:x}"
