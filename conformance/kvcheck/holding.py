"""References and names of pages: take, share, release, transfer, publish, drop and others."""

from collections.abc import Iterable
from itertools import chain

from kvcheck import groups
from kvcheck.decisions import Decisions
from kvcheck.finding import OWNERS_SHOWN, SHOWN, Finding, Malformed, Owners
from kvcheck.pages import NOTHING, Content, PageState, Promise
from kvcheck.pools import PoolState
from kvcheck.state import State
from kvspec.memory import events
from kvspec.memory.events import Page
from kvspec.rules import rule_of

NAMES = 256
"""Names that a page may have at once."""
GROUPS = 256
"""Groups of hosts that a trace may have."""


def take(state: State, event: events.Take) -> None:
    """The allocator hands out free pages. Their old content no longer counts."""
    pool = state.pool(event.pool)
    if pool.keyed:
        raise Malformed(f"pool {event.pool} is a storage: its pages are not taken")
    numbers = pool.expand(event.pages)
    state.checked["MEM-TAKE"] += len(numbers)
    for index in chain.from_iterable(groups.take(state, pool, numbers, event.holder)):
        number = numbers[index]
        if number in pool.padding or number not in pool.numbers:
            code = "MEM-TAKE/padding" if number in pool.padding else "MEM-TAKE/unknown"
            state.find(code, pool, number, event.holder)
            continue
        page = pool.page(number)
        if page.kind == "free":
            state.renew(pool, [number])
        else:
            state.find(f"MEM-TAKE/{page.kind}", pool, number, event.holder).owners = owners(page)
            _unname(pool, number, page, [*page.keys])
        page.content, page.writer = (), None
        _refer(state, pool, number, page, event.holder)
        if page.tables:
            state.changed(page)
    if event.holder in pool.reserved:
        pool.reserve(event.holder, max(0, pool.reserved[event.holder] - len(numbers)))
    _check_reserved(state, pool)


def share(state: State, event: events.Share) -> None:
    """One more reference to pages that are in use or published."""
    pool = state.pool(event.pool)
    numbers = pool.expand(event.pages)
    state.checked["MEM-SHARE"] += len(numbers)
    keys, alone = _one_each(event.keys, numbers), iter([range(len(numbers))])
    left = alone if event.pin else groups.share(state, pool, numbers, event.holder, event.keys)
    for index in chain.from_iterable(left):
        number, key = numbers[index], keys[index]
        page = pool.page(number)
        if page.kind == "free":
            state.find("MEM-SHARE/free", pool, number, event.holder)
        elif key is not None and key not in page.keys:
            state.find("MEM-SHARE/unnamed", pool, number, event.holder).key = key
        _refer(state, pool, number, page, event.holder, pin=event.pin)
    _check_reserved(state, pool)


def release(state: State, event: events.Release) -> None:
    """One reference less to each page. With the last reference its planned names must be written."""
    pool = state.pool(event.pool)
    numbers = pool.expand(event.pages)
    state.checked["MEM-RELEASE"] += len(numbers)
    holder, pages = event.holder, pool.individual
    for index in chain.from_iterable(groups.release(state, pool, numbers, holder)):
        number = numbers[index]
        page = pages.get(number) or pool.page(number)
        pinned = holder not in page.holders
        if not _unrefer(state, pool, number, page, holder, "MEM-RELEASE/not-held") or not page.keys:
            state.forget_if_free(pool, number, page)
        elif holder not in page.holders:
            check_plans(state, pool, number, page, None if pinned else holder)


def transfer(state: State, event: events.Transfer) -> None:
    """References pass to another holder. If all of them do, the tables go with them."""
    if event.pages is None:
        held = state.holdings.get(event.old, NOTHING).items()
        moved = [(state.pools[name], [*pages]) for name, pages in held if event.pool in (None, name)]
    elif event.pool is None:
        raise Malformed("pass_on names pages, but no pool")
    else:
        pool = state.pool(event.pool)
        moved = [(pool, pool.expand(event.pages))]
    for pool, numbers in moved:
        alone = iter([range(len(numbers))])
        left = alone if event.pool else groups.transfer(state, pool, numbers, event.old, event.new)
        for index in chain.from_iterable(left):
            _transfer(state, pool, numbers[index], event)
    if event.pool is None:
        for name in [*state.tables_of.get(event.old, ())]:
            state.give(state.tables[name], event.new)


def _transfer(state: State, pool: PoolState, number: Page, event: events.Transfer) -> None:
    """References to one page change hands."""
    page = pool.page(number)
    for _ in range(1 if event.pages else page.holders.get(event.old, 0) + page.pins.get(event.old, 0)):
        state.checked["MEM-RELEASE"] += 1
        pin = event.old not in page.holders
        if _unrefer(state, pool, number, page, event.old, "MEM-RELEASE/transfer"):
            _refer(state, pool, number, page, event.new, pin=pin)
    if event.old not in page.holders:
        page.hand_on(event.old, event.new)


def publish(state: State, event: events.Publish) -> None:
    """Pages can be found by a name from now on: what it promises has to be there, or planned."""
    pool = state.pool(event.pool)
    numbers, slots = pool.expand(event.pages), event.slots or pool.size
    each = -(-slots // pool.unit)
    if event.labels is not None and len(event.labels) != each * len(numbers):
        raise Malformed(f"{len(event.labels)} labels for {len(numbers)} pages with {each} each")
    labels, planned, writer, pages, names = event.labels, event.planned, event.writer, pool.individual, pool.names
    pool.rename(event.keys)
    keys, alone = _one_each(event.keys, numbers), iter([range(len(numbers))])
    if labels is not None and each == 1 and slots == pool.size and not (planned or pool.keyed):
        alone = groups.publish(state, pool, numbers, event.keys, labels)
    for index in chain.from_iterable(alone):
        number, key = numbers[index], keys[index]
        assert key is not None
        page = pages.get(number) or pool.page(number)
        held = bool(page.holders or page.pins)
        if not (held or page.keys):
            pool.count([number], cached=1)
            if not pool.keyed:
                state.find("MEM-NAME/free", pool, number).key = key
        if each == 1:
            meant: tuple[Content, ...] = (Content(0, slots, labels[index] if labels else None),)
        else:
            meant = (*pool.meant(labels and labels[index * each : (index + 1) * each], 0, slots),)
        promise = Promise(meant)
        found = pool.found(key)
        if not found:
            names[key] = number
        else:
            twin = next(iter(found))
            old = pool.page(twin).keys[key]
            if old.plan is None and any(state.agree(a, b) is False for a in old.meant for b in promise.meant):
                found_twin = state.find("MEM-NAME/ambiguous", pool, number)
                found_twin.key, found_twin.pages = key, (twin,)
            if number not in found:
                found[number] = None
                names[key] = found
        if not page.keys:
            page.keys = {key: promise}
        else:
            if key in page.keys:
                page.unplan(key)
            page.keys[key] = promise
            if len(page.keys) > NAMES:
                raise Malformed(f"{pool.named(number)} of {pool.name} has more than {NAMES} names")
        if planned:
            page.plan(writer, [key])
        left = held if writer is None else writer in page.holders
        if not (planned and (pool.keyed or left)):
            check_promise(state, pool, number, page, key)


def drop(state: State, event: events.Drop) -> None:
    """Names are withdrawn; from a storage, what they name."""
    pool = state.pool(event.pool)
    numbers = pool.expand(event.pages)
    state.checked["MEM-NAME"] += len(numbers)
    keys = _one_each(event.keys, numbers)
    for index in chain.from_iterable(groups.drop(state, pool, numbers, event.keys)):
        number, key = numbers[index], keys[index]
        page = pool.page(number)
        named = [*page.keys] if key is None else [key] * (key in page.keys)
        if not (named or (pool.keyed and page.content)):
            state.find("MEM-NAME/unnamed", pool, number).key = key
        _unname(pool, number, page, named)
        if pool.keyed:
            page.content = ()
            state.changed(page)
        state.forget_if_free(pool, number, page)


def reserve(state: State, event: events.Reserve) -> None:
    """So many further pages are promised to a holder."""
    if event.pages < 0:
        raise Malformed(f"{event.pages} pages are reserved")
    pool = state.pool(event.pool)
    pool.reserve(event.holder, event.pages)
    _check_reserved(state, pool)


def end_holder(state: State, event: events.EndHolder) -> None:
    """A holder is gone: nothing of it may be left."""
    _check_left(state, event.holder, "MEM-LEAK/ended", state.pools.values())
    for pool in state.pools.values():
        pool.promised -= pool.reserved.pop(event.holder, 0)


def idle(state: State, event: events.Idle) -> None:
    """The engine is idle: only keepers may hold anything."""
    state.checked["MEM-LEAK"] += 1
    pools = [state.pool(name) for name in (state.pools if event.pools is None else event.pools)]
    for holder in sorted(state.holdings.keys() - state.gone - set(event.keepers)):
        _check_left(state, holder, "MEM-LEAK/idle", pools)
    while state.undecided and event.pools is None:
        name, decisions = state.undecided.popitem()
        state.checked["MEM-AGREE"] += 1
        for host, what, other in decisions.behind():
            found = state.find("MEM-AGREE/missing")
            found.group, found.hosts, found.expected = name, (host, other), what


def decide(state: State, event: events.Decide) -> None:
    """A host decides, and each host of its group has to make the same decision."""
    state.checked["MEM-AGREE"] += 1
    decisions = state.decisions.get(event.group)
    if decisions is None:
        decisions = state.decisions[event.group] = Decisions()
        if len(state.decisions) > GROUPS:
            raise Malformed(f"a trace of more than {GROUPS} groups of hosts")
    state.undecided[event.group] = decisions
    due = decisions.decide(event.host, event.what)
    if due is not None:
        found = state.find("MEM-AGREE/differs")
        found.group, found.hosts, found.expected, found.found = event.group, (event.host, due[1]), due[0], event.what


def failed(state: State, event: events.Failed) -> None:
    """The engine gave up."""
    state.checked["MEM-FAILED"] += 1
    state.find(f"MEM-FAILED/{event.kind}").message = event.what


def find_once(
    state: State, pool: PoolState, code: str, figure: str, wrong: int, page: Page | None = None, *, each: bool = False
) -> Finding | None:
    """Note a difference when it appears and when it changes; with `each` for each page on its own."""
    state.checked[rule_of(code)] += 1
    reported, place = pool.reported[figure], page if each else None
    before = reported.pop(place, 0)
    if wrong:
        reported[place] = wrong
    return state.find(code, pool, page) if wrong not in (0, before) else None


def _check_left(state: State, holder: str, code: str, pools: Iterable[PoolState]) -> None:
    state.checked["MEM-LEAK"] += 1
    for pool in pools:
        pages = [*state.holdings.get(holder, NOTHING).get(pool.name, ())]
        if pages:
            found = state.find(code, pool, pages[0], holder)
            found.pages, found.found = tuple(pages[:SHOWN]), len(pages)
            state.gone.add(holder)


def check_promise(state: State, pool: PoolState, number: Page, page: PageState, key: str) -> None:
    """Check that the content that a name promises is written, or queued to be."""
    meant = page.keys[key].meant
    state.checked["MEM-NAME"] += 1
    if tuple(page.content) == meant and meant[0].label is not None:
        return
    for piece in page.pieces(0, meant[-1].stop):
        if not isinstance(piece, Content):
            if pool.writes_reported:
                found = state.find("MEM-NAME/unwritten", pool, number)
                found.key, found.slot = key, piece
                return
        elif any(state.agree(piece, want) is False for want in meant):
            found = state.find("MEM-NAME/content", pool, number)
            found.key, found.slot, found.found, found.other = key, piece.start, piece.label, page.writer
            found.expected = next(want.label for want in meant if state.agree(piece, want) is False)
            return
        elif piece.label is None or meant[0].label is None:
            pool.unchecked["MEM-NAME"] += 1


def check_plans(state: State, pool: PoolState, number: Page, page: PageState, gone: str | None = None) -> None:
    """Check the planned names of a page whose writer is `gone`: the promised content must be there.

    A plan without a writer may be carried out by any holder of the page.
    """
    plans = page.plans or NOTHING
    left = [None] * (not (page.holders or page.pins)) + [gone] * (gone is not None)
    for key in [key for writer in left if writer in plans for key in plans[writer].keys]:
        check_promise(state, pool, number, page, key)


def owners(page: PageState) -> Owners:
    """The holders of a page, and the first key that finds it."""
    holders = sorted({*page.holders, *page.pins})
    return Owners(tuple(holders[:OWNERS_SHOWN]), len(holders), next(iter(page.keys), None))


def _refer(state: State, pool: PoolState, number: Page, page: PageState, holder: str, *, pin: bool = False) -> None:
    if not (page.holders or page.pins):
        pool.count([number], held=1, cached=-bool(page.keys))
    references = page.pins if pin else page.holders
    if len(references) > 1:
        references[holder] = references.get(holder, 0) + 1
    elif pin:
        page.pins = {**references, holder: references.get(holder, 0) + 1}
    else:
        page.holders = {**references, holder: references.get(holder, 0) + 1}
    state.held(holder, pool)[number] = None


def _unrefer(state: State, pool: PoolState, number: Page, page: PageState, holder: str, code: str) -> bool:
    """Take one reference back; note a finding, and change nothing, if the holder has none."""
    references = page.holders if holder in page.holders else page.pins
    left = references.get(holder, 0) - 1
    if left < 0:
        state.find(code, pool, number, holder).owners = owners(page)
        return False
    if len(references) > 1:
        references[holder] = left
        if not left:
            del references[holder]
    elif references is page.holders:
        page.holders = {holder: left} if left else NOTHING
    else:
        page.pins = {holder: left} if left else NOTHING
    if left:
        return True
    if holder not in page.pins:
        held = state.holdings[holder]
        pages = held[pool.name]
        del pages[number]
        if not pages:
            del held[pool.name]
            if not held:
                del state.holdings[holder]
    if not (page.holders or page.pins):
        pool.count([number], held=-1, cached=bool(page.keys))
    if page.tables:
        state.changed(page, holder=holder)
    return True


def _unname(pool: PoolState, number: Page, page: PageState, keys: list[str]) -> None:
    pool.rename(keys)
    for key in keys:
        page.unplan(key)
        del page.keys[key]
        found = pool.found(key)
        del found[number]
        if not found:
            del pool.names[key]
    if keys and not (page.keys or page.holders or page.pins):
        pool.count([number], cached=-1)


def _check_reserved(state: State, pool: PoolState) -> None:
    """Check that the pages reserved for holders are free or cached."""
    if pool.reserved and pool.total is not None:
        promised, left = pool.promised, pool.total - pool.held
        if found := find_once(state, pool, "MEM-RESERVE/exceeded", "reserved", max(0, promised - left)):
            found.expected, found.found = left, promised


def _one_each(keys: list[str] | None, numbers: list[Page]) -> list[str] | list[None]:
    """The key of each page; `None` for each if there are no keys."""
    if keys is None:
        return [None] * len(numbers)
    if len(keys) != len(numbers):
        raise Malformed(f"{len(keys)} keys for {len(numbers)} pages")
    return keys
