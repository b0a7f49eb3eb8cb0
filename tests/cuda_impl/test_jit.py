"""Launches of aligned kernels: Triton looks for the compiled variant once for each set of numbers and each device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvcuda.jit import Kernel


class Compiled:
    """In place of a kernel of Triton, or of a variant of it: notes its launches."""

    def __init__(self, made: bool = False) -> None:
        self.made = made
        self.launches: list[tuple[Any, ...]] = []
        self.variants: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        def launch(*args: Any, **options: int) -> object:
            self.launches.append((grid, args, options))
            if self.made:
                return None
            self.variants.append(Compiled(made=True))
            return self.variants[-1]

        return launch


def _kernel(words: Any, num_pages: Any, window: Any, debug: Any) -> None:
    """Does nothing. Triton reads a kernel's source, and takes no lambda."""


def test_a_variant_is_looked_for_once_for_each_set_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    device = 0
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
    kernel: Kernel[Any] = Kernel(_kernel, 8, aligned=True)
    kernel._aligned = True  # as on a GPU
    kernel.compiled = compiled = Compiled()
    one, other = torch.zeros(1), torch.zeros(2)
    kernel[(3,)](one, 5, None, False)
    kernel[(4, 2)](other, 5, None, False)
    assert compiled.launches == [((3,), (one, 5, None, False), {"num_warps": 8})]
    assert compiled.variants[0].launches == [((4, 2, 1), (other, 5, None, False), {})]
    for args in ((one, 6, None, False), (one, 5, other, False), (one, 5, None, True)):
        kernel[(3,)](*args)
    device = 1
    kernel[(3,)](one, 5, None, False)
    assert len(compiled.launches) == 5
