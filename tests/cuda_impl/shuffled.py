"""Random orders for Triton's interpreter, which otherwise runs jobs and the elements of a store in order, unlike a GPU.

Each launch carries out its jobs in a random order, and each store its elements. A kernel that needs an order then fails
without a GPU.
"""

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from triton.runtime import interpreter

from kvcuda import backend as _backend  # noqa: F401


def shuffle(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Draw the order of jobs and elements for every launch from now on."""
    draw, elements = random.Random(seed), np.random.default_rng(seed)
    builder = interpreter.interpreter_builder
    set_grid_dim, set_grid_idx = builder.set_grid_dim, builder.set_grid_idx
    store = interpreter._interpreter.store
    drawn: list[tuple[int, int, int]] = []

    def begin(nx: int, ny: int, nz: int) -> None:
        drawn[:] = product(range(nx), range(ny), range(nz))
        draw.shuffle(drawn)
        set_grid_dim(nx, ny, nz)

    def take(x: int, y: int, z: int) -> None:
        # The interpreter counts through the grid; the next job is the next one that was drawn.
        set_grid_idx(*drawn.pop())

    def masked_store(ptrs: Any, value: Any, mask: Any, cache_modifier: object, eviction_policy: object) -> object:
        order = elements.permutation(ptrs.data.size)
        return store(*(np.ascontiguousarray(part.data.reshape(-1)[order]) for part in (ptrs, value, mask)))

    monkeypatch.setattr(builder, "set_grid_dim", begin)
    monkeypatch.setattr(builder, "set_grid_idx", take)
    monkeypatch.setattr(builder, "create_masked_store", masked_store)
