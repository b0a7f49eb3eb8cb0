"""Triton's decorator for kernels, with types: a launch takes the arguments of the kernel's function, and no others."""

from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, Protocol

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import triton
# isort: on

P = ParamSpec("P")


class _Launch(Protocol):
    """A launch as Triton makes it: of anything."""

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class _Compiled(Protocol):
    """A kernel as Triton makes it."""

    def __getitem__(self, grid: tuple[int, ...], /) -> _Launch: ...


class Kernel(Generic[P]):
    """A kernel. `kernel[grid](...)` enqueues it on the current stream."""

    def __init__(self, function: Callable[P, None], num_warps: int) -> None:
        """Decorate its function; it is compiled when it is launched first."""
        self.compiled: _Compiled = triton.jit(function)
        self.num_warps = num_warps

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[P, object]:
        """The launch of a grid of programs."""
        return partial(self.compiled[grid], num_warps=self.num_warps)


def kernel(num_warps: int = 4) -> Callable[[Callable[P, None]], Kernel[P]]:
    """Make a function a kernel whose programs have so many warps."""
    return lambda function: Kernel(function, num_warps)
