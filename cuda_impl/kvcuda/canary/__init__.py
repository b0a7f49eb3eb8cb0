"""The canary: a memory sanitizer on the device, for any engine with a paged KV cache.

canary, pools       the engine's side: its pools once, each forward pass before it runs
violations          the violations that the host reads
chain               labels, on the host
perturb             injected faults, for the self-test
words, kernels      below: the layout of the words that travel, and the kernels, with their parts: `slots`,
                    `verification`, `stamping`
"""

from kvcuda.canary.canary import Canary
from kvcuda.canary.pools import START, Known, Pass, Places, Pool, Span, States, spans_of
from kvcuda.canary.violations import Held, Violation
from kvcuda.canary.words import Kind, ViolationKind

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
    "ViolationKind",
    "spans_of",
]
