"""A table of rows past 2^31 elements of which no memory is touched but what is written."""

from typing import Any

import numpy as np
import pytest
import torch

from kvcuda.backend import DEVICE


def reserve_only(patch: pytest.MonkeyPatch) -> None:
    """From now on zeros of several dimensions take address space alone, so that no machine has to have all of it."""
    if DEVICE == "cpu":
        # numpy's zeros are not touched until they are written; torch's are.
        zeros = torch.zeros

        def untouched(*shape: Any, **options: Any) -> Any:
            rows = len(shape) == 1 and isinstance(shape[0], tuple)
            return torch.from_numpy(np.zeros(shape[0], np.int32)) if rows else zeros(*shape, **options)

        patch.setattr(torch, "zeros", untouched)
    # Triton's interpreter copies each tensor onto itself after a launch.
    copy = torch.UntypedStorage.copy_
    patch.setattr(
        torch.UntypedStorage,
        "copy_",
        lambda to, of, *rest: to if to.data_ptr() == of.data_ptr() else copy(to, of, *rest),
    )
