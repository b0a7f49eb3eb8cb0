"""The record of a forward pass until it completes."""

from kvref.request import Run


class Launch:
    """One forward pass in flight, and the runs that still wait for its results, by request."""

    __slots__ = ("drafted", "number", "sampled")

    def __init__(self, number: int) -> None:
        """A launch without results to wait for yet."""
        self.number = number
        self.sampled: dict[str, Run] = {}
        """The runs that get a token."""
        self.drafted: dict[str, Run] = {}
        """The runs that get positions to verify."""

    def forget(self, req: str) -> None:
        """Drop the results for a run that has ended; they must not reach its request's next run."""
        self.sampled.pop(req, None)
        self.drafted.pop(req, None)
