"""Where the kernels run: on a GPU, or on the CPU in Triton's interpreter.

Import this before `triton`: Triton decides while a kernel is decorated whether it compiles or interprets it.
"""

import os

import torch

from kvcuda.interpreter import quicken

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted on the CPU."""

if INTERPRETED:
    quicken()

DEVICE: str = "cpu" if INTERPRETED else "cuda"
"""Where tensors live."""
