"""Makes the pools of one SGLang memory with a release's own classes: rows, pages, window pages, recurrent states.

Only their tensors are missing.
"""

import inspect
from types import SimpleNamespace
from typing import Any, Protocol


class Classes(Protocol):
    """A release's modules and classes for making pools."""

    torch: Any
    pools: Any
    allocators: Any
    window_pools: Any
    window_allocator: Any


def rows(classes: Classes, count: int, context: int, *, states: int, extra_buffer: bool) -> Any:
    """`count` rows for up to `context` tokens, and `states` slots for recurrent states if there are any.

    With `extra_buffer` a request has two further slots, in which kept states are tracked.
    """
    sizes = {"size": count, "max_context_len": context, "device": "cpu", "enable_memory_saver": False}
    if not states:
        return classes.pools.ReqToTokenPool(**sizes)
    optional = {"mamba_layer_ids": [0], "enable_overlap_schedule": True}  # newer releases require these
    made = classes.pools.HybridReqToTokenPool(
        **sizes,
        mamba_size=states,
        mamba_spec_state_size=count,
        cache_params=_state_shapes(classes.torch),
        enable_mamba_extra_buffer=extra_buffer,
        **of_keywords(classes.pools.HybridReqToTokenPool, optional),
    )
    for name in ("req_index_to_mamba_index_mapping", "req_index_to_mamba_ping_pong_track_buffer_mapping"):
        # Some releases make one entry for each state, but look entries up by row.
        table = getattr(made, name, None)
        if table is not None and len(table) < len(made.req_to_token):
            setattr(made, name, table.new_zeros((len(made.req_to_token), *table.shape[1:])))
    return made


def allocator(classes: Classes, pages: int, page_size: int, *, window_pages: int) -> Any:
    """The allocator of so many pages, and of their window pages if there are any."""
    common = {"dtype": classes.torch.float16, "device": "cpu", "kvcache": None, "need_sort": False}
    if window_pages:
        common["kvcache"] = _window_pool(classes)
        return classes.window_allocator(pages * page_size, window_pages * page_size, page_size=page_size, **common)
    if page_size == 1:
        return classes.allocators.TokenToKVPoolAllocator(pages, **common)
    return classes.allocators.PagedTokenToKVPoolAllocator(pages * page_size, page_size=page_size, **common)


def of_keywords(owner: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The `values` that a class takes: releases differ in them."""
    known = inspect.signature(owner.__init__).parameters
    return {name: value for name, value in values.items() if name in known}


def _window_pool(classes: Classes) -> Any:
    """A pool for two kinds of layers, but without tensors: it only keeps the mapping between them."""
    pool = type("NoLayers", (classes.window_pools.SWAKVPool,), {"__init__": lambda _: None})()
    pool.full_kv_pool = pool.swa_kv_pool = None
    return pool


def _state_shapes(torch: Any) -> Any:
    """A tiny recurrent state."""
    return SimpleNamespace(
        layers=[0],
        shape=SimpleNamespace(conv=[(1, 1)], temporal=(1, 1, 1)),
        dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
    )
