"""Who refers to which pages, and by which names they are found: take, share, release, pass_on, publish, drop, move."""

from collections import Counter

from kvspec.memory.events import (
    Count,
    Drop,
    Failed,
    Idle,
    Leave,
    Move,
    Page,
    Pages,
    PassOn,
    Publish,
    Release,
    Renew,
    Reserve,
    Share,
    Take,
)
from kvspec.memory.state import Content, Malformed, PageState, PoolState, Promise, State


def take(state: State, event: Take) -> None:
    """The allocator hands free pages out; what was in them counts no more."""
    pool = state.pool(event.pool)
    if pool.pool.keyed:
        raise Malformed(f"pool {event.pool} is a storage: nobody takes its pages")
    for number in pool.expand(event.pages):
        if not pool.exists(number):
            why = "is padding" if number in pool.sinks else "does not exist"
            state.find("MEM-TAKE", f"page {number} {why}", pool, number, event.holder)
            continue
        page = pool.page(number)
        if page.free:
            page.cause = None
        else:
            state.find("MEM-TAKE", f"page {number} is handed out, but {whose(page)}", pool, number, event.holder)
            was = page.kind
            page.keys.clear()
            pool.recount(was, page)
        page.content = []
        _refer(state, pool, number, page, event.holder, page.holders)
        state.changed(page)
    if event.holder in pool.reserved:
        pool.reserved[event.holder] = max(0, pool.reserved[event.holder] - len(pool.expand(event.pages)))
    _check_reserved(state, pool)


def share(state: State, event: Share) -> None:
    """One more reference to pages that are in use or published."""
    pool = state.pool(event.pool)
    numbers = pool.expand(event.pages)
    keys = _one_each(event.keys, numbers, "keys")
    for index, number in enumerate(numbers):
        page = pool.pages.get(number)
        if page is None or page.free:
            state.find("MEM-SHARE", f"page {number} is shared, but it is free", pool, number, event.holder)
            page = pool.page(number)
        elif keys and keys[index] not in page.keys:
            state.find(
                "MEM-SHARE", f"page {number} is shared, but is not found by {keys[index]}", pool, number, event.holder
            )
        _refer(state, pool, number, page, event.holder, page.pins if event.pin else page.holders)
    _check_reserved(state, pool)


def release(state: State, event: Release) -> None:
    """One reference less to each page; one without references and names is free."""
    pool = state.pool(event.pool)
    for number in pool.expand(event.pages):
        if _unrefer(state, pool, number, event.holder, "released"):
            _let_go(state, pool, number)


def pass_on(state: State, event: PassOn) -> None:
    """References change hands; all of them take the tables along."""
    if event.pages is not None:
        if event.pool is None:
            raise Malformed("pass_on names pages, but no pool")
        pool = state.pool(event.pool)
        for number in pool.expand(event.pages):
            pinned = event.old in pool.page(number).pins
            if _unrefer(state, pool, number, event.old, "passed on"):
                page = pool.page(number)
                _refer(state, pool, number, page, event.new, page.pins if pinned else page.holders)
        return
    for name, number in list(state.holdings.get(event.old, ())):
        if event.pool in (None, name):
            pool = state.pools[name]
            page = pool.page(number)
            for references in (page.holders, page.pins):
                for _ in range(references.get(event.old, 0)):
                    _unrefer(state, pool, number, event.old, "passed on", references)
                    _refer(state, pool, number, page, event.new, references)
    for table in state.tables.values() if event.pool is None else ():
        if table.holder == event.old:
            table.holder = event.new


def publish(state: State, event: Publish) -> None:
    """Pages can be found by a name from now on: what it promises has to be there, or planned."""
    pool = state.pool(event.pool)
    numbers = pool.expand(event.pages)
    keys = _one_each(event.keys, numbers, "keys") or []
    slots = event.slots or pool.size
    each = -(-slots // pool.unit)
    if event.labels is not None and len(event.labels) != each * len(numbers):
        raise Malformed(f"publish has {len(event.labels)} labels for {len(numbers)} pages of {each}")
    for index, (number, key) in enumerate(zip(numbers, keys, strict=True)):
        page = pool.pages.get(number)
        if page is None or (page.free and not pool.pool.keyed):
            state.find("MEM-NAME", f"page {number} is published as {key}, but it is free", pool, number)
            page = pool.page(number)
        labels = None if event.labels is None else tuple(event.labels[index * each : (index + 1) * each])
        promise = Promise(slots, labels, event.planned)
        was = page.keys.get(key)
        if was is not None and not was.planned and differs(state, pool, was, promise):
            state.find("MEM-NAME", f"key {key} names two contents", pool, number)
        kind = page.kind
        page.keys[key] = promise
        pool.recount(kind, page)
        if not event.planned:
            check_promise(state, pool, number, page, key, promise)


def drop(state: State, event: Drop) -> None:
    """Names are withdrawn."""
    pool = state.pool(event.pool)
    numbers = pool.expand(event.pages)
    keys = _one_each(event.keys, numbers, "keys")
    for index, number in enumerate(numbers):
        page = pool.page(number)
        kind, named = page.kind, list(page.keys) if keys is None else [keys[index]]
        for key in named:
            if page.keys.pop(key, None) is None:
                state.find("MEM-NAME", f"page {number} is not published as {key}, which is withdrawn", pool, number)
        if not named:
            state.find("MEM-NAME", f"page {number} has no name to withdraw", pool, number)
        pool.recount(kind, page)
        state.forget_if_free(pool, number, page)


def renew(state: State, event: Renew) -> None:
    """A holder uses pages afresh in its own table, without the allocator."""
    pool = state.pool(event.pool)
    for number in pool.expand(event.pages):
        page = pool.page(number)
        if event.holder not in page.holders or len(page.holders) > 1 or page.keys:
            what = f"page {number} is used afresh by {event.holder}, but {whose(page)}"
            state.find("MEM-OVERWRITE", what, pool, number, event.holder)
        page.content = []
        state.changed(page)


def move(state: State, event: Move) -> None:
    """Holders and names of a page follow to a free page."""
    source = state.pool(event.pool)
    target = source if event.to_pool is None else state.pool(event.to_pool)
    old, new = source.page(event.page), target.page(event.to)
    if not new.free or not target.exists(event.to):
        state.find("MEM-TAKE", f"page {event.to} is moved to, but {whose(new)}", target, event.to)
    new.content = []
    for kind in ("holders", "pins"):
        for holder, count in list(getattr(old, kind).items()):
            for _ in range(count):
                _unrefer(state, source, event.page, holder, "moved", getattr(old, kind))
                _refer(state, target, event.to, new, holder, getattr(new, kind))
    was_old, was_new = old.kind, new.kind
    new.keys, old.keys = {**new.keys, **old.keys}, {}
    source.recount(was_old, old)
    target.recount(was_new, new)
    state.changed(new)
    state.changed(old)
    state.forget_if_free(source, event.page, old)


def reserve(state: State, event: Reserve) -> None:
    """So many further pages are promised to a holder."""
    if event.pages < 0:
        raise Malformed(f"{event.pages} pages are reserved")
    pool = state.pool(event.pool)
    pool.reserved[event.holder] = event.pages
    if not event.pages:
        del pool.reserved[event.holder]
    _check_reserved(state, pool)


def leave(state: State, event: Leave) -> None:
    """A holder is gone: nothing of it may be left."""
    _nothing_left(state, event.holder, "has left")
    for pool in state.pools.values():
        pool.reserved.pop(event.holder, None)


def idle(state: State, event: Idle) -> None:
    """The engine is idle: only keepers may hold anything."""
    for holder in sorted(state.holdings.keys() - set(event.keepers)):
        if holder not in state.gone:
            _nothing_left(state, holder, "is no keeper at idle")


def _nothing_left(state: State, holder: str, why: str) -> None:
    by_pool: dict[str, list[Page]] = {}
    for name, number in state.holdings.get(holder, ()):
        by_pool.setdefault(name, []).append(number)
    for name, pages in by_pool.items():
        shown = ", ".join(map(str, pages[:8])) + (", ..." if len(pages) > 8 else "")
        what = f"{holder} {why} and still holds {len(pages)} page(s) of {name}: {shown}"
        state.find("MEM-LEAK", what, state.pools[name], pages[0], holder)
        state.gone.add(holder)


def count(state: State, event: Count) -> None:
    """The engine's own figures, or its lists, against what its events add up to. Each difference is told once."""
    pool = state.pool(event.pool)
    kinds = pool.kinds
    free = None if pool.total is None else pool.total - kinds["held"] - kinds["cached"]
    of = (("free", event.free, free), ("cached", event.cached, kinds["cached"]), ("held", event.held, kinds["held"]))
    for figure, told, due in of:
        if told is None:
            continue
        total = told if isinstance(told, int) else sum(run[1] if isinstance(run, tuple) else 1 for run in told)
        if due is None:
            state.unjudged["MEM-COUNT"] += 1
        elif total == due:
            pool.told.pop(figure, None)
        elif pool.told.get(figure) != total - due:
            pool.told[figure] = total - due
            state.find("MEM-COUNT", f"{total} pages of {pool.name} are told to be {figure}, it is {due}", pool)
        if not isinstance(told, int):
            _count_pages(state, pool, figure, told)
    for number, references in (event.references or {}).items():
        page = pool.pages.get(number)
        due = 0 if page is None else sum(page.holders.values()) + sum(page.pins.values())
        if references != due and pool.told.get(f"references {number}") != references - due:
            pool.told[f"references {number}"] = references - due
            state.find("MEM-COUNT", f"page {number} is told to have {references} references, it is {due}", pool, number)
        elif references == due:
            pool.told.pop(f"references {number}", None)


def _count_pages(state: State, pool: PoolState, figure: str, told: Pages) -> None:
    """Pages in one of the engine's lists that the law has elsewhere, or that are there twice."""
    runs = sorted(run if isinstance(run, tuple) else (run, 1) for run in told if not isinstance(run, str))
    end = None
    for first, length in runs:
        if end is not None and first < end:
            _count_page(state, pool, first, figure, "twice")
        end = max(first + length, first if end is None else end)
    for number, page in pool.pages.items():
        if page.kind != figure and isinstance(number, int) and _inside(runs, number):
            _count_page(state, pool, number, figure, f"but {whose(page)}")


def _inside(runs: list[tuple[int, int]], number: int) -> bool:
    low, high = 0, len(runs)
    while low < high:
        middle = (low + high) // 2
        if runs[middle][0] <= number:
            low = middle + 1
        else:
            high = middle
    return low > 0 and number < runs[low - 1][0] + runs[low - 1][1]


def _count_page(state: State, pool: PoolState, number: Page, figure: str, why: str) -> None:
    if pool.told.get(f"{figure} {number}") != why:
        pool.told[f"{figure} {number}"] = why
        state.find("MEM-COUNT", f"page {number} is in the list of {figure} pages, {why}", pool, number)


def failed(state: State, event: Failed) -> None:
    """The engine gave up."""
    state.find("MEM-FAILED", f"{event.kind}: {event.what}")


def check_promise(state: State, pool: PoolState, number: Page, page: PageState, key: str, promise: Promise) -> None:
    """What a name promises is there, or is queued to be."""
    for piece in page.pieces(0, promise.slots):
        if not isinstance(piece, Content):
            if pool.pool.writes_told:
                state.find(
                    "MEM-NAME",
                    f"page {number} is published as {key}, but slot {piece[0]} was never written",
                    pool,
                    number,
                )
            return
        if promise.labels is None or piece.label is None:
            state.unjudged["MEM-NAME"] += 1
        elif not means(state, pool, piece, promise.labels):
            state.find(
                "MEM-NAME",
                f"page {number} is published as {key}, but holds {piece.label} from slot {piece.start}",
                pool,
                number,
            )
            return


def means(state: State, pool: PoolState, piece: Content, labels: tuple[str, ...] | list[str]) -> bool:
    """Whether a piece of a page holds what labels, one for each unit of the page, say."""
    assert piece.label is not None
    for slot in range(piece.start - piece.start % pool.unit, piece.stop, pool.unit):
        start, stop = max(slot, piece.start), min(slot + pool.unit, piece.stop)
        offset = piece.offset + start - piece.start
        if offset != start - slot or not state.labels.same(
            piece.label, labels[slot // pool.unit], offset, offset + stop - start
        ):
            return False
    return True


def differs(state: State, pool: PoolState, one: Promise, other: Promise) -> bool:
    """Whether two promises under one key contradict each other."""
    return any(
        not state.labels.same(left, right, 0, min(pool.unit, min(one.slots, other.slots) - index * pool.unit))
        for index, (left, right) in enumerate(zip(one.labels or (), other.labels or (), strict=False))
    )


def whose(page: PageState) -> str:
    """Whose a page is, in words."""
    holders = sorted({*page.holders, *page.pins})
    if holders:
        return f"{', '.join(holders[:4])}{', ...' if len(holders) > 4 else ''} hold{'s' * (len(holders) == 1)} it"
    return f"{next(iter(page.keys))} finds it" if page.keys else "nobody holds it"


def _refer(
    state: State, pool: PoolState, number: Page, page: PageState, holder: str, references: dict[str, int]
) -> None:
    was = page.kind
    references[holder] = references.get(holder, 0) + 1
    pool.recount(was, page)
    state.holdings.setdefault(holder, Counter())[pool.name, number] += 1
    state.gone.discard(holder)


def _unrefer(
    state: State, pool: PoolState, number: Page, holder: str, done: str, references: dict[str, int] | None = None
) -> bool:
    """Take one reference back; note a finding, and change nothing, if the holder has none."""
    page = pool.page(number)
    if references is None:
        references = page.holders if holder in page.holders else page.pins
    if holder not in references:
        state.find("MEM-RELEASE", f"page {number} is {done} by {holder}, but {whose(page)}", pool, number, holder)
        state.forget_if_free(pool, number, page)
        return False
    was = page.kind
    references[holder] -= 1
    if not references[holder]:
        del references[holder]
        pool.recount(was, page)
        if page.tables:
            state.changed(page)
    held = state.holdings[holder]
    held[pool.name, number] -= 1
    if not held[pool.name, number]:
        del held[pool.name, number]
        if not held:
            del state.holdings[holder]
    return True


def _let_go(state: State, pool: PoolState, number: Page) -> None:
    """A reference went. If it was the last, a name that promises what was not written has nobody left to keep it."""
    page = pool.page(number)
    if page.holders:
        return
    for key, promise in page.keys.items():
        if promise.planned and not page.pins:
            check_promise(state, pool, number, page, key, promise)
    state.forget_if_free(pool, number, page)


def _check_reserved(state: State, pool: PoolState) -> None:
    """What is promised to holders is free or cached."""
    if not pool.reserved or pool.total is None:
        return
    there, promised = pool.total - pool.kinds["held"], sum(pool.reserved.values())
    if promised > there and pool.told.get("reserved") != promised - there:
        state.find("MEM-RESERVE", f"{promised} pages of {pool.name} are promised, {there} are left", pool)
    pool.told["reserved"] = max(0, promised - there)


def _one_each(names: list[str] | None, numbers: list[Page], what: str) -> list[str] | None:
    if names is not None and len(names) != len(numbers):
        raise Malformed(f"{len(names)} {what} for {len(numbers)} pages")
    return names
