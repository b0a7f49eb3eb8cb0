"""The shortest part of a trace that still shows a finding.

A part shows it if its last event is found to break the same rule in the same words, and nothing is found in it that
was not found in the whole: events that are missing must not make findings of their own.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kvconform.findings.shrink import minimize
from kvconform.memory.cutting import PARTS, About, closed, holders_in, narrowed, pages_in, parts
from kvconform.memory.judge import Group
from kvconform.traces.memory import MemoryReader, open_trace
from kvspec.memory import Law, Malformed
from kvspec.memory.events import Count, Idle, MemoryEvent, Pool

LONGEST = 20_000
"""Events that are tried at most, because each attempt judges all of them again."""

NEAR = 20
"""Of a longer trace only what the last so many holders of the page did is tried."""


class Step(NamedTuple):
    """An event, and the line it stands on; the event may be narrowed."""

    line: int
    event: MemoryEvent


class Cut(NamedTuple):
    """The shortest part that was found."""

    steps: list[Step]
    total: int
    """Events up to the finding."""
    complete: bool
    """Whether leaving out any one event more would lose it; else the time was up."""


Said = set[tuple[str, str]]


def shortest_cut(path: Path, group: Group, said: Said, seconds: float) -> Cut | None:
    """The shortest part of the trace in `path` that shows the first finding of `group`; `None` if there is none.

    `said` is what was found in the whole. A trace of more than `LONGEST` events is first narrowed to the holders that
    the finding is about, and nothing is found if these do not show it by themselves.
    """
    deadline = time.monotonic() + seconds
    total = group.finding.event
    with open_trace(path) as trace:
        assert isinstance(trace, MemoryReader)
        pools = trace.header.pools
    if total <= LONGEST:
        return cut(pools, list(_read(path, total)), group, said, deadline)
    for steps in _near(path, pools, group, total, deadline):
        found = cut(pools, steps, group, said, deadline)
        if found is not None:
            return found._replace(total=total)
    return None


def cut(pools: dict[str, Pool], steps: list[Step], group: Group, said: Said, deadline: float) -> Cut | None:
    """The shortest part of `steps`, whose last event makes the finding; `None` if they do not show it."""
    search = _Search(pools, (group.finding.rule, group.finding.what), said, deadline)
    if not search.shows(steps):
        return None
    try:
        search.shows([step for step in steps[:-1] if not isinstance(step.event, (Count, Idle))] + steps[-1:])
        whole = search.best
        names = list(dict.fromkeys(name for step in whole for name in holders_in(step.event)))
        keyed = {name for name, pool in pools.items() if pool.keyed}
        minimize(names, lambda kept: search.shows(_about(whole, kept, keyed)))
        minimize(search.best[:-1], lambda kept: search.shows(kept + whole[-1:]))
        _narrow(search)
        minimize(search.best[:-1], lambda kept: search.shows(kept + search.best[-1:]))
    except TimeoutError:
        return Cut(search.best, len(steps), complete=False)
    return Cut(search.best, len(steps), complete=True)


class _Search:
    """The best part so far."""

    def __init__(self, pools: dict[str, Pool], wanted: tuple[str, str], said: Said, deadline: float) -> None:
        self._pools, self._wanted, self._said, self._deadline = pools, wanted, said, deadline
        self.best: list[Step] = []

    def shows(self, steps: Sequence[Step]) -> bool:
        """Whether these events show it; if so they are the best so far, since only shorter ones are tried.

        Raises:
            TimeoutError: the time was up before.
        """
        if self.best and time.monotonic() > self._deadline:
            raise TimeoutError
        tried = [*closed(steps[:-1], lambda step: step.event), *steps[-1:]]
        if not self._judged(tried):
            return False
        self.best = tried
        return True

    def _judged(self, steps: Sequence[Step]) -> bool:
        law = Law(self._pools)
        found: Said = set()
        try:
            for step in steps:
                found = {(finding.rule, finding.what) for finding in law.step(step.event)}
                if not found <= self._said:
                    return False
        except Malformed:
            return False
        return self._wanted in found


def _narrow(search: _Search) -> None:
    """Leave out pages and uses of the events that are left."""
    for index in range(len(search.best) - 1, -1, -1):
        for field in PARTS:
            before = search.best
            if index >= len(before) or (count := parts(before[index].event, field)) < 2:
                continue

            def still(kept: list[int], before: list[Step] = before, index: int = index, field: str = field) -> bool:
                step = Step(before[index].line, narrowed(before[index].event, field, kept))
                return search.shows([*before[:index], step, *before[index + 1 :]])

            minimize(list(range(count)), still)


def _about(steps: Iterable[Step], holders: Iterable[str], keyed: set[str]) -> list[Step]:
    about = About(set(holders), keyed)
    kept = ((step.line, about(step.event)) for step in steps)
    return [Step(line, event) for line, event in kept if event is not None]


def _read(path: Path, total: int) -> Iterator[Step]:
    with open_trace(path) as trace:
        assert isinstance(trace, MemoryReader)
        for number, (line, event) in enumerate(trace, start=1):
            yield Step(line, event)
            if number == total:
                return


def _near(path: Path, pools: dict[str, Pool], group: Group, total: int, deadline: float) -> Iterator[list[Step]]:
    """The part of the last holders of the page; then that of the last who had a page in common with these."""
    keyed = {name for name, pool in pools.items() if pool.keyed}
    own = group.finding.holder
    pages = {(group.finding.pool or "", group.finding.page)}
    named: dict[str, None] = {}
    for _ in range(2):
        for step in _read(path, total):
            if any(page in pages for page in pages_in(step.event)):
                for name in holders_in(step.event):
                    named.pop(name, None)
                    named[name] = None
            if time.monotonic() > deadline:
                return
        about = About({*list(named)[-NEAR:], *([] if own is None else [own])}, keyed)
        steps: list[Step] = []
        for step in _read(path, total):
            event = step.event if step.line == group.line else about(step.event)
            if event is not None and (step.line == group.line or not isinstance(event, (Count, Idle))):
                steps.append(Step(step.line, event))
            if len(steps) > LONGEST or time.monotonic() > deadline:
                break
        else:
            yield steps
        pages.update(page for step in steps for page in pages_in(step.event))
