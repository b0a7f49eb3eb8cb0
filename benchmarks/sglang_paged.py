"""SGLang's own paged allocator, doing what `benchmarks/device.py` measures: the peer to beat.

The allocator class and the kernel that writes rows are the release's; around them stands what its scheduler does for
each operation. Tensors have the types that the engine gives them: slots int64, rows int32.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from kvlab.sglang.adapter.finder import prepare, version_in
from kvspec.events import Config


class Release:
    """The parts of one SGLang release that are used here."""

    def __init__(self, folder: Path) -> None:
        """Import them from a folder that holds the unpacked wheel.

        Raises:
            EngineError: there is no release in the folder.
            ImportError: something that it imports is missing.
        """
        self.version = version_in(folder)
        os.environ.setdefault("TRITON_INTERPRET", "0")  # `prepare` would have kernels interpreted
        prepare(folder)
        allocators = import_module("sglang.srt.mem_cache.allocator")
        self.allocator: Any = allocators.PagedTokenToKVPoolAllocator
        rows = import_module("sglang.kernels.ops.memory.common")
        self.write_rows: Any = rows.write_req_to_token_pool_triton


class PagedPool:
    """One allocator and the rows that it serves; all rows hold `length` tokens after `fill`."""

    def __init__(self, release: Release, config: Config, batch: int, length: int, device: str) -> None:
        size = config.num_pages * config.page_size
        self.allocator = release.allocator(size, config.page_size, torch.bfloat16, device, None, need_sort=False)
        self._write_rows = release.write_rows
        self._device = device
        self.req_to_token: Any = torch.zeros((batch, config.max_context_len), dtype=torch.int32, device=device)
        self.batch, self.length = batch, length
        self._rows: Any = torch.arange(batch, device=device)
        self._no_prefix: Any = torch.zeros(batch, dtype=torch.uint64, device=device)

    def lengths(self, length: int) -> tuple[Any, Any]:
        """`length` for every row, on the device and on the host."""
        on_host = torch.full((self.batch,), length, dtype=torch.int64)
        return on_host.to(self._device), on_host

    def fill(self) -> None:
        """Give every row its tokens, on an otherwise empty pool."""
        self.allocator.clear()
        if self.length:
            self.extend(*self.lengths(0), *self.lengths(self.length), self.batch * self.length)

    def extend(self, starts: Any, starts_cpu: Any, ends: Any, ends_cpu: Any, tokens: int) -> Any:
        """Prefill positions `starts..ends - 1` of every row, from an empty row on."""
        last = torch.full_like(starts, -1)
        out = self.allocator.alloc_extend(starts, starts_cpu, ends, ends_cpu, last, tokens)
        self._write_rows[(self.batch,)](
            self.req_to_token,
            self._rows,
            self._no_prefix,
            starts,
            ends,
            ends - starts,
            out,
            self.req_to_token.shape[1],
        )
        return out

    def decode(self, lengths: Any, lengths_cpu: Any) -> Any:
        """One more token for every row."""
        last = self.req_to_token[self._rows, lengths - 1]
        out = self.allocator.alloc_decode(lengths + 1, lengths_cpu + 1, last)
        self.req_to_token[self._rows, lengths.clone()] = out.to(torch.int32)
        return out

    def free(self, start: int) -> None:
        """Every row gives back its positions from `start` on, which is a page border: a batch of requests that end."""
        self.allocator.free_group_begin()
        for row in range(self.batch):
            self.allocator.free_segment(self.req_to_token[row, start : self.length], start_pos=start)
        self.allocator.free_group_end()
