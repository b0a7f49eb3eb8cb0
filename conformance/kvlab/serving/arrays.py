"""Fixes where the memory of numpy's arrays begins, which otherwise depends on chance.

On a CPU jax takes an array without a copy if it begins at a multiple of 64 bytes.
"""

from typing import Any

import numpy


def begin_arrays(past: int) -> None:
    """Make the arrays of `numpy.zeros` begin `past` bytes after a multiple of 64."""
    zeros = numpy.zeros

    def placed(shape: Any, dtype: Any = float, *args: Any, **named: Any) -> Any:
        made = zeros(shape, dtype, *args, **named)
        if args or named or not made.nbytes or made.dtype.hasobject:
            return made
        room = zeros(made.nbytes + 128, numpy.uint8)
        first = -room.ctypes.data % 64 + past
        return room[first : first + made.nbytes].view(made.dtype).reshape(made.shape)

    setattr(numpy, "zeros", placed)  # noqa: B010
