"""Shows `room-promised-twice` with MAX's compiled pool alone; nothing of kvspec is used.

    kvspec engines install max==26.7.0
    python conformance/found/max/room_promised_twice.py ~/.cache/kvspec/engines/max-26.7.0

The pool has two huge blocks besides that of the null block, each two blocks of leaf `a` or one of leaf `b`.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Ask for a block of each leaf, and take them."""
    spec = importlib.util.spec_from_file_location("_kv_core", Path(sys.argv[1]) / "max" / "_kv_core.so")
    assert spec is not None and spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    pool = core.JengaBlockPool(3, {"a": 2, "b": 1})
    used, cached = pool.alloc_block("a"), pool.alloc_block("a")
    pool.commit_into_prefix_cache(b"12345678", cached)
    pool.free_block(cached)
    print(f"in use: {used}; cached: {cached}")
    print(f"one block of each leaf can be had: {pool.can_satisfy_demand({'a': 1, 'b': 1})}")
    print(f"of a: {pool.alloc_block('a')}")
    try:
        print(f"of b: {pool.alloc_block('b')}")
    except core.InsufficientBlocksError as error:
        print(f"of b: {error}")


if __name__ == "__main__":
    main()
