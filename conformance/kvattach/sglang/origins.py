"""Hooks into SGLang's requests, adapters and weights: the origin of a request's content, which begins its labels.

The extra key, the salt and the adapter are those of the client's message, and not those of the key that the scheduler
makes from them. An adapter is named by the path of its weights and by the number of its load. After an update of the
weights content is new content, once the server has reported that its cache is empty.
"""

from typing import Any

from kvattach.hooks import Hooks
from kvattach.residency import foreign
from kvattach.sglang.release import Release

_FIELDS = ("extra_key", "cache_salt", "lora_id")


class Origins:
    """Follows the origins of content."""

    def __init__(self, release: Release, hooks: Hooks) -> None:
        """Install the hooks."""
        self._message: Any = None
        """The message of the request that is being made; `None`: it is made without a message."""
        self._weights: dict[str, str] = {}
        """The id of an adapter -> its weights. Without an observed load the id stands for the weights."""
        self._loads = self._version = 0
        self._outdated = False
        """Whether the cache has content of replaced weights."""
        hooks.hook(release.batches.Req, "__init__", after=self._made)
        if release.scheduled:
            scheduler = release.scheduler.Scheduler
            takes, ends = lambda _, message, **__: self._takes(message), lambda *_, **__: self._takes(None)
            hooks.hook(scheduler, "handle_generate_request", before=takes, after=ends)
            hooks.hook(scheduler, "load_lora_adapter", after=lambda _, __, ___, message: self._loaded(message))
            hooks.hook(scheduler, "flush_cache", after=lambda _, done, *__, **___: self._flushed(done))
        if release.weight_updater is not None:
            hooks.hook(release.weight_updater, "flush_cache_after_weight_update", after=self._replaced)

    def _takes(self, message: Any) -> None:
        self._message = message

    def _made(self, _: None, __: None, req: Any, *___: Any, **named: Any) -> None:
        """A request was made, from a message or without one."""
        given = named if self._message is None else {name: getattr(self._message, name, None) for name in _FIELDS}
        key, salt, adapter = (given.get(name) for name in _FIELDS)
        req.kvspec_origin = adapter and self._weights.get(adapter, adapter), key, salt

    def _loaded(self, message: Any) -> None:
        self._loads += 1
        self._weights[message.lora_id] = f"{message.lora_path} {self._loads}"

    def _replaced(self, _: None, answer: tuple[bool, str] | None, __: Any, message: Any, *___: Any) -> None:
        """The weights were replaced. Without a flush the cache keeps the old content, as the client requested.

        Before 0.5.22 a flush that fails is an error, and there is no answer.
        """
        self._outdated = True
        self._flushed(message.flush_cache and (answer is None or answer[0]))

    def _flushed(self, done: bool) -> None:
        self._version += done and self._outdated
        self._outdated &= not done

    def whose(self, req: Any) -> str:
        """The first label of a request that is being made."""
        return foreign(*getattr(req, "kvspec_origin", ()), str(self._version or ""))
