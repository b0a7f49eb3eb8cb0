"""The canary: a memory sanitizer on the device, for any engine with a paged KV cache.

canary, pools       what an engine tells: its pools once, each forward pass before it runs
violations          what was found
chain               labels, on the host
perturb             defects that are put in to see that they are found
words, kernels      below it: the layout of what travels, and the kernels
"""

from kvcuda.canary.canary import Canary
from kvcuda.canary.pools import START, Known, Pass, Places, Pool, Span, States, spans_of
from kvcuda.canary.violations import Held, Violation
from kvcuda.canary.words import Kind, What

__all__ = [
    "START",
    "Canary",
    "Held",
    "Kind",
    "Known",
    "Pass",
    "Places",
    "Pool",
    "Span",
    "States",
    "Violation",
    "What",
    "spans_of",
]
