"""Counts the rows that sglang-jax hands on under a launch, if launches got the rows themselves.

    python -m tests.kvlab.jax_rows CHECKOUT RUNS

A row is handed on between two chunks if it is written for another request while a launch reads it for one that has got
another row since.
"""

import sys
from collections import Counter
from pathlib import Path

from kvattach.patches import Patches
from kvlab.drives import CheckedTrace
from kvlab.injection import inject_fault
from kvlab.sglang_jax.trial import trial
from kvspec.memory.events import Begin, MemoryEvent, Take, Use

FAULT = "rows where they lie"


class Rows(CheckedTrace):
    """Notes when each holder got its row and when each operation was queued, by the number of events until then."""

    def __init__(self) -> None:
        """Nothing is noted yet."""
        super().__init__()
        self.handed_on = Counter[str]()
        self._got: dict[str | None, int] = {}
        self._queued: dict[object, tuple[int, Begin]] = {}

    def emit(self, *events: MemoryEvent) -> None:
        """Check events."""
        for event in events:
            self._check(event)

    def _check(self, event: MemoryEvent) -> None:
        before = len(self.found)
        super().emit(event)
        if isinstance(event, Take) and event.pool == "rows":
            self._got[event.holder] = self.events
        if not isinstance(event, Begin):
            return
        self._queued[event.id] = self.events, event
        for _, finding in self.found[before:]:
            assert finding.code == "MEM-RACE/write" and finding.pool == "rows" and finding.other, finding
            queued, launch = self._queued[finding.other[0]]
            reader = _holder(launch.reads, finding.page)
            if reader != _holder(event.writes, finding.page):
                self.handed_on["between chunks" if self._got[reader] > queued else "at an end"] += 1


def _holder(uses: list[Use], row: int | str | None) -> str | None:
    return next(use.holder for use in uses if use.pool == "rows" and [*use.pages] == [row])


def main(folder: Path, runs: int) -> None:
    """Print how often a row was handed on."""
    patches, trace, driven = Patches(), Rows(), trial(folder)
    assert driven.fix is not None
    driven.fix(patches)
    inject_fault(next(defect for defect in driven.defects if defect.name == FAULT), patches)
    hooks = driven.attach(trace)
    for seed in range(runs):
        driven.run(seed)
    assert hooks.problem is None, hooks.problem
    between, ends = trace.handed_on["between chunks"], trace.handed_on["at an end"]
    print(f"{between} rows handed on between chunks, {ends} at an end, {trace.events:,} events")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
