"""The chain digest: a label names a token prefix, the same on host and device.

    label(tokens[:n]) = sum over i < n of mix(token i * M2 + i + 1), in 64 bits

Because it is a sum, a block of a prefill is labelled at once, and each link of a chain is verified by itself. Each term
contains its position, so the order of tokens counts. 0 is the label of no tokens, and of a slot that was never written.
"""

from collections.abc import Sequence

import numpy as np

from kvcuda.digest import mix as _mix
from kvcuda.digest import signed
from kvcuda.digest_kernels import MULTIPLIERS

_M1, _M2 = (np.int64(multiplier) for multiplier in MULTIPLIERS)


def term(token: int, position: int) -> int:
    """The contribution of one token to the label of its prefix."""
    return _mix(signed(token * int(_M2) + position + 1))


def extended(label: int, tokens: Sequence[int], start: int) -> int:
    """The label of a prefix of `start` tokens that has `label`, and of `tokens` behind it."""
    if len(tokens) < 8:
        return signed(label + sum(term(token, start + i) for i, token in enumerate(tokens)))
    with np.errstate(over="ignore"):
        x = np.asarray(tokens, dtype=np.int64) * _M2 + np.arange(start + 1, start + 1 + len(tokens))
        x = (x ^ (x >> 32)) * _M1
        x = (x ^ (x >> 29)) * _M2
        return signed(label + int((x ^ (x >> 32)).sum()))


class Prefix:
    """The label of a growing prefix of one request's tokens."""

    __slots__ = ("label", "length")

    def __init__(self) -> None:
        """No tokens yet."""
        self.length = 0
        self.label = 0

    def grown(self, tokens: Sequence[int], length: int) -> int:
        """The label of the first `length` tokens. Only tokens past the last call's are digested."""
        if length < self.length:
            self.length = self.label = 0
        self.label = extended(self.label, tokens[self.length : length], self.length)
        self.length = length
        return self.label
