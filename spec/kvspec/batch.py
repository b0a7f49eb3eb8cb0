"""The conditions under which requests share a prefill batch (20476)."""

from typing import NamedTuple

from kvspec.contracts import ensure, require


class Chunking(NamedTuple):
    """A prefill batch seen from its chunks: counts of requests."""

    continuing: int
    """Requests of the batch that an earlier batch left in the middle of their prefill."""
    newly_chunked: int
    """Requests of the batch that begin their prefill and do not end it."""
    left: int
    """Requests in the middle of their prefill once the batch has run, in the batch or not."""


@require(lambda chunking: min(chunking) >= 0)
@ensure(
    lambda chunking, result: (
        (result is None) == (chunking.continuing <= 1 and chunking.newly_chunked <= 1 and chunking.left <= 1)
    )
)
def broken_rule(chunking: Chunking) -> str | None:
    """The rule that a batch of this shape breaks, BATCH-1 or BATCH-2, or `None`."""
    if chunking.continuing > 1 or chunking.newly_chunked > 1:
        return "BATCH-1"
    return "BATCH-2" if chunking.left > 1 else None
