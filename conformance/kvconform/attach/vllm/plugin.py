"""What vLLM loads in each of its processes, by the entry point `vllm.general_plugins`."""

import logging

from kvconform.attach.switch import wanted

_log = logging.getLogger(__name__)


def register() -> None:
    """Install the hooks if they are switched on. vLLM calls it once a process, before there is a scheduler."""
    trace = wanted()
    if trace is None:
        return
    try:
        from kvconform.attach.vllm.hooks import Attached

        Attached(trace)
    except Exception as error:
        _log.warning("kvspec: this vLLM cannot be hooked: %s: %s", type(error).__name__, error)
