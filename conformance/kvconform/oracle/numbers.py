"""Checks each number in an answer: those given, freed or evicted, and the rows of a batch."""

from collections.abc import Mapping
from itertools import chain, islice

from kvconform.oracle.notes import NotedState, copy_of
from kvconform.oracle.parts import not_reported
from kvconform.oracle.pools import FREE, STORE, Pool, pool_of, record_name
from kvspec.model.answer import Needs, PoolName
from kvspec.model.state import WITHHELD
from kvspec.pages import Runs
from kvspec.rules import Violation

FREED = {"pages": "freed", "window": "window_freed", "states": "states_freed"}
"""Pool -> the answer field for its freed numbers."""


def smallest(pool: Pool, needs: Needs) -> dict[str, Runs]:
    """The smallest free numbers, as many as each request needs."""
    free = (number for number in range(1, pool.size + 1) if number not in pool.owners)
    return {req: list(islice(free, need)) for req, need in needs if need}


def check_free(
    state: NotedState, pool: Pool, numbers: list[int], given: dict[str, list[int]], seen: set[int], req: str
) -> None:
    """Check that each number is free; `seen` are those `given` to others of the batch, and gets these numbers, too."""
    before = len(seen)
    seen.update(numbers)
    fine = len(seen) == before + len(numbers) and pool.owners.keys().isdisjoint(numbers)
    if fine and min(numbers) >= 1 and max(numbers) <= pool.size:
        return
    taken = {*chain(*given.values())}
    for number in numbers:
        exists = 1 <= number <= pool.size
        if number in taken or number in pool.owners or not exists:
            whose = "was given out already" if number in taken and exists else pool.use(state, number)[1]
            what = f"{pool.kind} {number} was given to {req}, but it {whose}"
            wrong = {f"{pool.kind}s": [number]}
            expected = f"a free {pool.kind}"
            raise Violation(pool.rule, what, expected=expected, observed=number, part=pool.given, wrong=wrong)
        taken.add(number)


def check_freed(
    state: NotedState,
    name: PoolName,
    rule: str,
    due: list[int],
    freed: list[int],
    total: int,
    staying: Mapping[int, str],
) -> None:
    """Compare the freed numbers of a pool, `total` in all, with the expected ones, number by number."""
    pool, of_pages = pool_of(state, name), name == "pages"
    assert pool is not None, "something went back to it"
    unreported = any(one < 0 for one in due)
    if unreported and total != len(due):
        what = f"the number of freed {pool.kind}s is wrong"
        raise Violation(rule, what, expected=len(due), observed=total, part=FREED[name])
    seen: set[int] = set()
    for number in freed:
        if number in seen:
            twice = pool.rule if of_pages else rule
            raise Violation(
                twice,
                f"{pool.kind} {number} was freed twice",
                expected=due,
                observed=freed,
                part=f"{FREED[name]}.twice",
                wrong={f"{pool.kind}s": [number]},
            )
        if number not in due:
            broken, whose = pool.use(state, number)
            if number in staying:
                broken = staying[number]
                whose = "is no duplicate" if broken == "STORE-5" and not whose.endswith(STORE) else whose
            if not (unreported and whose == FREE):
                what = f"{pool.kind} {number} was freed, but it {whose}"
                raise Violation(broken, what, expected=due, observed=freed, part=f"{FREED[name]}.early")
        seen.add(number)
    left = sorted(set(due) - seen)
    if left and not unreported:
        what = f"{pool.kind}(s) {_listed(left)} were not freed and have no holder"
        raise Violation(rule, what, expected=due, observed=freed, part=f"{FREED[name]}.kept")


def _listed(numbers: list[int]) -> str:
    """A few numbers, for a sentence."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def check_row(state: NotedState, req: str, kept: int | None, rows: dict[str, int] | None, batch: dict[str, int]) -> int:
    """Check the row of one request of an extend: `kept` is the row it brings, `batch` the rows of earlier requests."""
    row = None if rows is None else rows.get(req)
    if row is None:
        not_reported(state, "ROW-1", "rows")
        if kept is not None:
            return kept
        state.virtual_row -= 1
        return state.virtual_row
    if kept is not None:
        if row != kept:
            raise Violation(
                "ROW-2", f"{req} did not keep its row", expected=kept, observed=row, wrong={"rows": [kept, row]}
            )
        state.checked["ROW-2"] += 1
        state.checked["ROW-3"] += 1
        return row
    what = f"{req} was given row {row}"
    if not 0 <= row < state.config.num_rows:
        raise Violation("ROW-1", what, expected=f"0..{state.config.num_rows - 1}", observed=row)
    if row in batch.values():
        wrong = {"rows": [row]}
        raise Violation("ROW-1", f"row {row} was given out twice", expected="a free row", observed=row, wrong=wrong)
    holder = state.rows.get(row)
    if holder is not None:
        read = holder == WITHHELD
        whose = "a launch in flight still reads" if read else f"belongs to {record_name(state, holder)}"
        rule = "RACE-1" if read else "ROW-4" if state.let_go.get(req) == row else "ROW-1"
        what = f"{what}, which {whose}"
        raise Violation(rule, what, expected="a free row", observed=row, wrong={"rows": [row]})
    state.checked["ROW-1"] += 1
    state.checked["RACE-1"] += bool(state.readers)
    return row


def never_evicted(state: NotedState, pages: list[int]) -> Violation:
    """The violation of an eviction that names a page twice, or a page that is not the store's."""
    seen: set[int] = set()
    for page in pages:
        key = state.owner.get(page)
        if not isinstance(key, bytes):
            whose = "is free" if key is None else "is a holder's private page"
            if not 1 <= page <= state.config.num_pages:
                whose = "does not exist"
            return Violation(
                "STORE-3", f"page {page} was evicted, but it {whose}", observed=pages, wrong={"pages": [page]}
            )
        if page in seen:
            return Violation("PAGE-1", f"page {page} was evicted twice", observed=pages, wrong={"pages": [page]})
        seen.add(page)
    raise AssertionError("each page is the store's, and named once")


def victims(state: NotedState, n: int) -> list[int]:
    """Any `n` evictable pages: the specification does not say which, so those with the smallest numbers."""
    store = copy_of(state.store)
    pages: list[int] = []
    while len(pages) < n:
        leaves = [(page, key) for key, page in store.pages.items() if not store.children.get(key, 1)]
        free = [(page, key) for page, key in leaves if page not in store.pins]
        if not free:
            break
        page, key = min(free)
        store.remove({key: page}, [store.parents[page]])
        pages.append(page)
    return pages
