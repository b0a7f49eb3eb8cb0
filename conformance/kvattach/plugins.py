"""The entry points that engines load: with kvspec switched off they import nothing but this module."""

import os


def vllm() -> None:
    """Hook vLLM in this process if `KVSPEC` or `KVSPEC_CANARY` is set; the entry point `vllm.general_plugins`."""
    if os.environ.get("KVSPEC") or os.environ.get("KVSPEC_CANARY"):
        from kvattach.vllm.plugin import register

        register()


def sglang() -> None:
    """Put the canary before SGLang's model runner if `KVSPEC_CANARY` is set; the entry point `sglang.srt.plugins`."""
    if os.environ.get("KVSPEC_CANARY"):
        from kvattach.live import wait_for_model_runners

        wait_for_model_runners()


def process() -> None:
    """Hook the engine that this process imports if `KVSPEC` or `KVSPEC_CANARY` is set; for `kvspec attach`."""
    if os.environ.get("KVSPEC") or os.environ.get("KVSPEC_CANARY"):
        from kvattach.live import wait_for_engines

        wait_for_engines()
