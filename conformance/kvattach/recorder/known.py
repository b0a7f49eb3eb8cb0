"""The SGLang caches that the recorder knows, and their release."""

import importlib
from typing import Any

_CACHES = {"RadixCache", "ChunkCache", "SessionAwareCache", "StreamingSession"}
_POOLS = {"ReqToTokenPool"}
_ALLOCATORS = {"TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator"}


class NotRecordable(Exception):
    """The recorder does not know the operations of this cache. The message says why in one line."""


def why_not(tree_cache: Any) -> str | None:
    """Why a cache cannot be recorded; `None` if it can."""
    inner = getattr(tree_cache, "inner", tree_cache)
    for thing, known in (
        (tree_cache, _CACHES),
        (inner, _CACHES),
        (tree_cache.req_to_token_pool, _POOLS),
        (tree_cache.token_to_kv_pool_allocator, _ALLOCATORS),
    ):
        if type(thing).__name__ not in known:
            return f"{type(thing).__name__} is none of {', '.join(sorted(known))}"
    if getattr(inner, "is_eagle", False):
        return "keys of two tokens each (EAGLE) are not known"
    if getattr(inner, "disable_finished_insert", False):
        return "a cache that takes no finished requests is not known"
    device = str(tree_cache.token_to_kv_pool_allocator.device)
    if not device.startswith(("cpu", "cuda")):
        return f"slot indices cannot be copied from {device} without waiting for it"
    return None


def producer() -> str:
    """The producer of a recording: the release of SGLang in this process."""
    try:
        version = importlib.import_module("sglang.version").__version__
    except (ImportError, AttributeError):
        version = "of unknown version"
    return f"sglang {version}, recorded by kvspec"
