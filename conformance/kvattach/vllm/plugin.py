"""The plugin that vLLM loads in each of its processes, by the entry point `vllm.general_plugins`."""

import logging

from kvattach.hooked import note
from kvattach.live import wait_for_model_runners
from kvattach.switch import SwitchError, switched_on

_log = logging.getLogger("kvspec")


def register() -> None:
    """Install the hooks if `KVSPEC` or `KVSPEC_CANARY` switch them on, before there is a scheduler or model runner."""
    wait_for_model_runners()
    try:
        trace = switched_on()
        if trace is None:
            return
        from kvattach.vllm.hooks import Attached

        Attached(trace)
        note("vllm")
    except SwitchError as error:
        _log.warning("kvspec: %s", error)
    except (ImportError, AttributeError) as error:
        _log.warning("kvspec: this vLLM cannot be hooked: %s: %s", type(error).__name__, error)
