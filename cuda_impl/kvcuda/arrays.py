"""Types of the host's arrays."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
"""Rows, lengths, and places, one for each request."""
Words: TypeAlias = npt.NDArray[np.int32]
"""Words of a kernel."""
