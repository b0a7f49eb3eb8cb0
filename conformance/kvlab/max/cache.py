"""Makes MAX's own cache manager without device memory: leaves of one slab, their pools and their coordinators."""

from types import SimpleNamespace
from typing import Any, Literal

import msgspec

from kvattach.max.modules import Engine

LAYERS = 2
"""The number of layers of a recurrent state: rows of its pool."""


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One leaf of the cache: its kind, the window of its layers, and its number of blocks in a huge block."""

    kind: Literal["full", "window", "recurrent", "scratch"]
    ratio: int = 1
    window: int = 0
    """The number of attended tokens, including the query's own."""


def make(
    engine: Engine,
    leaves: dict[str, Leaf],
    *,
    page_size: int,
    huge_blocks: int,
    replicas: int,
    batch: int,
    longest: int,
    budget: int | None,
    caching: bool,
    connector: Any = None,
    drafts: int = 0,
    at_once: int = 0,
) -> Any:
    """A `JengaKVCacheManager` with these leaves.

    A block has `page_size` tokens, a chunk at most `budget`. Without a budget prompts are not chunked. The drafter
    proposes so many `drafts`, with so many `at_once`.
    """
    regions = {name: _region(engine, name, leaf, page_size) for name, leaf in leaves.items()}
    infos = {name: engine.manager.KVLeafInfo(leaf.ratio, regions[name].group_id) for name, leaf in leaves.items()}
    params = _params(engine, regions, page_size, replicas, caching, connector)
    params.num_draft_tokens, params.num_draft_tokens_per_step = drafts, at_once
    if connector is not None:
        connector.keeps({name: one.group_id for name, one in regions.items() if one.cacheable})
    pools = engine.manager.create_pools(infos, huge_blocks, replicas)
    return engine.cache.JengaKVCacheManager(
        params=params,
        leaf_infos=infos,
        pools=pools,
        kv_buffers=[],
        replica_kv_memory=[{name: SimpleNamespace(buffers=[], bytes_per_page=1) for name in leaves}] * replicas,
        max_batch_size=batch,
        max_seq_len=longest,
        max_num_input_tokens=budget,
        connector=connector,
        groups=engine.manager.create_groups(infos, pools, page_size, enable_prefix_caching=caching),
    )


def _region(engine: Engine, name: str, leaf: Leaf, page_size: int) -> Any:
    of = engine.params
    kind = "sliding_window" if leaf.kind == "window" else leaf.kind
    group = of.KVCacheGroupId(kind, leaf.window if leaf.kind == "window" else -1)
    if leaf.kind in ("full", "window"):
        return of.PagedKVLeafRegion(name, group, 1, page_size=page_size)
    region = of.RecurrentStateRegion(name, LAYERS, (1,), None, scratch=leaf.kind == "scratch")
    made = of.ScratchKVLeafRegion if leaf.kind == "scratch" else of.RecurrentKVLeafRegion
    return made(name, group, 1, region=region)


def _params(engine: Engine, regions: Any, page_size: int, replicas: int, caching: bool, connector: Any) -> Any:
    """Stands in for those parameters of the cache that its manager reads."""
    states: dict[str, list[Any]] = {f"{name}/pool": [] for name, region in regions.items() if hasattr(region, "region")}
    kinds = engine.params.KVConnectorType
    return SimpleNamespace(
        page_size=page_size,
        enable_prefix_caching=caching,
        kv_hash_algo="ahash64",
        kv_hash_seed=None,
        data_parallel_degree=replicas,
        enable_dp_cross_replica_prefix_copy=True,
        devices=[SimpleNamespace(to_device=lambda: None) for _ in range(replicas)],
        kv_connector_config=SimpleNamespace(type=kinds.null if connector is None else kinds.rust_tiered),
        leaves=lambda: regions,
        slab_to_bound_views=lambda _: states,
        staged_dispatch_metadata=dict,
        build_runtime_inputs=lambda assigned, *_, **__: [one.cache_lengths_by_device[0] for one in assigned],
    )
