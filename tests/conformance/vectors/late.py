"""Implementations that withhold the rows of released requests longer than they must (RACE-1)."""

from typing import Any

from kvref import Manager
from kvref.req_to_token_pool import ReqToTokenPool
from kvspec.events import Config


class _Late(ReqToTokenPool):
    """Withholds each row that is released under launches, also one that none of them reads."""

    def free(self, row: int) -> None:
        if self._withholds and self._reads:
            self._withheld.add(row)
        else:
            super().free(row)

    def _flush(self) -> None:
        self._free += sorted(self._withheld)
        self._withheld.clear()


class _UntilNothingIsInFlight(_Late):
    def end_read(self) -> None:
        self._reads.popleft()
        if not self._reads:
            self._flush()


class _UntilTheCompletionAfter(_Late):
    """Defers by an iteration: a row that no launch read at one completion is free at the next one (17850)."""

    drains = True

    def __init__(self, *args: Any, **sizes: Any) -> None:
        super().__init__(*args, **sizes)
        self._deferred = set[int]()

    def end_read(self) -> None:
        self._reads.popleft()
        self._free += sorted(self._deferred)
        self._withheld -= self._deferred
        self._deferred = {row for row in self._withheld if not self.is_read(row)}
        if self.drains and not self._reads:
            self._flush()
            self._deferred.clear()


class _UntilTheNextCompletion(_UntilTheCompletionAfter):
    drains = False


class UntilNothingIsInFlight(Manager):
    """Gives rows back when the last launch in flight has completed."""

    pool_class: type[ReqToTokenPool] = _UntilNothingIsInFlight

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pool = self.pool_class(
            config.num_rows, config.num_states, config.tracking_states, withholds=config.withholds_rows
        )
        self.tree_cache.pool = self.session_cache.pool = self.pool


class UntilTheCompletionAfter(UntilNothingIsInFlight):
    """Gives rows back a completion late, but withholds none with nothing in flight."""

    pool_class = _UntilTheCompletionAfter


class UntilTheNextCompletion(UntilNothingIsInFlight):
    """Gives rows back a completion late, also where no launch is in flight whose completion could come."""

    pool_class = _UntilTheNextCompletion
