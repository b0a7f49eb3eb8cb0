"""The fast checker has the findings of the plain one, which looks at every slot at every read, and no others."""

import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

import pytest

import kvcheck
from kvcheck.pages import PageGroup
from kvcheck.pools import PoolState
from kvconform.oracle.meaning import MakeChecker
from kvspec.memory import Finding, events
from kvspec.memory.checker import Checker
from kvspec.memory.events import Event, OpId, Page, Use
from kvspec.rules import CODES
from tests.kvcheck.walks import Announcing, Apart, Decoding, Together, Walk, pools
from tests.spec.memory.once import Once

pytestmark = pytest.mark.slow

WALKS = int(os.environ.get("KVSPEC_WALKS", "400"))
FORGOTTEN = dict.fromkeys(("MEM-WRITTEN", "MEM-CONTENT", "MEM-NAME", "MEM-OVERWRITE"), "") | {
    "MEM-REWRITE": "MEM-RACE/write"
}
"""Codes that are not compared for a free page, whose content may be forgotten."""
NEVER = {f"MEM-FAILED/{kind}" for kind in ("assertion", "exhausted", "stuck")}
NEVER |= {"MEM-ORDER/begun-again", "MEM-TAKE/unknown", "MEM-USE/no-table"}
"""Codes that no walk produces; scenarios do."""
CONTENT = ("MEM-CONTENT/other", "MEM-CONTENT/shifted")
"""Where a page is looked at in parts, each may be found."""
OF_SEVERAL = ("MEM-LEAK", "MEM-COUNT")
"""Rules that are broken by several pages at once, of which one is named."""
REACHED = {code for code in CODES if code.startswith("MEM-")} - NEVER | {"reported once"}
"""The codes that walks find, but for those that mostly decode."""
OF_HOSTS = {"MEM-AGREE/differs", "MEM-AGREE/missing"}
"""Codes that show with several hosts only."""
OF_ROUTERS = {code for code in CODES if code.startswith("MEM-ANNOUNCE")}
"""Codes that show where blocks are announced only."""
TOGETHER = {f"{kind} grouped" for kind in ("Take", "Share", "Release", "Publish", "Drop", "Map", "Unmap", "Begin")}
TOGETHER |= {"Transfer grouped"}
TOGETHER |= {f"{kind} splits" for kind in ("Share", "Release", "Publish", "Drop", "Map", "Unmap", "Begin")}
TOGETHER |= {f"{kind} parts" for kind in ("Take", "Share", "Release", "Publish", "Drop", "Begin", "Transfer")}
"""The cases that walks of requests with several pages reach: page groups that are handled whole, or parted."""
Reported = set[tuple[str, str | None, Page | None]]


def pages_of(checker: Checker, use: Use) -> set[tuple[str, Page]]:
    """The pages of a use, with their pools."""
    places = [(part.page.pool.name, part.page.number) for part in checker.parts_of(use)]
    return {(pool, number) for pool, number in places if number is not None}


def written_by(event: events.Begin) -> list[Use]:
    """The uses of an operation that write."""
    return [*event.writes, *(target for _, target in event.copies)]


def in_flight(checker: Checker) -> Iterator[tuple[tuple[str, Page], int]]:
    """The pages that operations in flight use, with the operations' numbers."""
    for name, pool in checker.pools.items():
        for page in pool.pages.values():
            for (number, _), _, _ in page.uses:
                if page.number is not None and any(checker.order.flies(number, host) for host in checker.order.hosts):
                    yield (name, page.number), number


def free(checker: Checker, walk: Walk) -> set[tuple[str, Page]]:
    """The pages of a walk that have no holder and no key."""
    known = {name: checker.pools[name].pages for name in ("kv", "states")}
    return {
        (name, page)
        for name, pages in known.items()
        for page in walk.numbers(name)
        if page not in pages or not pages[page].holds(None)
    }


def note(reached: Counter[str], pool: PoolState, event: Event, before: dict[Page, PageGroup]) -> None:
    """Count whether an event handled page groups, not all that there were `before` it, or parted one of them."""
    kind = type(event).__name__
    handled = [one for page, one in before.items() if page not in pool.individual and pool.groups.get(page) is not one]
    whole = Counter(before.values())
    reached[f"{kind} grouped"] += bool(handled or pool.groups.keys() - before.keys())
    reached[f"{kind} splits"] += any(number < whole[one] for one, number in Counter(handled).items())
    reached[f"{kind} parts"] += any(page in pool.individual for page in before)


def disagreement(seed: int, steps: int, walks: type[Walk], reached: Counter[str]) -> list[str]:
    """The findings of only one of the two, behind the events up to there."""
    random = Random(seed)
    sizes = pools(random, walks.pages)
    checker, fast, trace = Once(sizes), kvcheck.Checker(sizes), [repr(sizes)]
    walk = walks(random, checker)
    forgettable = set[tuple[str, Page]]()
    """Pages that were free and were not handed out since."""
    unsure = set[int]()
    """Operations that read of such a page, what one of these or they themselves wrote, or what is not repeated; those
    that write a page twice, and those that use a page of `handed_on`."""
    handed_on = set[tuple[str, Page]]()
    """Pages that were handed out while an operation that uses them was in flight."""

    def early(id: OpId) -> bool:
        """Whether a result leaves while its operation is in flight: it is not compared whether it is tainted."""
        return checker.order.flies(checker.order.named[id], event.host)

    def compared(findings: Iterable[Finding]) -> Reported:
        out: Reported = set()
        for found in findings:
            forgotten = found.page is not None and (found.pool or "", found.page) in forgettable
            code = FORGOTTEN.get(found.rule, found.code) if forgotten else found.code
            if isinstance(event, events.Deliver) and code == "MEM-DELIVER/tainted" and early(event.id):
                code = "MEM-DELIVER/incomplete"
            if code and not (
                found.rule == "MEM-DELIVER"
                and isinstance(event, events.Deliver)
                and checker.order.named.get(event.id) in unsure
            ):
                out.add((code, found.pool, None if found.rule in OF_SEVERAL else found.page))
        return out

    for _ in range(steps):
        event = walk.event()
        if isinstance(event, events.Begin):
            event.copies = [copy for copy in event.copies if forgettable.isdisjoint(pages_of(checker, copy[0]))]
        trace.append(repr(event))
        reads = (
            {page for use in event.reads for page in pages_of(checker, use)} if isinstance(event, events.Begin) else ()
        )
        before = {**fast.state.pools["kv"].groups}
        found_slowly, found_fast = checker.step(event), fast.step(event)
        note(reached, fast.state.pools["kv"], event, before)
        if isinstance(event, events.Begin):
            number = checker.order.named[event.id]
            writers = {writer for reader, _, _, (writer, _) in checker.found if reader[0] == number}
            written = Counter(page for use in written_by(event) for page in pages_of(checker, use))
            twice, own = max(written.values(), default=0) > 1, {number}
            blurred = forgettable | handed_on
            if checker.repeated or twice or not blurred.isdisjoint(reads) or not writers.isdisjoint(unsure | own):
                unsure.add(number)
        if isinstance(event, events.Take):
            taken = {(event.pool, number) for number in event.pages if not isinstance(number, tuple)}
            forgettable -= taken
            under = [(place, number) for place, number in in_flight(checker) if place in taken]
            handed_on |= {place for place, _ in under}
            unsure |= {number for _, number in under}
        due, found = compared(found_slowly), compared(found_fast)
        allowed = due | compared(checker.repeated)
        allowed |= {(other, pool, page) for other in CONTENT for code, pool, page in due if code in CONTENT}
        reached.update(code for code, *_ in due & found)
        reached["reported once"] += len(allowed - found)
        if not due <= found <= allowed:
            return [*trace, f"only the fast checker finds {found - allowed}, only the plain one {due - found}"]
        forgettable |= free(checker, walk)
    return []


def shortest(walks: type[Walk], seeds: range, steps: int) -> tuple[list[str], Counter[str]]:
    """Of some walks the one on which the two disagree first, and what was found in all."""
    reached = Counter[str]()
    traces = [disagreement(seed, steps, walks, reached) for seed in seeds]
    return min(traces, key=lambda trace: len(trace) or 1 << 62), reached


def test_the_fast_checker_finds_what_looking_at_every_slot_finds() -> None:
    trace, reached = shortest(Walk, range(WALKS), 50)
    assert trace == []
    reached += Counter()
    missed = REACHED - OF_HOSTS - OF_ROUTERS - reached.keys()
    assert not missed, missed


def test_the_fast_checker_finds_what_the_plain_one_finds_where_hosts_are_apart() -> None:
    trace, reached = shortest(Apart, range(WALKS), 50)
    assert trace == []
    reached += Counter()
    missed = REACHED - OF_ROUTERS - {"MEM-USE/no-page"} - reached.keys()
    assert not missed, missed


def test_the_fast_checker_finds_what_the_plain_one_finds_of_announcements() -> None:
    trace, reached = shortest(Announcing, range(2 * WALKS), 50)
    assert trace == []
    reached += Counter()
    missed = OF_ROUTERS - reached.keys()
    assert not missed, missed


@pytest.mark.parametrize("walks", [Walk, Decoding])
def test_the_same_is_found_where_many_tables_streams_and_operations_have_to_do_with_a_page(
    walks: type[Walk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcheck.pages.FEW", 1)
    monkeypatch.setattr("kvcheck.state.FEW", 1)
    monkeypatch.setattr("kvcheck.state.VIEWS", 1)
    monkeypatch.setattr("kvcheck.flights._MANY", 2)
    assert shortest(walks, range(1000, 1150), 50)[0] == []


def test_decode_steps_are_checked_as_if_every_slot_were_looked_at() -> None:
    trace, reached = shortest(Decoding, range(200), 60)
    assert trace == []
    assert reached["reported once"] > 0


def test_pages_that_are_handled_together_are_checked_as_if_each_were_alone() -> None:
    trace, reached = shortest(Together, range(400), 70)
    assert trace == []
    reached += Counter()
    assert reached.keys() >= TOGETHER, TOGETHER - reached.keys()


@pytest.mark.parametrize("made", [Checker, kvcheck.Checker], ids=["plain", "fast"])
def test_a_checker_goes_on_from_a_copy_as_it_would_itself(made: MakeChecker) -> None:
    """An exploration goes on from copies: the same is found, in the same order."""
    for seed in range(60):
        random = Random(seed)
        sizes = pools(random, Walk.pages)
        plain, checker = Checker(sizes), made(sizes)
        walk = Walk(random, plain)
        for _ in range(30):
            event = walk.event()
            plain.step(event)
            checker.step(event)
        copied = pickle.loads(pickle.dumps(checker))
        for _ in range(30):
            event = walk.event()
            plain.step(event)
            assert copied.step(event) == checker.step(event)
