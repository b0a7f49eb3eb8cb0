"""The plugin that vLLM loads in each of its processes, by the entry point `vllm.general_plugins`."""

from kvattach.hooks import Trace
from kvattach.live import wait_for_engines
from kvattach.vllm.hooks import Attached


def register() -> None:
    """Install the hooks if `KVSPEC` or `KVSPEC_CANARY` switch them on, once there is a scheduler or model runner."""
    wait_for_engines()


def attach(trace: Trace) -> None:
    """Install the hooks into vLLM, whose scheduler has been imported."""
    Attached(trace)
