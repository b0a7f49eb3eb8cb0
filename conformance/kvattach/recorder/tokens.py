"""Token ids in a trace: numbers that are equal if the ids are, and reveal nothing else.

A trace needs token ids only to compare prefixes. So an id is mixed with its position, with the engine's extra key, and
with a random number that is never written. This hides the text from a reader of the file. It is no encryption: it does
not resist an attacker who knows part of the text.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

_MASK = 2**64 - 1
_BY_TOKEN, _BY_POSITION, _MIX = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93
_AT_ONCE = 64
"""From so many tokens on a call of numpy pays off."""

Encode = Callable[[Sequence[int], int, str | None], list[int]]
"""Encodes token ids for a trace: a function of the ids, the position of the first one, and the extra key."""


def as_they_are(tokens: Sequence[int], start: int, apart: str | None) -> list[int]:
    """The unchanged ids. The extra key must be `None`."""
    if apart is not None:
        raise ValueError("requests with an extra key can only be recorded with hidden tokens")
    return list(tokens)


class Hidden:
    """Numbers of 32 bits instead of token ids."""

    def __init__(self, secret: int | None = None) -> None:
        """Draw a secret that is never written."""
        self._secret = int.from_bytes(os.urandom(8), "little") if secret is None else secret
        self._numpy: Any = None
        with contextlib.suppress(ImportError):
            self._numpy = importlib.import_module("numpy")

    def __call__(self, tokens: Sequence[int], start: int, apart: str | None) -> list[int]:
        """See `Encode`."""
        offset = self._secret + start * _BY_POSITION
        if apart is not None:
            offset += int.from_bytes(blake2b(apart.encode(), digest_size=8).digest(), "little")
        if self._numpy is None or len(tokens) < _AT_ONCE:
            return [_mixed(token * _BY_TOKEN + offset + i * _BY_POSITION & _MASK) for i, token in enumerate(tokens)]
        return self._all_at_once(tokens, offset & _MASK)

    def _all_at_once(self, tokens: Sequence[int], offset: int) -> list[int]:
        numpy = self._numpy
        x = numpy.asarray(tokens, dtype=numpy.int64).astype(numpy.uint64)
        x *= numpy.uint64(_BY_TOKEN)
        x += numpy.arange(len(x), dtype=numpy.uint64) * numpy.uint64(_BY_POSITION)
        x += numpy.uint64(offset)
        x ^= x >> numpy.uint64(32)
        x *= numpy.uint64(_MIX)
        numbers: list[int] = (x >> numpy.uint64(32)).tolist()
        return numbers


def _mixed(x: int) -> int:
    x ^= x >> 32
    return (x * _MIX & _MASK) >> 32
