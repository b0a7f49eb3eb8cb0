"""The ledger of a finding: the events since its page was last free that took, released, named or wrote the page.

A finding is reported at the event that shows a defect. The ledger lists the earlier events that may be its cause.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kvcheck.finding import Finding
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Reference, Sign
from kvconform.findings.wording import counted
from kvconform.levels.memory.grouping import Group
from kvconform.levels.memory.reductions import singly
from kvconform.traces.merging import Source, open_memory
from kvspec.memory import events as e
from kvspec.memory.events import MemoryEvent, Page, Pool, Use

RACES = ("MEM-RACE", "MEM-REWRITE", "MEM-ORDER")
"""Rules about two operations: their ledger has the events that order the operations."""

CONTENTS = ("MEM-WRITTEN", "MEM-CONTENT", "MEM-NAME", "MEM-OVERWRITE", "MEM-DELIVER", "MEM-FAILED")
"""Rules about the content of a page: their ledger also has writes and names."""

_OWNS = "+-"
_REMEMBERED = 400
"""The most remembered entries of a page. Entries of former holders are forgotten first."""
_Key = tuple[str, Page]


class _History:
    """The events of one page since it was last free, and in its previous residency."""

    def __init__(self, holders: Iterable[str | None]) -> None:
        """`holders` are the holders of findings: all their events are kept."""
        self._about = {*holders}
        self.before: list[Reference] = []
        self.now: list[Reference] = []
        self.held: Counter[str] = Counter()
        self._names = 0
        self._was: dict[str, str] = {}
        """Holder -> the holder that transferred the page to it."""

    def add(self, entry: Reference) -> None:
        if entry.sign == "+" and self.is_free and any(one.sign == "-" for one in self.now):
            self.before, self.now = self.now, []
        self.now.append(entry)
        if entry.sign in _OWNS:
            self.held[entry.holder] += 1 if entry.sign == "+" else -1
        if len(self.now) > _REMEMBERED:
            kept = {*self._about, *(holder for holder, count in self.held.items() if count > 0)}
            self.now = [one for one in self.now if one.holder in kept or one.sign not in _OWNS][-_REMEMBERED:]

    def transfer(self, entry: Reference, old: str) -> None:
        """All references of `old` pass to the entry's holder."""
        if self.held[old] > 0:
            self.held[entry.holder] += self.held.pop(old)
            self._was[entry.holder] = old
            self.now.append(entry)

    def line_of(self, holder: str | None) -> set[str]:
        """A holder, and the holders that the page was transferred from, back to the first."""
        names: set[str] = set()
        while holder is not None and holder not in names:
            names.add(holder)
            holder = self._was.get(holder)
        return names

    def of(self, finding: Finding) -> list[Reference]:
        """The entries that belong in the ledger of a finding."""
        own, race = self.line_of(finding.holder), finding.rule in RACES
        left_out = "" if finding.rule in CONTENTS else "w" if finding.rule == "MEM-USE" else "wt"
        return [
            *(one for one in self.before if one.holder in own or race or (self.is_free and not self.now)),
            *(one for one in self.now if one.sign not in left_out),
        ]

    @property
    def is_free(self) -> bool:
        """Whether the page has no references and no names."""
        return not +self.held and not self._names

    def name(self, entry: Reference, more: int) -> None:
        """The page gets so many more names; 0: it loses all its names."""
        self._names = self._names + more if more else 0
        self.now.append(entry)

    def taken(self, holder: str | None) -> list[str]:
        """The places at which a holder took its references to the page, in the engine's words."""
        own = self.line_of(holder)
        return [one.site for one in self.now if one.holder in own and one.sign == "+"]

    def sequence(self, holder: str | None) -> str:
        """The sequence of a holder's takes and releases of the page: `+lock_prefix +lock_prefix -free`."""
        own = self.line_of(holder)
        ours = (one for one in self.now if one.holder in own and one.sign in _OWNS)
        return " ".join(f"{one.sign}{one.site or one.event}" for one in ours)


class _Race:
    """The waits of the host and the streams between two operations."""

    def __init__(self, finding: Finding) -> None:
        self._finding = finding
        self._begun = False
        self.entries: list[Reference] = []

    def step(self, number: int, line: int, event: MemoryEvent) -> None:
        other = self._finding.other
        if other is None:
            return
        id, begun = other
        match event:
            case e.Begin() if number == begun:
                self._begun = True
                on = "" if event.stream is None else f" on stream {event.stream}"
                self._add(number, line, event, f"operation {id} is queued{on}, the earlier use")
            case e.Wait() if self._begun and (event.id == id or event.on == self._finding.stream):
                awaited = f"operation {event.id}" if event.id is not None else f"stream {event.on}"
                self._add(number, line, event, f"stream {event.stream} waits for {awaited}")
            case e.End() if self._begun and event.id == id:
                self._add(number, line, event, f"{_host(event)} has seen operation {id} complete")
            case e.Send() | e.Receive() if self._begun:
                did = "sends" if isinstance(event, e.Send) else "receives"
                self._add(number, line, event, f"{_host(event)} {did} message {event.id}")

    def _add(self, number: int, line: int, event: MemoryEvent, says: str) -> None:
        self.entries.append(Reference("~", line, number, _tag(event), says, event.at or ""))


def _host(event: MemoryEvent) -> str:
    return "the host" if event.host is None else f"host {event.host}"


def keep_ledgers(path: Source, groups: Sequence[Group], baseline: Baseline) -> list[Group]:
    """Read a trace again, and give each group the ledger of its first finding and the counts of its sequences.

    Findings that `baseline` knows by the places where their references were taken are counted there and removed.
    Returns the groups that are left. If the trace cannot be read a second time, they stay unchanged.
    """
    subjects = [finding for group in groups for finding in group.findings if finding.page is not None]
    if not subjects or not path.is_file():
        return [*groups]
    with open_memory(path) as trace:
        book = _Book(trace.header.pools, groups, subjects, baseline)
        last = max(finding.event for finding in subjects)
        for number, (line, event) in enumerate(trace, start=1):
            book.step(number, line, event)
            if number == last:
                break
    return [group for group in groups if group.count]


class _Book:
    """Follows a trace, and keeps the histories of the pages of findings."""

    def __init__(
        self, pools: dict[str, Pool], groups: Sequence[Group], subjects: Sequence[Finding], baseline: Baseline
    ) -> None:
        self._baseline = baseline
        self._sizes = {name: pool.page_size for name, pool in pools.items()}
        holders: dict[_Key, list[str | None]] = {}
        for finding in subjects:
            holders.setdefault(_key(finding), []).append(finding.holder)
        self._pages = {key: _History(names) for key, names in holders.items()}
        self._tables: dict[str, dict[int, _Key]] = {}
        """Table -> index -> one of these pages."""
        self._races = {id(group): _Race(group.finding) for group in groups if group.finding.rule in RACES}
        self._found: dict[int, list[tuple[Group, Finding]]] = {}
        for group in groups:
            for finding in group.findings:
                if finding.page is not None:
                    self._found.setdefault(finding.event, []).append((group, finding))

    def step(self, number: int, line: int, event: MemoryEvent) -> None:
        """Follow one event, and close the ledgers of its findings."""
        for race in self._races.values():
            race.step(number, line, event)
        self._close(self._found.get(number, []))
        for key, sign, holder, did in self._changes(event):
            says = f"{did}: {_references(self._pages[key].held[holder], sign)}" if sign in _OWNS else did
            entry = Reference(sign, line, number, _tag(event), says, event.at or "", holder)
            if sign == "n":
                self._pages[key].name(entry, _names_more(event))
            else:
                self._pages[key].add(entry)
        if isinstance(event, e.Transfer):
            self._transfer(number, line, event)

    def _close(self, found: Iterable[tuple[Group, Finding]]) -> None:
        for group, finding in found:
            history = self._pages[_key(finding)]
            place = {"pool": finding.pool or "", "at": finding.at or ""}
            times, taken = 1 + finding.more, () if finding.rule in RACES else history.taken(finding.holder)
            if self._baseline.take(finding.code, group.kind, times, **place, taken=taken):
                group.leave(finding)
                continue
            if finding.rule == "MEM-LEAK":
                group.sequences[history.sequence(finding.holder)] += 1
            if finding is group.finding:
                race = self._races.get(id(group))
                entries = sorted([*history.of(finding), *(race.entries if race else [])], key=lambda one: one.step)
                group.ledger = entries
                own = history.line_of(finding.holder)
                group.required = {one.line for one in group.ledger if one.holder in own}

    def _changes(self, event: MemoryEvent) -> Iterator[tuple[_Key, Sign, str, str]]:
        """The changes of an event to these pages: page, sign, holder, and a description."""
        match event:
            case e.Take() | e.Share() | e.Release():
                sign: Sign = "-" if isinstance(event, e.Release) else "+"
                did = {e.Take: "taken by", e.Share: "shared by", e.Release: "given back by"}[type(event)]
                for key in self._among(event.pool, event.pages):
                    yield key, sign, event.holder, f"{did} {event.holder}"
            case e.Publish():
                for page, name in zip(singly(event.pages), event.keys, strict=False):
                    if (event.pool, page) in self._pages:
                        yield (event.pool, page), "n", "", f"published as {name}"
            case e.Drop():
                for key in self._among(event.pool, event.pages):
                    yield key, "n", "", "can no longer be found by its name"
            case e.Map() | e.Unmap():
                yield from self._map(event)
            case e.Begin():
                for use in (*event.writes, *(target for _, target in event.copies)):
                    for key in self._used(use):
                        whom = (
                            f" for {use.holder}" if use.holder is not None else f" for {use.table}" if use.table else ""
                        )
                        yield key, "w", "", f"written by operation {event.id}{whom}"

    def _among(self, pool: str, pages: e.Pages) -> Iterator[_Key]:
        return ((pool, page) for page in singly(pages) if (pool, page) in self._pages)

    def _map(self, event: e.Map | e.Unmap) -> Iterator[tuple[_Key, Sign, str, str]]:
        table = self._tables.setdefault(event.table, {})
        if isinstance(event, e.Unmap):
            gone = [index for index in table if index >= event.index and (not event.stop or index < event.stop)]
            for index in gone:
                del table[index]
            return
        for index, page in enumerate(singly(event.pages), start=event.index):
            table.pop(index, None)
            if (event.pool, page) in self._pages:
                table[index] = event.pool, page
                yield (event.pool, page), "t", "", f"named by table {event.table} of {event.holder}"

    def _used(self, use: Use) -> Iterator[_Key]:
        if use.table is None:
            yield from self._among(use.pool or "", use.pages)
            return
        for index, key in self._tables.get(use.table, {}).items():
            size = self._sizes[key[0]]
            if use.start < (index + 1) * size and (not use.stop or use.stop > index * size):
                yield key

    def _transfer(self, number: int, line: int, event: e.Transfer) -> None:
        keys = self._pages.keys() if event.pages is None else {*self._among(event.pool or "", event.pages)}
        says = f"passed from {event.old} to {event.new}"
        for key in keys:
            if event.pool in (None, key[0]):
                entry = Reference(">", line, number, "transfer", says, event.at or "", event.new)
                self._pages[key].transfer(entry, event.old)


def _references(before: int, sign: Sign) -> str:
    """The number of references of a holder after one more or less, in words."""
    if sign == "+":
        return f"it has {counted(before + 1, 'reference')}"
    return f"it has {counted(before - 1, 'reference')} left" if before > 1 else "it has none left"


def _names_more(event: MemoryEvent) -> int:
    match event:
        case e.Publish():
            return 1
        case e.Drop(keys=None):
            return 0
    return -1


def _key(finding: Finding) -> _Key:
    assert finding.page is not None
    return finding.pool or "", finding.page


def _tag(event: MemoryEvent) -> str:
    return str(event.__struct_config__.tag)


def sequences_in_words(group: Group) -> str:
    """The sequences in which the holders of leaks took and released their pages, the most frequent first."""
    total = group.sequences.total()
    if total < 2:
        return ""
    each = [
        f"{count:,} of {total:,}: {sequence or 'never taken'}" for sequence, count in group.sequences.most_common(3)
    ]
    more = len(group.sequences) - len(each)
    return "; ".join([*each, *([f"{more:,} more"] if more > 0 else [])])
