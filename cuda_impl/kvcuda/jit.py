"""Triton's decorator for kernels, with types: a launch takes the arguments of the kernel's function, and no others."""

from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, Protocol

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda.backend import INTERPRETED
import torch
import triton
# isort: on

P = ParamSpec("P")


class _Launch(Protocol):
    """Triton's launch, which takes any arguments."""

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class _Compiled(Protocol):
    """Triton's kernel."""

    def __getitem__(self, grid: tuple[int, ...], /) -> _Launch: ...


class Kernel(Generic[P]):
    """A kernel. `kernel[grid](...)` enqueues it on the current stream."""

    def __init__(self, function: Callable[P, None], num_warps: int, aligned: bool) -> None:
        """Decorate its function, which is compiled at the first launch."""
        self.compiled: _Compiled = triton.jit(function)
        self.num_warps = num_warps
        self._aligned = aligned and not INTERPRETED
        self._variants: dict[tuple[object, ...], _Compiled] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[P, object]:
        """The launch of a grid of programs."""
        if self._aligned:
            return partial(self._launch, grid)
        return partial(self.compiled[grid], num_warps=self.num_warps)

    def _launch(self, grid: tuple[int, ...], *args: P.args, **_: P.kwargs) -> None:
        """Triton examines each argument to find the compiled variant; here the numbers among them suffice."""
        key = (torch.cuda.current_device(), *(arg for arg in args if not isinstance(arg, torch.Tensor)))
        variant = self._variants.get(key)
        if variant is None:
            variant = self.compiled[grid](*args, num_warps=self.num_warps)  # type: ignore[assignment]
            assert variant is not None
            self._variants[key] = variant
        else:
            variant[(*grid, 1, 1)[:3]](*args)


def kernel(num_warps: int = 4, *, aligned: bool = False) -> Callable[[Callable[P, None]], Kernel[P]]:
    """Make a function a kernel; each program has `num_warps` warps.

    `aligned`: each of its tensors always has the same type and begins at a multiple of 16 bytes, and all arguments of a
    launch are positional.
    """
    return lambda function: Kernel(function, num_warps, aligned)
