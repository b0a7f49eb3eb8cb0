"""Renders memory-level traces and findings; only this module reads the state of the memory checker."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from kvcheck import Checker
from kvcheck import Finding as Broken
from kvcheck.pages import HOLE, PageState
from kvcheck.pools import PoolState
from kvcheck.races import used
from kvcheck.state import State
from kvcheck.words import describe
from kvconform.console import Described
from kvconform.errors import short
from kvconform.findings.finding import Cell, Finding, Moment, Place, Rule, Trace, by_number, spans
from kvconform.findings.wording import counted, origin
from kvconform.levels.drawing import DRAWN, KEPT, Seen, builtins, drawn
from kvconform.levels.memory.grouping import Group, Grouped
from kvconform.levels.memory.ledger import sequences_in_words
from kvconform.levels.memory.minimise import Cut, Identities, Step, shortest_cuts
from kvconform.levels.memory.reductions import holders_in, last_release, pages_in, singly
from kvconform.levels.memory.sentences import part_of, sentence
from kvconform.signals import caught
from kvconform.traces.merging import Parts, Source, open_memory, places
from kvspec.memory import Pool
from kvspec.memory.events import Begin, End, MemoryEvent, Page, Unmap, Use
from kvspec.rules import MEMORY_RULES

DESCRIBED = 20
"""The most causes described in full, each with the shortest part of the trace that shows it. Others get a line."""
SAID = 8
"""The most findings of one event that are listed beside it. Further findings are counted."""
_HELD = 12
"""The most pages of a pool that are listed for a holder."""

Chosen = Callable[[int, MemoryEvent, State, list[str]], bool]
"""Whether an event is shown, by its number, the event, the checker's state after it, and the event's holders."""


class Renderer:
    """Checks a trace event by event, and keeps the chosen moments."""

    def __init__(self, pools: dict[str, Pool], chosen: Chosen = lambda *_: True, holder: str | None = None) -> None:
        """Begin with all pools free. With a `holder` only its part of batches is described."""
        self.pools = pools
        self._holder = holder
        self.checker = Checker(pools)
        self._chosen = chosen
        self._seen = deque[Seen](maxlen=KEPT)
        self._events = 0

    def step(self, line: int, event: MemoryEvent) -> list[Broken]:
        """Check the event on `line`. Returns its findings.

        Raises:
            Malformed: the event makes no sense for any engine.
        """
        self._events += 1
        state = self.checker.state
        about = list(dict.fromkeys(concerned(event, state)))
        found = self.checker.step(event)
        if self._chosen(self._events, event, state, about):
            wrong = {(one.pool, one.page) for one in found}
            named = set(named_in(event, state))
            cells = {name: _cells(state, name, named, wrong) for name in state.pools}
            says = "; ".join(f"{one.rule}: {short(describe(one))}" for one in found[:SAID])
            beyond = len(found) - SAID + sum(one.more for one in found)
            says += f"; and {beyond:,} more" if beyond > 0 else ""
            moment = Moment(self._events, line, builtins(event), self._sentence(event), about=about, breaks=says)
            self._seen.append(Seen(moment, cells))
        return found

    def _sentence(self, event: MemoryEvent) -> str:
        if self._holder is None:
            return sentence(event)
        return part_of(event, self._holder, {name: one.holder for name, one in self.checker.state.tables.items()})

    def trace(self) -> Trace:
        """The trace so far."""
        return drawn("memory", builtins(self.pools), memory_in_words(self.pools), self._events, list(self._seen))


def memory_in_words(pools: dict[str, Pool]) -> str:
    """The sizes of the pools in words."""
    return "; ".join(f"{name}: {_sizes(pool)}" for name, pool in pools.items())


def _sizes(pool: Pool) -> str:
    slots = counted(pool.page_size, "slot")
    if pool.keyed:
        return f"objects of {slots}"
    return f"pages of {slots}" if pool.num_pages is None else f"{counted(pool.num_pages, 'page')} of {slots}"


def _cells(
    state: State, name: str, named: set[tuple[str, Page]], wrong: set[tuple[str | None, Page | None]]
) -> dict[str, Cell]:
    pool = state.pools[name]
    numbers = {*pool.individual, *pool.groups, *(page for other, page in wrong if other == name and page is not None)}
    # At most as many pages that are only named as can be drawn.
    pages = (page for other, page in named if other == name)
    numbers |= set(nsmallest(DRAWN, pages, key=lambda page: by_number(str(page))))
    cells = {}
    for page in numbers:
        marks = (name, page) in named, (name, page) in wrong
        cells[str(page)] = _cell(pool.seen(page), *marks, ", ".join(_uses(state, pool, page)))
    return cells


def _cell(page: PageState, named: bool, wrong: bool, uses: str) -> Cell:
    if page.holders:
        return Cell("held", ", ".join(sorted(page.holders)), named, wrong, uses)
    if page.pins:
        return Cell("locked", ", ".join(sorted(page.pins)), named, wrong, uses)
    return Cell("store" if page.keys else "free", ", ".join(page.keys), named, wrong, uses)


def _uses(state: State, pool: PoolState, number: Page) -> list[str]:
    """The uses of a page by operations that their host has not seen complete, in words."""
    page, words = pool.seen(number), set[tuple[bool, str]]()
    clocks = state.clocks
    for flight in clocks.flying:
        if clocks.has_seen(flight.event.host, flight):
            continue
        clocks.sort(flight)
        read = clocks.has_seen(flight.event.host, flight, "reads")
        words |= {(writes, flight.stream) for _, _, writes in used(flight, pool, number, page) if writes or not read}
    return [f"being {'written' if writes else 'read'} on {stream}" for writes, stream in sorted(words)]


def named_in(event: MemoryEvent, state: State) -> Iterator[tuple[str, Page]]:
    """The pages that an event names or uses."""
    yield from pages_in(event)
    if isinstance(event, Begin):
        for use in (*event.reads, *event.writes, *(use for pair in event.copies for use in pair)):
            yield from _used(use, state)


def _used(use: Use, state: State) -> Iterator[tuple[str, Page]]:
    table = None if use.table is None else state.tables.get(use.table)
    if table is not None:
        size = table.pool.size
        stop = -(-use.stop // size) if use.stop else None
        pages = table.pages[max(0, use.start) // size : stop]
        yield from ((table.pool.name, page) for page in pages if page != HOLE)
    elif use.pool is not None:
        yield from ((use.pool, page) for page in singly(use.pages))


def holders_of(event: MemoryEvent, state: State) -> Iterator[str]:
    """The holders that an event names, and those of the tables that it uses."""
    yield from holders_in(event)
    if isinstance(event, Begin):
        for use in (*event.reads, *event.writes, *(use for pair in event.copies for use in pair)):
            if use.table is not None and use.table in state.tables:
                yield state.tables[use.table].holder


def concerned(event: MemoryEvent, state: State) -> Iterator[str]:
    """The holders that an event is about, and those of the table or operation in flight that it ends.

    `state` is the state before the event.
    """
    yield from holders_of(event, state)
    if isinstance(event, Unmap) and event.table in state.tables:
        yield state.tables[event.table].holder
    flight = state.clocks.in_flight(event.id, event.host) if isinstance(event, End) else None
    if flight is not None:
        yield from holders_of(flight.event, state)


def findings_of_groups(
    path: Source,
    pools: dict[str, Pool],
    outcome: Grouped,
    identities: Identities,
    seconds: float,
    described: Described = "causes",
) -> list[Finding]:
    """A finding for each group: causes with the shortest part of the trace that shows them, consequences without.

    `described="all"` treats consequences like causes; `"none"` searches for no part. Each search takes at most
    `seconds`. If the trace cannot be read a second time, no finding has such a part.
    """
    causes = [group for group in outcome.groups if group.cause is None][:DESCRIBED]
    chosen = [] if described == "none" else outcome.groups if described == "all" else causes
    cuts: list[Cut | None] = [None] * len(chosen)
    if chosen and path.is_file():
        cuts = shortest_cuts(path, chosen, identities, seconds)
    cut_of = {id(group): cut for group, cut in zip(chosen, cuts, strict=True)}
    numbers = {id(group): number for number, group in enumerate(outcome.groups, start=1)}
    findings = []
    for group in outcome.groups:
        follows = "" if group.cause is None else f"It may follow from {numbers[id(group.cause)]}."
        if not follows and group.finding.cause not in (None, group.finding.event):
            follows = f"It may follow from what was found on line {group.line_of(group.finding.cause)} and is accepted."
        if id(group) in cut_of:
            findings.append(finding_of(path, pools, group, cut_of[id(group)], follows))
        else:
            nothing = Trace("memory", builtins(pools), memory_in_words(pools), group.finding.event, [])
            findings.append(_finding(path, group, nothing, "", follows))
    if isinstance(path, Parts) and path.is_file():
        _name_parts(path, findings)
    return findings


def _name_parts(parts: Parts, findings: Sequence[Finding]) -> None:
    """Name the file and line of each event of a merged trace."""
    lines = [
        {finding.place.line, *(moment.line for moment in finding.trace.moments), *(one.line for one in finding.ledger)}
        for finding in findings
    ]
    found = places(parts, set().union(*lines))
    for finding, named in zip(findings, lines, strict=True):
        finding.parts = [*map(str, parts.paths)]
        finding.origins = {line: Place(str(found[line][0]), found[line][1]) for line in sorted(named)}
        finding.known.append(f"Line {finding.place.line} is {finding.origins[finding.place.line]}.")
        for moment in finding.trace.moments:
            path, line = found[moment.line]
            moment.says = f"{moment.says.removesuffix('.')} ({path.name}:{line})."


def finding_of(path: Source, pools: dict[str, Pool], group: Group, cut: Cut | None, follows: str = "") -> Finding:
    """A finding, described by the shortest part of the trace that shows it, or without one by the events before it."""
    if cut is not None:
        size = f"{len(cut.steps):,} of {cut.total:,} events"
        note = f"The shortest part that shows it ({size})."
        if not cut.is_shortest:
            why = "no single one can be left out" if cut.complete else "the search was stopped"
            note = f"A part that shows it ({size}; {why})."
        steps, total, release = iter(cut.steps), len(cut.steps), cut.last_release
    else:
        why = "It was interrupted before a part of the trace was" if caught() else "No part of the trace was"
        note = f"{why} found that shows it by itself. The events before it:"
        steps, total = _read(path, group.finding.event), group.finding.event
        release = last_release(_read(path, total - 1), group.finding)
    renderer = Renderer(pools, lambda number, *_: number > total - KEPT)
    before: list[str] = []
    for number, step in enumerate(steps, start=1):
        if number == total:
            before = list(_before(renderer.checker.state, group.finding, step.event))
        renderer.step(step.line, step.event)
    return _finding(path, group, renderer.trace(), note, follows, before, release)


def _read(path: Source, total: int) -> Iterator[Step]:
    if path.is_file():
        with open_memory(path) as trace:
            yield from (Step(line, event) for line, event in islice(trace, total))


def _finding(
    path: Source,
    group: Group,
    trace: Trace,
    note: str,
    follows: str,
    before: Iterable[str] = (),
    release: tuple[int, MemoryEvent] | None = None,
) -> Finding:
    found, rule = group.finding, MEMORY_RULES[group.finding.rule]
    return Finding(
        kind="rule",
        what=describe(found),
        place=Place(str(path), group.line, found.event, group.kind, site=found.at or ""),
        trace=trace,
        note=note,
        rule=Rule(rule.id, rule.name, rule.statement, rule.reason, origin(rule)),
        code=found.code,
        before=list(before),
        known=[*_other(group, trace), *_released(group, release)],
        ledger=group.ledger,
        sequences=sequences_in_words(group),
        count=group.count,
        follows=follows,
        pool=pool_to_name(found, len(trace.sizes)),
    )


def _other(group: Group, trace: Trace) -> Iterator[str]:
    """The other operation of a finding, and its line."""
    found = group.finding
    if found.other is not None:
        id, event = found.other
        line = group.line_of(event)
        holders = next((moment.about for moment in trace.moments if moment.line == line), [])
        whom = f" for {holders[0]}" if len(holders) == 1 else ""
        races, where = found.rule in ("MEM-RACE", "MEM-REWRITE"), f"line {line}"
        did = "The other use is that of" if races else f"Page {found.page} was last written by"
        yield f"{did} operation {id}{whom} ({where})."
    if found.earlier is not None:
        yield f"The other use comes from {found.earlier}."


def _released(group: Group, release: tuple[int, MemoryEvent] | None) -> Iterator[str]:
    """The page's last release, or for a leak its holder's last release, unless the ledger lists it."""
    if release is not None and release[0] not in {entry.line for entry in group.ledger}:
        line, event = release
        found, where = group.finding, f"line {line}"
        leak = found.rule == "MEM-LEAK"
        lead = f"{found.holder} released last on" if leak else f"Page {found.page} has had no holder since"
        yield f"{lead} {where}: {sentence(event)}"


def pool_to_name(found: Broken, pools: int) -> str:
    """The pool of a finding, if the trace has several: the finding's text names pages only by number."""
    return found.pool or "" if pools > 1 else ""


def _before(state: State, found: Broken, event: MemoryEvent) -> Iterator[str]:
    """The holders of the finding's page, and the pages of the holders that the event names."""
    if found.pool is not None and found.page is not None:
        page = state.pools[found.pool].seen(found.page)
        facts = [f"held by {', '.join(map(_times, page.holders, page.holders.values()))}"] if page.holders else []
        facts += [f"kept by {', '.join(page.pins)}"] if page.pins else []
        facts += [f"published as {', '.join(page.keys)}"] if page.keys else []
        facts += _uses(state, state.pools[found.pool], found.page)
        yield f"page {found.page} of {found.pool}: {', '.join(facts) or 'free'}"
    for name in dict.fromkeys([*([] if found.holder is None else [found.holder]), *holders_of(event, state)]):
        yield f"{name}: {_holding(state, name)}"


def _times(holder: str, references: int) -> str:
    return holder if references == 1 else f"{holder} ({references} references)"


def holdings(state: State) -> Iterator[str]:
    """Each holder with its pages."""
    yield from (f"{name}: {_holding(state, name)}" for name in state.holdings)


def _holding(state: State, holder: str) -> str:
    held = state.holdings.get(holder, {})
    parts = (f"page{'s'[: len(pages) != 1]} {_listed([*pages])} of {pool}" for pool, pages in held.items() if pages)
    return "; ".join(parts) or "no page"


def _listed(pages: list[Page]) -> str:
    numbers = sorted(page for page in pages if isinstance(page, int))
    names = [] if not numbers else [spans(numbers)]
    keys = sorted((str(page) for page in pages if isinstance(page, str)), key=by_number)
    more = [f"and {len(keys) - _HELD:,} more"] if len(keys) > _HELD else []
    return ", ".join([*names, *keys[:_HELD], *more])
