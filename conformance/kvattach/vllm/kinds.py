"""The kinds of offloading to the host that are observed, and the one that a scheduler has."""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kvattach.streams import Streams
from kvattach.vllm.launches import STREAM
from kvattach.vllm.offload import Attached, Side
from kvattach.vllm.workers import in_this_process
from kvspec.memory.events import Pool

_log = logging.getLogger("kvspec")

Kind = Callable[[Attached, Streams], Side | None]
"""Installs its hooks; `None` if the release has other functions."""


class Kinds:
    """Observes a kind of offloading once the engine has imported it."""

    def __init__(self, attached: Attached, stream: Any, event: Any, kinds: Mapping[str, Kind]) -> None:
        """Nothing is hooked yet. `stream` and `event` are the observed classes; each kind is named by its module."""
        self._attached, self._classes = attached, (stream, event)
        self._kinds = dict(kinds)
        """Module -> the kind, as long as it has no hooks."""
        self._streams: Streams | None = None
        self._sides: list[Side] = []

    def start(self, scheduler: Any, device: Any, size: int) -> tuple[Side | None, dict[str, Pool]]:
        """The kind that a new scheduler has, and its pools; pages of its block pool `device` have `size` slots.

        On a CPU streams are stand-ins of vLLM's own, without functions: no kind offloads there.
        """
        imported = filter(sys.modules.__contains__, self._kinds) if hasattr(self._classes[0], "wait_stream") else ()
        for module in [*imported]:
            side = self._kinds.pop(module)(self._attached, self._observed())
            self._sides += [] if side is None else [side]
        if self._streams is not None:
            self._streams.clear(None)
        for side in self._sides:
            manager = side.of(scheduler.connector)
            if manager is None:
                continue
            if in_this_process(scheduler):
                return side, {side.pool: side.start(manager, device, size), **side.more_pools()}
            _log.warning("kvspec: offloading to the host is not recorded: its workers are processes of their own")
        return None, {}

    def _observed(self) -> Streams:
        """The streams of this process, which are observed from the first call on."""
        if self._streams is None:
            from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

            hooks = self._attached.hooks
            streams = self._streams = Streams(hooks, *self._classes)
            # A worker calls this on the stream on which the pass of the step then runs.
            passes = "bind_connector_metadata"
            hooks.hook(KVConnectorBase_V1, passes, before=lambda *_: streams.call_current(STREAM))
        return self._streams
