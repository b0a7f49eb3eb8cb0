"""An implementation that samples itself: the tokens that it is handed are nothing to it."""

from kvref import Manager
from kvspec.events import CompleteAnswer, Config


class Samples(Manager):
    """Appends tokens of its own, unlike any that it is handed, and says so."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._next = 1_000_000

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        due = dict(self.launches[0].sampled) if self.launches else {}
        own = dict(zip(due, range(self._next, self._next + len(due)), strict=True))
        super().complete(launch, own)
        self._next += len(own)
        return CompleteAnswer(own)


class ReportsOneLess(Samples):
    """Appends a token that it does not report."""

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        reported = super().complete(launch, tokens).tokens or {}
        return CompleteAnswer(dict(list(reported.items())[1:]))


class ReportsAnother(Samples):
    """Appends one token and reports another."""

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        reported = super().complete(launch, tokens).tokens or {}
        return CompleteAnswer({req: token + 1 for req, token in reported.items()})
