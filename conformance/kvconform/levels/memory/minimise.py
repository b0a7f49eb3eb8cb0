"""The shortest part of a trace that still shows a finding.

A part shows it under these conditions:

- Its last event makes a finding of the same code, place and details.
- It makes no finding that the whole trace does not make: a missing event must not cause one.
- It keeps the ledger of the finding's holder.
- Before its last event the references, names and operations in flight of the page come from the same events as in the
  whole trace. So no event is missing that ended one of them.
- If the page had no holder before the last event, the same event released it last.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kvcheck import Checker, Malformed
from kvconform.levels.memory.grouping import Group
from kvconform.levels.memory.reductions import (
    PARTS,
    About,
    Operations,
    holders_in,
    last_release,
    narrowed,
    operations_in,
    pages_in,
    parts,
    standing,
)
from kvconform.levels.memory.slicing import LOOKS, near_announcement, slices, uses_in
from kvconform.levels.minimising import Effort, minimize
from kvconform.signals import caught, until_interrupted
from kvconform.traces.bounds import search_seconds
from kvconform.traces.merging import Source, open_memory, size_of
from kvspec.memory.events import (
    Announce,
    Begin,
    Count,
    EndHolder,
    Idle,
    MemoryEvent,
    Page,
    Pages,
    Pool,
    Receive,
    Reserve,
    Send,
    Unify,
    Wait,
)

LONGEST = 20_000
"""The most events that are tried, because each attempt checks all of them again."""

LEAST = 300_000
"""Events that a search may check for the smallest file."""
MACHINE = 10
"""A machine may be so many times slower than usual before the time, and not the effort, ends the search."""
PAIRED = 40
"""The most events of which two at a time are tried."""

NEAR = 20
"""Of a longer trace only the events of the page's last holders are tried, at most so many holders."""


class Step(NamedTuple):
    """An event, which may be narrowed, and its line."""

    line: int
    event: MemoryEvent


class Cut(NamedTuple):
    """The shortest part of the trace that was found."""

    steps: list[Step]
    total: int
    """Events up to the finding."""
    complete: bool
    """Whether the finding is lost if any one further event is left out. If not, the search was stopped."""
    last_release: tuple[int, MemoryEvent] | None
    """The last release in the whole trace; see `reductions.last_release`."""

    @property
    def is_shortest(self) -> bool:
        """Whether the finding is also lost if any two further events are left out."""
        return self.complete and len(self.steps) <= PAIRED


Identities = set[tuple[object, ...]]


def effort_for(size: int) -> Effort:
    """The effort for all findings of a file of `size` bytes."""
    return Effort(LEAST + size, MACHINE * search_seconds(size))


def _cost(steps: Sequence[Step]) -> int:
    return sum(_units(step.event) for step in steps)


def _units(event: MemoryEvent) -> int:
    """The cost of checking an event, in units of the cheapest."""
    if isinstance(event, Begin):
        uses = [*uses_in(event)]
        return 1 + (sum(_numbers(use.pages) + len(use.labels or ()) // 2 for use in uses) + 4 * len(uses)) // 8
    if isinstance(event, Count):
        lists = (event.free, event.cached, event.held)
        return 1 + sum(_numbers(pages) for pages in lists if isinstance(pages, list)) // 2
    pages = getattr(event, "pages", None)
    return 1 + _numbers(pages) // 4 if isinstance(pages, list) else 1


def _numbers(pages: Pages) -> int:
    return sum(abs(run[1]) if isinstance(run, tuple) else 1 for run in pages)


def shortest_cuts(path: Source, groups: Sequence[Group], identities: Identities, seconds: float) -> list[Cut | None]:
    """For each group the shortest part of the trace in `path` that shows its first finding; `None` if none is found.

    `identities` are those of all findings of the trace. The effort follows the size of the file, and each finding gets
    `seconds` at most. Of a trace of more than `LONGEST` events only those near the finding are tried: first those of
    its page's holders, then those of holders that shared a page with them. The trace is read at most five times,
    however many groups there are. An interrupted search returns the parts found so far.
    """
    cuts: dict[int, Cut] = {}
    with until_interrupted():
        if not caught():
            _find_cuts(path, groups, identities, seconds, cuts)
    return [cuts.get(id(group)) for group in groups]


def _find_cuts(
    path: Source, groups: Sequence[Group], identities: Identities, seconds: float, cuts: dict[int, Cut]
) -> None:
    whole = effort_for(size_of(path))
    with open_memory(path) as trace:
        pools = trace.header.pools
    short = [group for group in groups if group.finding.event <= LONGEST]
    steps = list(_read(path, max((group.finding.event for group in short), default=0)))
    for group in short:
        effort = whole.part(LEAST // 2, seconds)
        found = cut(pools, steps[: group.finding.event], group, identities, effort)
        if found is not None:
            cuts[id(group)] = found
    left = [_Near(group, pools) for group in groups if group.finding.event > LONGEST]
    for _ in range(2):
        last = max((near.group.finding.event for near in left), default=0)
        for step in _read(path, last):
            pages, holders = pages_in(step.event), holders_in(step.event)
            for near in left:
                near.look(pages, holders)
        for near in left:
            near.choose()
        for number, step in enumerate(_read(path, last), start=1):
            for near in left:
                near.keep(number, step)
        for near in left:
            found = near.cut(identities, whole.part(LEAST // 2, seconds))
            if found is not None:
                cuts[id(near.group)] = found
        left = [near for near in left if id(near.group) not in cuts]


def cut(pools: dict[str, Pool], steps: list[Step], group: Group, identities: Identities, effort: Effort) -> Cut | None:
    """The shortest part of `steps`, whose last event makes the finding; `None` if they do not show it."""
    search = _Search(pools, group, steps, identities, effort)
    try:
        if not (search.begins(steps) or search.shows(steps)):
            return None
        # First leave out events that change nothing, then those that seldom matter.
        for kinds in (LOOKS, EndHolder | Reserve | Unify, Wait | Send | Receive):
            search.shows([step for step in search.best[:-1] if not isinstance(step.event, kinds)] + search.best[-1:])
        keyed = {name for name, pool in pools.items() if pool.keyed}
        whole = search.best
        names = list(dict.fromkeys(name for step in whole for name in holders_in(step.event)))
        minimize(names, lambda kept: search.shows(_kept(whole, About(set(kept), keyed))))
        before = None
        while before is not search.best:
            before = search.best
            _leave_out(search)
    except TimeoutError:
        return Cut(search.best, len(steps), False, search.last_release) if search.best else None
    return Cut(search.best, len(steps), True, search.last_release)


def _leave_out(search: "_Search") -> None:
    """Leave out events, uses, pairs, and whole operations, whose begin and end cannot go one without the other."""
    queued = search.best
    minimize(operations_in(queued[:-1]), lambda kept: search.shows(_kept(queued, Operations(kept))))
    minimize(search.best[:-1], lambda kept: search.shows(kept + search.best[-1:]))
    _narrow(search)
    best = search.best
    if len(best) <= PAIRED:
        pairs = ({first, second} for second in range(len(best) - 1) for first in range(second))
        any(search.shows([step for at, step in enumerate(best) if at not in pair]) for pair in pairs)


class _Search:
    """The best part so far."""

    def __init__(
        self, pools: dict[str, Pool], group: Group, whole: Sequence[Step], identities: Identities, effort: Effort
    ) -> None:
        finding = group.finding
        self._required = {step.line: step for step in whole if step.line in group.required}
        self._pools, self._finding, self._identities, self._effort = pools, finding, identities, effort
        self._stands = self._standing(whole)
        self.last_release = last_release(whole[:-1], finding)
        self.best: list[Step] = []

    def begins(self, whole: Sequence[Step]) -> bool:
        """Whether a slice of the whole shows the finding."""
        for numbered in slices(whole, self._finding, self._pools):
            self._effort.spend(_cost(whole) // 4)  # the slice is only read, not checked
            if not numbered or numbered[-1][0] != whole[-1].line:
                continue
            slice_ = {line: Step(line, event) for line, event in numbered}
            part = [step for _, step in sorted((self._required | slice_).items())]
            # Other pages of the last event would lack the events that are left out, so this event is cut first. If the
            # finding is about those pages, the whole event is needed.
            if self.shows(part) or self.shows([*part[:-1], whole[-1]]):
                return True
        return False

    def shows(self, steps: Sequence[Step]) -> bool:
        """Whether these events show the finding. If so they are the best so far, since only shorter parts are tried.

        Raises:
            TimeoutError: the effort was already spent.
        """
        if self._effort.is_spent:
            raise TimeoutError
        self._effort.spend(_cost(steps))
        kept = self._has_ledger(steps) and self._standing(steps) <= self._stands
        if not (kept and self._is_released(steps) and self._finds_the_same(steps)):
            return False
        self.best = list(steps)
        return True

    def _has_ledger(self, steps: Sequence[Step]) -> bool:
        """Whether the part has all events by which the finding's holder got and released its page."""
        if not self._required:
            return True
        page = self._finding.pool or "", self._finding.page
        lines = {step.line for step in steps if step.line in self._required and _is_about(step.event, page)}
        return lines == self._required.keys()

    def _standing(self, steps: Sequence[Step]) -> set[tuple[object, int]]:
        return standing(steps[:-1], self._finding.pool, self._finding.page)

    def _is_released(self, steps: Sequence[Step]) -> bool:
        """Whether the same event was the page's last release. For a leak the releases of its holder may be left out."""
        if self.last_release is None or self._finding.rule == "MEM-LEAK":
            return True
        last = last_release(steps[:-1], self._finding)
        return last is not None and last[0] == self.last_release[0]

    def _finds_the_same(self, steps: Sequence[Step]) -> bool:
        checker = Checker(self._pools)
        found: Identities = set()
        try:
            for step in steps:
                found = {finding.identity for finding in checker.step(step.event)}
                if not found <= self._identities:
                    return False
        except Malformed:
            return False
        return self._finding.identity in found


def _is_about(event: MemoryEvent, page: tuple[str, Page | None]) -> bool:
    """Whether an event, narrowed or not, is about a page: it names this page, or no page at all."""
    named = [*pages_in(event)]
    return not named or page in named


def _narrow(search: _Search) -> None:
    """Leave out pages and uses of the remaining events."""
    for index in range(len(search.best) - 1, -1, -1):
        for field in PARTS:
            before = search.best
            if index >= len(before) or (count := parts(before[index].event, field)) < 1 + (field == "pages"):
                continue

            def still(kept: list[int], before: list[Step] = before, index: int = index, field: str = field) -> bool:
                step = Step(before[index].line, narrowed(before[index].event, field, kept))
                return search.shows([*before[:index], step, *before[index + 1 :]])

            minimize(list(range(count)), still)


def _kept(steps: Sequence[Step], about: Callable[[MemoryEvent], MemoryEvent | None]) -> list[Step]:
    """The reduced events, with the last one unchanged."""
    kept = ((step.line, about(step.event)) for step in steps[:-1])
    return [*(Step(line, event) for line, event in kept if event is not None), *steps[-1:]]


def _read(path: Source, total: int) -> Iterator[Step]:
    with open_memory(path) as trace:
        for line, event in islice(trace, total):
            yield Step(line, event)


class _Near:
    """The events of a long trace that are about a finding's page and holder, and those that they need."""

    def __init__(self, group: Group, pools: dict[str, Pool]) -> None:
        """Begin with the page and the holder of the finding."""
        self.group = group
        self._pools = pools
        self._keyed = {name for name, pool in pools.items() if pool.keyed}
        self._pages = {(group.finding.pool or "", group.finding.page)}
        self._holders: dict[str, None] = {}
        self._about = About((), ())
        self._steps: list[Step] = []

    def look(self, pages: Sequence[tuple[str, Page]], holders: Sequence[str]) -> None:
        """Remember the last holders of the pages."""
        if holders and not self._pages.isdisjoint(pages):
            for name in holders:
                self._holders.pop(name, None)
                self._holders[name] = None
                if len(self._holders) > NEAR:
                    del self._holders[next(iter(self._holders))]

    def choose(self) -> None:
        """Keep the events of these holders from now on, and those of the finding's holder."""
        own = self.group.finding.holder
        self._about = About({*self._holders, *([] if own is None else [own])}, self._keyed)
        self._steps = []

    def keep(self, number: int, step: Step) -> None:
        """Keep the parts of an event that are about the holders, or about an announced block."""
        due = self.group.finding.event
        if number >= due or len(self._steps) > LONGEST:
            if number == due:
                self._steps.append(step)
            return
        if isinstance(step.event, Announce):
            event: MemoryEvent | None = near_announcement(step.event, self.group.finding)
        else:
            event = None if isinstance(step.event, (Count, Idle)) else self._about(step.event)
        if event is not None:
            self._steps.append(Step(step.line, event))

    def cut(self, identities: Identities, effort: Effort) -> Cut | None:
        """The shortest part, if the kept events show the finding. If not, the next look goes further."""
        found = None
        if len(self._steps) <= LONGEST:
            found = cut(self._pools, self._steps, self.group, identities, effort)
        self._pages.update(page for step in self._steps for page in pages_in(step.event))
        return None if found is None else found._replace(total=self.group.finding.event)
