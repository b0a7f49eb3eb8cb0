"""The entry points that engines load. With kvspec switched off they import only this module."""

import os


def vllm() -> None:
    """Hook vLLM in this process if `KVSPEC` or `KVSPEC_CANARY` is set; the entry point `vllm.general_plugins`."""
    process()


def process() -> None:
    """Hook the engine that this process imports if `KVSPEC` or `KVSPEC_CANARY` is set.

    The entry point `sglang.srt.plugins`, and what `kvspec attach` has Python call.
    """
    if os.environ.get("KVSPEC") or os.environ.get("KVSPEC_CANARY"):
        from kvattach.live import wait_for_engines

        wait_for_engines()
