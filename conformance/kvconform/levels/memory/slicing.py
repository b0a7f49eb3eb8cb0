"""The pages that a finding may need: its own, and those from which their content was copied.

A page has many lives: one begins at each allocation. Earlier lives are seldom needed.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter

from msgspec.structs import replace

from kvcheck import Finding
from kvconform.levels.memory.reductions import holders_in, narrowed, pages_in, singly
from kvspec.memory import events as e
from kvspec.memory.events import MemoryEvent, OpId, Page, Pool, Use

Life = tuple[str, Page, int]
"""A pool, a page of it, and the number of its allocations so far."""
Numbered = tuple[int, MemoryEvent]
"""The line of an event, and the event."""
Range = tuple[int, int, Life]
"""First and end slot, counted as in the use, and the page that contains them."""

LOOKS = e.Count | e.Idle | e.Decide | e.Announce | e.Deliver
"""Events that change nothing in pages."""

BACK = (0, 1, 1 << 60)
"""The numbers of lives of a page before the last one that are tried."""


class Lives:
    """Follows events, and knows the current life of each page, the pages of uses, and the pages of holders."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """No page has been allocated."""
        self._pools = pools
        self.begun = Counter[tuple[str, Page]]()
        self.held: dict[str, Counter[tuple[str, Page]]] = {}
        self._tables: dict[str, tuple[str, list[Page]]] = {}

    def step(self, event: MemoryEvent) -> None:
        """Follow one event."""
        match event:
            case e.Take() | e.Share():
                pages = [(event.pool, page) for page in singly(event.pages)]
                self.held.setdefault(event.holder, Counter()).update(pages)
                if isinstance(event, e.Take):
                    self.begun.update(pages)
            case e.Release() if event.holder in self.held:
                held = self.held[event.holder]
                held.subtract((event.pool, page) for page in singly(event.pages))
                self.held[event.holder] = +held
            case e.Transfer() if event.old in self.held:
                self._transfer(event)
            case e.Map():
                _, mapped = self._tables.setdefault(event.table, (event.pool, []))
                new = singly(event.pages)
                mapped[event.index : event.index + len(new)] = new
            case e.Unmap() if event.table in self._tables:
                mapped = self._tables[event.table][1]
                if not 0 < event.stop < len(mapped):  # else the table would have a hole; its pages stay listed
                    del mapped[event.index :]

    def _transfer(self, event: e.Transfer) -> None:
        held = self.held[event.old]
        if event.pages is None:
            passed = Counter({key: count for key, count in held.items() if event.pool in (None, key[0])})
        else:
            passed = Counter((event.pool or "", page) for page in singly(event.pages))
        self.held[event.old] = held - passed
        self.held.setdefault(event.new, Counter()).update(passed)

    def of(self, pool: str, page: Page) -> Life:
        """The current life of a page."""
        return pool, page, self.begun[pool, page]

    def listed(self, use: Use) -> tuple[str, list[Page]]:
        """The pages in which the slots of a use are counted."""
        if use.table is not None:
            return self._tables.get(use.table, ("", []))
        return use.pool or "", singly(use.pages)

    def size(self, pool: str) -> int:
        """The number of slots of a page."""
        return self._pools[pool].page_size if pool in self._pools else 1

    def used(self, use: Use) -> Iterator[Range]:
        """The parts of a use, page by page."""
        pool, pages = self.listed(use)
        size = self.size(pool)
        start, stop = max(0, use.start), use.stop or len(pages) * size
        for index, page in enumerate(pages[start // size : -(-stop // size)], start // size):
            yield max(start, index * size), min(stop, (index + 1) * size), self.of(pool, page)

    def part(self, use: Use, start: int, stop: int) -> Use:
        """Slots `start` to `stop` of a use, counted as in the use; the use itself, if these are all its slots."""
        pool, pages = self.listed(use)
        size = self.size(pool)
        if start <= use.start and stop >= (use.stop or len(pages) * size):
            return use
        labels = use.labels
        if labels is not None and pool in self._pools:
            unit = self._pools[pool].label_size or size
            before = use.start // unit
            labels = labels[start // unit - before : -(-stop // unit) - before]
        if use.table is not None:
            return replace(use, start=start, stop=stop, labels=labels)
        first = start // size
        kept = [*pages[first : -(-stop // size)]]
        start, stop = start - first * size, stop - first * size
        return replace(use, pages=kept, start=start, stop=0 if stop == len(kept) * size else stop, labels=labels)


def slices(steps: Sequence[Numbered], finding: Finding, pools: Mapping[str, Pool]) -> Iterator[list[Numbered]]:
    """Parts of `steps` that may show the finding of the last step, the probably shortest first."""
    if finding.hosts is not None:
        yield _decisions(steps, finding.group, finding.hosts)
    lives = Lives(pools)
    copied: list[tuple[list[Range], list[Range]]] = []
    touched: set[tuple[str, Page]] = set()
    last = steps[-1][1]
    asked = last.id if isinstance(last, e.Begin | e.End | e.Deliver) else None
    held = Counter[tuple[str, Page]]()
    for line, event in steps:
        if line == steps[-1][0]:
            held.update(lives.held.get(finding.holder or "", ()))
        lives.step(event)
        if isinstance(event, e.Begin):
            copied += [([*lives.used(source)], [*lives.used(target)]) for source, target in event.copies]
            if event.id == asked:
                touched = {life[:2] for use in uses_in(event) for _, _, life in lives.used(use)}
    if isinstance(last, e.Announce):
        yield from _announced(steps, finding.page, lives, pools)
    own = [] if finding.pool is None or finding.page is None else [(finding.pool, finding.page)]
    seeds: list[set[tuple[str, Page]]] = []
    about = {*own}, {key for key in held if finding.pool in (None, key[0])}, {*pages_in(last), *touched}
    for seed in (*about, set().union(*about), {key for key in lives.begun if finding.pool in (None, key[0])}):
        if seed and seed not in seeds:
            seeds.append(seed)
    tried: list[set[Life]] = []
    for back in BACK:
        for seed in seeds:
            wanted = _sources({life for key in seed for life in _back(lives.of(*key), back)}, copied, back)
            if wanted not in tried:
                tried.append(wanted)
                yield _only(steps, wanted, pools)


def _decisions(steps: Sequence[Numbered], group: str, hosts: Sequence[str | None]) -> list[Numbered]:
    """The last decision of a host, those of another host from the same place on, and the last step."""
    own, others = (
        [step for step in steps if isinstance(step[1], e.Decide) and (step[1].group, step[1].host) == (group, host)]
        for host in hosts
    )
    place = len(own) - 1
    return sorted(dict([*own[place:], *others[place:][:2], steps[-1]]).items())


def _announced(
    steps: Sequence[Numbered], block: Page | None, lives: Lives, pools: Mapping[str, Pool]
) -> Iterator[list[Numbered]]:
    """Announcements of the last step's host: its batches nearby, or those of a block, without and with its names."""
    last = steps[-1][1]
    said = [(line, event) for line, event in steps if isinstance(event, e.Announce) and event.host == last.host]
    if block is None:
        begins = [(line, event) for line, event in said if event.batch is not None]
        same = [step for step in begins[:-1] if step[1].batch == begins[-1][1].batch]
        yield [*begins[-2:]]
        yield [*begins[:1], *same[-1:], *begins[max(1, len(begins) - 2) :]]
        return
    about = [(line, one) for line, event in said if (one := _about_block(event, block)) is not None]
    if said[-1][1].pool is None:
        about[-1:] = said[-1:]
    yield [*about]
    named = {
        (event.pool, page)
        for _, event in steps
        if isinstance(event, e.Publish)
        for page, key in zip(singly(event.pages), event.keys, strict=False)
        if key == block
    }
    for back in BACK:
        rest = _only(steps, {life for place in named for life in _back(lives.of(*place), back)}, pools)
        others = [step for step in rest if not isinstance(step[1], e.Announce)]
        yield sorted([*others, *about], key=itemgetter(0))


def _about_block(event: e.Announce, block: Page) -> e.Announce | None:
    """The part of an announcement that is about a block; `None`: there is none."""
    stored = narrowed(event, "stored", [at for at, one in enumerate(event.stored) if one == block])
    if event.stored[:1] != [block]:
        stored.parent = None
    said: e.Announce = replace(stored, removed=[one for one in event.removed if one == block], batch=None)
    return said if said.stored or said.removed or said.cleared or said.pool is not None else None


def near_announcement(event: e.Announce, finding: Finding) -> e.Announce | None:
    """The part of an announcement that a finding on announcements may need: of its block, or of batches nearby."""
    if finding.rule != "MEM-ANNOUNCE":
        return None
    if finding.page is not None:
        return _about_block(event, finding.page)
    near = {finding.found, finding.expected, *([finding.expected - 1] if isinstance(finding.expected, int) else [])}
    return e.Announce(batch=event.batch, host=event.host) if event.batch in near and event.batch is not None else None


def _back(life: Life, back: int) -> Iterator[Life]:
    """A life of a page, and up to `back` lives before it."""
    pool, page, number = life
    yield from ((pool, page, earlier) for earlier in range(max(0, number - back), number + 1))


def _sources(lives: set[Life], copied: Sequence[tuple[list[Range], list[Range]]], back: int) -> set[Life]:
    """Lives of pages, and of the pages from which their content was copied."""
    wanted = {*lives}
    for sources, targets in reversed(copied):
        for first, last, life in targets if sources and targets else ():
            if life in wanted:
                by = sources[0][0] - targets[0][0]
                found = [one for start, stop, one in sources if start < last + by and stop > first + by]
                wanted |= {earlier for one in found for earlier in _back(one, back)}
    return wanted


def _only(steps: Sequence[Numbered], lives: Collection[Life], pools: Mapping[str, Pool]) -> list[Numbered]:
    """Reduce events to some lives of pages, and to the tables through which they are used.

    Events that check the state (`LOOKS`) go, because they would find other pages missing. Events that are not about
    pages stay, unless their operation or holder is gone.
    """
    last = steps[-1][0]
    about = _About(lives, pools)
    kept = [
        (line, event)
        for line, old in steps
        if (event := about(old)) is not None and (line == last or not isinstance(event, LOOKS))
    ]
    return [
        (line, event)
        for line, event in kept
        if not isinstance(event, e.Map | e.Unmap) or event.table in about.tables or line == last
    ]


class _About:
    """Reduces events one by one to some lives of pages."""

    def __init__(self, lives: Collection[Life], pools: Mapping[str, Pool]) -> None:
        self._kept = lives
        self._pages = {life[:2] for life in lives}
        self._lives = Lives(pools)
        self._begun: set[OpId] = set()
        self._holders: set[str] = set()
        self.tables: set[str] = set()
        """The tables through which these pages are used."""

    def __call__(self, event: MemoryEvent) -> MemoryEvent | None:
        """The event, narrowed; `None` if nothing of it is left."""
        self._lives.step(event)
        kept = self._narrowed(event)
        if kept is not None and not isinstance(kept, e.Map):
            self._holders.update(holders_in(kept))
        return kept

    def _narrowed(self, event: MemoryEvent) -> MemoryEvent | None:
        match event:
            case e.Transfer(pages=None):
                return event if event.old in self._holders else None
            case e.Take() | e.Share() | e.Release() | e.Transfer() | e.Publish() | e.Drop():
                pages = [(event.pool or "", page) for page in singly(event.pages or [])]
                kept = [at for at, key in enumerate(pages) if key in self._pages and self._lives.of(*key) in self._kept]
                return narrowed(event, "pages", kept) if kept else None
            case e.EndHolder() | e.Reserve():
                return event if event.holder in self._holders else None
            case e.Begin():
                return self._begin(event)
            case e.Wait() | e.Deliver():
                return event if event.id is None or event.id in self._begun else None
            case e.End():
                if event.id not in self._begun:
                    return None
                return replace(event, unwritten=[cut for use in event.unwritten for cut in self._cut(use)])
        return event

    def _begin(self, event: e.Begin) -> e.Begin | None:
        reads = [cut for use in event.reads for cut in self._cut(use)]
        writes = [cut for use in event.writes for cut in self._cut(use)]
        copies: list[tuple[Use, Use]] = []
        for source, target in event.copies:
            read, written = self._cut(source), self._cut(target)
            if [source, target] == [*read, *written]:
                copies.append((source, target))
            elif written and read:
                copies += self._copy(source, target)
            else:  # the other page of the copy is left out: a read remains, or a write of unknown content
                reads += read
                writes += written
        if not (reads or writes or copies):
            self._begun.discard(event.id)
            return None
        self._begun.add(event.id)
        after = [id for id in event.after if id in self._begun]
        return replace(event, reads=reads, writes=writes, copies=copies, after=after)

    def _copy(self, source: Use, target: Use) -> Iterator[tuple[Use, Use]]:
        """The parts of a copy with targets in these pages."""
        by = source.start - target.start
        for start, stop in self._ranges(target):
            yield self._lives.part(source, start + by, stop + by), self._lives.part(target, start, stop)

    def _cut(self, use: Use) -> list[Use]:
        """The parts of a use in these pages."""
        cuts = [self._lives.part(use, start, stop) for start, stop in self._ranges(use)]
        if cuts and use.table is not None:
            self.tables.add(use.table)
        return cuts

    def _ranges(self, use: Use) -> list[tuple[int, int]]:
        pool, pages = self._lives.listed(use)
        if self._pages.isdisjoint((pool, page) for page in pages):
            return []
        ranges: list[tuple[int, int]] = []
        for start, stop, life in self._lives.used(use):
            if life not in self._kept or start >= stop:
                continue
            continues = ranges and ranges[-1][1] == start
            ranges.append((ranges.pop()[0] if continues else start, stop))
        return ranges


def uses_in(event: e.Begin) -> Iterator[Use]:
    """All uses of an operation."""
    yield from event.reads
    yield from event.writes
    yield from (use for pair in event.copies for use in pair)
