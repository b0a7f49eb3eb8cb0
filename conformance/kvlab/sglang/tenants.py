"""Parts of a request's cache key besides its tokens: extra keys, salts, and adapters that are loaded and unloaded."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvattach.sglang.release import Release

LOADED = 2
"""The most adapters that are loaded at once. In a batch the base model may take the place of one."""


@dataclass(frozen=True)
class Names:
    """The probabilities that a request has an adapter, an extra key and a salt."""

    adapters: float = 0.0
    """That of an adapter, with one of two names."""
    keys: float = 0.0
    """That of an extra key, which may be spelled like an adapter's id."""
    salts: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> "Names":
        """Half of the time all probabilities are 0: KV events are compared only then."""
        often = (0.0, 0.5, 0.5) if rng.random() < 0.5 else (0.0,)
        return cls(adapters=rng.choice(often), keys=rng.choice(often), salts=rng.choice(often))


class Tenants:
    """Clients with their own keys. Each load gives an adapter a new id, and one of two folders of weights."""

    def __init__(self, release: Release, rng: random.Random, names: Names) -> None:
        """No adapter is loaded yet."""
        self._release, self._rng, self._names = release, rng, names
        self._ids: dict[str, str] = {}
        """The name of an adapter -> the id that new requests give for it."""
        self._known: list[str] = []
        """All ids so far."""
        self._users: dict[str, set[str]] = {}
        """The id of a loaded adapter -> its unanswered requests."""
        self._sessions: dict[str, dict[str, Any]] = {}
        """Session -> the keys of its client."""

    def messages(self) -> list[Any]:
        """Unload unused adapters. Now and then withdraw a name, or load other weights under it."""
        if not self._names.adapters:
            return []
        return [*self._unloaded(), *self._loaded()]

    def _unloaded(self) -> Iterator[Any]:
        for unused in [one for one, users in self._users.items() if not users and one not in self._ids.values()]:
            del self._users[unused]
            yield self._release.messages.UnloadLoRAAdapterReqInput(lora_name="", lora_id=unused)

    def _loaded(self) -> Iterator[Any]:
        if self._ids and self._rng.random() >= 0.03:
            return
        name = self._rng.choice("ab")
        if self._ids.pop(name, None) is None and len(self._users) < LOADED:
            adapter = self._ids[name] = f"{self._rng.getrandbits(128):032x}"
            self._known.append(adapter)
            self._users[adapter] = set()
            path = f"/{name}/{self._rng.randrange(2)}"
            yield self._release.messages.LoadLoRAAdapterReqInput(lora_name=name, lora_path=path, lora_id=adapter)

    def named(self, rid: str, session: str | None = None) -> dict[str, Any]:
        """The fields to add to a request's message. A session's turns have the same keys; the adapter may change."""
        keys = self._keys() if session is None else self._sessions.setdefault(session, self._keys())
        if self._ids and self._rng.random() < self._names.adapters:
            adapter = self._rng.choice([*self._ids.values()])
            self._users[adapter].add(rid)
            return keys | {"lora_id": adapter}
        return keys

    def _keys(self) -> dict[str, Any]:
        keys = {}
        if self._rng.random() < self._names.keys:
            keys["extra_key"] = self._rng.choice(["x", *self._known[-2:]])
        if self._release.salts and self._rng.random() < self._names.salts:
            keys["cache_salt"] = self._rng.choice("xs")
        return keys

    def answered(self, rid: str) -> None:
        """A request is complete: its adapter has one user less."""
        for users in self._users.values():
            users.discard(rid)
