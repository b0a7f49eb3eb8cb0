"""Memory events in sentences."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import structs

from kvconform.findings.finding import spans
from kvconform.findings.wording import counted
from kvspec.memory import events as e
from kvspec.memory.events import MemoryEvent, Pages, Use

_FEW = 8
"""The most names that are listed; further ones are counted."""


def sentence(event: MemoryEvent) -> str:
    """One event in words."""
    place = "" if event.at is None else f" ({event.at})"
    host = "" if event.host is None else f"{event.host}: "
    return f"{host}{_clause(event)}{place}."


def part_of(event: MemoryEvent, holder: str, tables: Mapping[str, str]) -> str:
    """One event in words. Of a batch only the uses for one holder are kept; `tables`: the holder of each table."""
    if not isinstance(event, e.Begin):
        return sentence(event)

    def whose(use: Use) -> str | None:
        return use.holder if use.holder is not None else tables.get(use.table or "")

    used = [whose(use) for use in (*event.reads, *event.writes, *(target for _, target in event.copies))]
    others = {*used} - {holder}
    if holder not in used or not others:
        return sentence(event)
    own = {
        "reads": [use for use in event.reads if whose(use) == holder],
        "writes": [use for use in event.writes if whose(use) == holder],
        "copies": [pair for pair in event.copies if whose(pair[1]) == holder],
    }
    text = sentence(structs.replace(event, **own)).removesuffix(".")
    return f"{text} (and {counted(len(others), 'other')})."


def _clause(event: MemoryEvent) -> str:
    match event:
        case e.Take():
            return f"{event.holder} takes {pages_of(event.pages, event.pool)}"
        case e.Share():
            how = "pins" if event.pin else "takes one more reference to"
            found = f", found under {_few(event.keys)}" if event.keys else ""
            return f"{event.holder} {how} {pages_of(event.pages, event.pool)}{found}"
        case e.Release():
            return f"{event.holder} gives back a reference to {pages_of(event.pages, event.pool)}"
        case e.Transfer():
            what = "all that it has" if event.pages is None else pages_of(event.pages, event.pool)
            return f"{event.old} passes {what}{_in(event.pool) if event.pages is None else ''} on to {event.new}"
        case e.Publish():
            planned = ", still to be written" if event.planned else ""
            return f"{pages_of(event.pages, event.pool, capital=True)} can be found as {_few(event.keys)}{planned}"
        case e.Drop():
            names = "all names" if event.keys is None else f"the names {_few(event.keys)}"
            return f"{pages_of(event.pages, event.pool, capital=True)} {_verb(event.pages, 'lose')} {names}"
        case e.Map():
            pages = pages_of(event.pages, event.pool)
            return f"The table {event.table} of {event.holder} names {pages}{_from(event.index)}"
        case e.Unmap():
            if event.stop:
                last = "" if event.stop == event.index + 1 else f" to {event.stop - 1}"
                return f"The table {event.table} has a hole from now on, at page index {event.index}{last}"
            return f"The table {event.table} is emptied" + (f" from page {event.index} on" if event.index else "")
        case e.Reserve():
            return f"{event.holder} is promised {counted(event.pages, 'page')}{_in(event.pool)}"
        case e.Unify():
            return f"{event.label} and {event.same} turn out to be the same content"
        case e.Decide():
            return f"Group {event.group} decides {event.what}"
        case e.Announce():
            return _announced(event)
        case e.EndHolder():
            return f"{event.holder} is gone"
        case e.Idle():
            of = "" if event.pools is None else f" of {_few(event.pools)}"
            return f"The engine is idle; {_few(event.keepers) if event.keepers else 'no holder'} may hold anything{of}"
        case e.Count():
            return f"The engine counts{_in(event.pool)}: {', '.join(_counts(event)) or 'nothing'}"
        case e.Failed():
            return f"The engine gives up ({event.kind}): {event.what}"
        case _:
            return _operation(event)


def _announced(event: e.Announce) -> str:
    """An announcement of blocks to routers, in words."""
    where = " of all tiers" if event.tier is None else f" of {event.tier}"
    behind = "" if event.parent is None else f" behind {event.parent}"
    does = [
        *(["all cleared"] if event.cleared else []),
        *([f"{_few(event.removed)} removed"] if event.removed else []),
        *([f"{_few(event.stored)} stored{behind}"] if event.stored else []),
        *([] if event.pool is None else [f"with this all names of {event.pool}"]),
    ]
    batch = "" if event.batch is None else f", in batch {event.batch}"
    return f"Routers receive the blocks{where}{batch}: {'; '.join(does) or 'no change'}"


def _operation(event: e.Begin | e.Wait | e.End | e.Send | e.Receive | e.Deliver) -> str:
    """An event of an operation, or between hosts, in words."""
    match event:
        case e.Begin():
            stream = "" if event.stream is None else f" on stream {event.stream}"
            does = "; ".join(_does(event)) or "it uses nothing"
            after = f", after operations {_few(list(map(str, event.after)))}" if event.after else ""
            return f"Operation {event.id} is queued{stream}{after}: {does}"
        case e.Wait():
            reads = " to have read" if event.part == "reads" else ""
            what = f"all that is queued on {event.on}" if event.id is None else f"operation {event.id}"
            return f"Stream {event.stream} waits for {what}{reads}"
        case e.End():
            what = "has read all that it reads" if event.part == "reads" else "is seen complete"
            not_written = f"; not written: {', '.join(map(use_of, event.unwritten))}" if event.unwritten else ""
            return f"Operation {event.id} {what}{not_written}"
        case e.Send():
            after = f", when operations {_few(list(map(str, event.after)))} are complete" if event.after else ""
            return f"Message {event.id} is sent{after}"
        case e.Receive():
            return f"Message {event.id} is received"
        case e.Deliver():
            return f"The result of operation {event.id} for {event.holder} leaves the engine"


def _counts(event: e.Count) -> list[str]:
    figures = (("free", event.free), ("cached", event.cached), ("held", event.held))
    words = [
        f"{name} {figure if isinstance(figure, int) else _numbers(figure)}"
        for name, figure in figures
        if figure is not None
    ]
    return words + ([f"references of {counted(len(event.references), 'page')}"] if event.references else [])


def _does(event: e.Begin) -> list[str]:
    copies = [f"copies {use_of(source)} to {use_of(target)}" for source, target in event.copies]
    return [
        *(["reads " + ", ".join(map(use_of, event.reads))] if event.reads else []),
        *(["writes " + ", ".join(map(use_of, event.writes))] if event.writes else []),
        *copies,
    ]


def use_of(use: Use) -> str:
    """The slots of a use, in words."""
    whose = "" if use.holder is None else f" for {use.holder}"
    if use.table is not None:
        return f"{_range('position', use)} of table {use.table}{whose}"
    slots = f", {_range('slot', use)}" if use.start or use.stop else ""
    return f"{pages_of(use.pages, use.pool)}{slots}{whose}"


def _range(what: str, use: Use) -> str:
    """The positions of a use, written like page numbers, with an inclusive end."""
    if use.stop == use.start + 1:
        return f"{what} {use.start}"
    return f"{what}s {use.start}" + (f"..{use.stop - 1}" if use.stop else " on")


def pages_of(pages: Pages, pool: str | None, *, capital: bool = False) -> str:
    """Pages of a pool, in words."""
    one = len(pages) == 1 and not isinstance(pages[0], tuple)
    word = "key" if pages and isinstance(pages[0], str) else "page"
    word += "" if one else "s"
    return f"{word.capitalize() if capital else word} {_numbers(pages)}{'' if pool is None else f' of {pool}'}"


def _verb(pages: Pages, verb: str) -> str:
    return f"{verb}s" if len(pages) == 1 and not isinstance(pages[0], tuple) else verb


def _numbers(pages: Pages) -> str:
    parts: list[str] = []
    for is_number, some in groupby(pages, lambda page: isinstance(page, int)):
        if is_number:
            parts += spans(page for page in some if isinstance(page, int)).split(", ")
        else:
            parts += [f"{page[0]}..{page[0] + page[1] - 1}" if isinstance(page, tuple) else str(page) for page in some]
    return _few(parts) if parts else "none"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= _FEW else [*names[: _FEW - 1], f"and {len(names) - _FEW + 1:,} more"])


def _in(pool: str | None) -> str:
    return "" if pool is None else f" in {pool}"


def _from(index: int) -> str:
    return f" from its page {index} on" if index else ""
