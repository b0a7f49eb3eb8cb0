"""Goals: events that must happen in the runs of a driver, since an event that never happens is never checked.

A goal is a question about the events of one run. A driver declares its goals (`kvlab.drives.Trial.goals`); a release
that reaches one in none of its runs is red in the matrix.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from kvspec.memory.events import Begin, Drop, End, EndHolder, Map, MemoryEvent, OpId, Publish, Receive, Send, Share

Goal = Callable[[Sequence[MemoryEvent]], bool]
"""Whether the events of a run reach it."""


def hit(events: Sequence[MemoryEvent]) -> bool:
    """A published page gets one more holder, and not only a pin."""
    published: set[tuple[str, object]] = set()
    for event in events:
        if isinstance(event, Publish):
            published |= {(event.pool, page) for page in event.pages}
        elif isinstance(event, Drop):
            published -= {(event.pool, page) for page in event.pages}
        elif isinstance(event, Share) and not event.pin and {(event.pool, page) for page in event.pages} & published:
            return True
    return False


def withdrawn(events: Sequence[MemoryEvent]) -> bool:
    """A name is withdrawn."""
    return any(isinstance(event, Drop) for event in events)


def kept_apart(events: Sequence[MemoryEvent]) -> bool:
    """The same tokens are published for two salts, adapters or weights: neither hits the other's page."""
    return _side_by_side(events, 1)


def pictures_apart(events: Sequence[MemoryEvent]) -> bool:
    """The same tokens are published with other images behind their placeholders."""
    return _side_by_side(events, 2)


def _side_by_side(events: Sequence[MemoryEvent], part: int) -> bool:
    """Two pages are published whose labels differ in this part, and in none before it."""
    there: dict[tuple[str, object], list[str]] = {}
    beside = defaultdict[tuple[str, ...], Counter[str]](Counter)
    for event in events:
        if isinstance(event, Publish | Drop):
            for page in event.pages:
                gone = there.pop((event.pool, page), None)
                if gone is not None:
                    beside[*gone[:part]][gone[part]] -= 1
        if isinstance(event, Publish) and event.labels is not None:
            for page, label in zip(event.pages, event.labels, strict=True):
                parts = there[event.pool, page] = [*label.split("~"), "", ""]
                others = beside[*parts[:part]]
                others[parts[part]] += 1
                if len(+others) > 1:
                    return True
    return False


def from_storage(events: Sequence[MemoryEvent]) -> bool:
    """A page is read from a file that was written in the same run."""
    written = set[object]()
    for event in events:
        for source, target in event.copies if isinstance(event, Begin) else []:
            if source.pool == "storage" and written & {*source.pages}:
                return True
            if target.pool == "storage":
                written |= {*target.pages}
    return False


def drafted(events: Sequence[MemoryEvent]) -> bool:
    """A launch writes drafts: slots of which an unknown number count."""
    return any(isinstance(event, Begin) and any(use.at_most for use in event.writes) for event in events)


def ended_in_flight(events: Sequence[MemoryEvent]) -> bool:
    """A holder finishes, is aborted or is retracted while an operation for it is in flight."""
    tables: dict[str, str] = {}
    flying: dict[OpId, tuple[int, str | None, set[str | None]]] = {}
    for number, event in enumerate(events):
        if isinstance(event, Map):
            tables[event.table] = event.holder
        elif isinstance(event, Begin):
            uses = [*event.reads, *event.writes, *(use for pair in event.copies for use in pair)]
            flying[event.id] = number, event.stream, {use.holder or tables.get(use.table or "") for use in uses}
        elif isinstance(event, End) and event.part == "all" and event.id in flying:
            begun, stream, _ = flying.pop(event.id)
            if stream is not None:  # all earlier operations of its stream are over, too
                flying = {name: one for name, one in flying.items() if one[1] != stream or one[0] > begun}
        elif isinstance(event, EndHolder) and any(event.holder in holders for _, _, holders in flying.values()):
            return True
    return False


def written_remotely(events: Sequence[MemoryEvent]) -> bool:
    """A host writes pages of another host."""
    return any(_remote(event) for event in events)


def cut_off(events: Sequence[MemoryEvent]) -> bool:
    """A write of another host's pages fails."""
    remote = {event.id for event in events if isinstance(event, Begin) and _remote(event)}
    return any(isinstance(event, End) and event.unwritten and event.id in remote for event in events)


def abort_answered(events: Sequence[MemoryEvent]) -> bool:
    """A host learns that its pages are no longer written."""
    return any(isinstance(event, Receive) and event.id.startswith("abort ack") for event in events)


def read_in_part(events: Sequence[MemoryEvent]) -> bool:
    """A host transfers a page into a part of another host's page."""
    return any(
        source.start != target.start
        for event in events
        if isinstance(event, Begin) and event.at == "transfer"
        for source, target in event.copies
    )


def started_again(events: Sequence[MemoryEvent]) -> bool:
    """A server that died has been started again, under another name."""
    return any(event.host is not None and event.host.endswith(".2") for event in events)


def died_in_transfer(events: Sequence[MemoryEvent]) -> bool:
    """A server that died in the middle of a transfer has been started again."""
    last = {event.host: event for event in events if event.host is not None and not isinstance(event, Send)}
    return any(isinstance(one, End) and one.unwritten and f"{host}.2" in last for host, one in last.items())


def loaded_and_sent(events: Sequence[MemoryEvent]) -> bool:
    """A server sends another server a page that it has loaded from its host memory."""
    loaded = set[tuple[str | None, object]]()
    for event in events:
        if not isinstance(event, Begin):
            continue
        if _remote(event) and any((source.pool, page) in loaded for source, _ in event.copies for page in source.pages):
            return True
        loaded -= {(use.pool, page) for use in event.writes for page in use.pages}
        for source, target in event.copies:
            pages = {(target.pool, page) for page in target.pages}
            loaded = loaded | pages if (source.pool or "").endswith("/host") else loaded - pages
    return False


def loaded_and_received(events: Sequence[MemoryEvent]) -> bool:
    """A server that another server sends pages to loads other pages from its host memory."""
    loading, receiving = set[str | None](), set[str | None]()
    for event in events:
        for source, target in event.copies if isinstance(event, Begin) else []:
            if (source.pool or "").endswith("/host"):
                loading.add(event.host)
            if _remote(event):
                receiving.add((target.pool or "").partition("/")[0])
    return bool(loading & receiving)


def _remote(event: MemoryEvent) -> bool:
    if not isinstance(event, Begin) or event.host is None:
        return False
    pools = [target.pool for _, target in event.copies if target.pool]
    return any(not pool.startswith(f"{event.host}/") for pool in pools)


EVERYWHERE: Mapping[str, Goal] = {"a published page is hit": hit, "a name is withdrawn": withdrawn}
"""Goals of every engine."""
NAMED: Mapping[str, Goal] = {"equal tokens of two are kept apart": kept_apart}
"""Goals of an engine with salts, adapters or other weights in its requests."""
ILLUSTRATED: Mapping[str, Goal] = {**NAMED, "equal placeholders of two images are kept apart": pictures_apart}
"""Goals of an engine with images in its prompts, besides."""
OVERLAPPED: Mapping[str, Goal] = {**EVERYWHERE, "a request ends under a launch": ended_in_flight}
"""Goals of an engine with launches that overlap its scheduler."""
PAIRED: Mapping[str, Goal] = {
    **OVERLAPPED,
    "a server writes another one's pages": written_remotely,
    "a write of another server's pages fails": cut_off,
    "an abort is answered": abort_answered,
    "a server is started again": started_again,
    "a server dies in the middle of a transfer": died_in_transfer,
    "a prefix is sent that was loaded from host memory": loaded_and_sent,
    "a prefix is loaded from host memory, and the rest is sent": loaded_and_received,
}
"""Goals of an engine with two servers for prefill and decode, besides."""
STORED: Mapping[str, Goal] = {**OVERLAPPED, "a page comes back from a storage": from_storage}
"""Goals of an engine with a storage behind its host tier, besides."""
SPECULATIVE: Mapping[str, Goal] = {**OVERLAPPED, "drafts are written": drafted}
"""Goals of an engine that decodes speculatively, besides."""
SERVED: Mapping[str, Goal] = {
    **SPECULATIVE,
    "a page is read into a part of another one": read_in_part,
    "a server is started again": started_again,
}
"""Goals of an engine that is driven as two servers with blocks of two lengths, besides."""
