"""Compares the answer of an implementation with the answer that the specification expects."""

from collections.abc import Collection, Mapping
from typing import Any, cast

from msgspec.structs import asdict

from kvconform.oracle import inspection as looking
from kvconform.oracle.notes import NotedState
from kvconform.oracle.numbers import (
    FREED,
    check_free,
    check_freed,
    check_row,
    never_evicted,
    smallest,
    victims,
)
from kvconform.oracle.parts import check_content, check_length, not_reported, other_state
from kvconform.oracle.pools import STORE, Pool, pool_of
from kvconform.protocol import ANSWERS
from kvspec.events import Answer, Event, Figures, FreeState, OpenSession
from kvspec.model.answer import Needs, PoolName
from kvspec.model.records import Part
from kvspec.model.recurrent import source
from kvspec.pages import Runs, beginning, count
from kvspec.rules import Violation
from kvspec.tokens import PrefixKey

_MORE = 64
"""Of numbers beyond the expected ones, so many are written out for the report."""
_EVICTED = {"window": "window_evicted", "states": "states_evicted"}
"""Pool -> the answer field for its evictions."""


class Observed:
    """The observed answer to one operation. If there is none, a right answer is made up.

    A reported field counts as checked by its rule; a field that is left out counts as unchecked.
    """

    __slots__ = ("_made_up", "_obs", "_op", "_state")

    def __init__(self, state: NotedState, op: Event) -> None:
        """The answer to `op` in a state."""
        self._state, self._op = state, op
        self._obs: Any = op.obs
        if self._obs is None:
            self._made_up: dict[str, Any] = {}

    @property
    def chooses(self) -> bool:
        """Whether nothing was answered."""
        return self._obs is None

    def made_up(self) -> Answer:
        """The answer that was made up."""
        return ANSWERS[type(self._op)](**self._made_up)

    def _answered(self, part: str, otherwise: Any) -> Any:
        """A field of the answer; if there is no answer, the made-up value `otherwise`."""
        if self._obs is None:
            self._made_up[part] = otherwise
            return otherwise
        return getattr(self._obs, part)

    def carried_out(self, rule: str = "OP-1", /, *others: str) -> None:
        """The operation is due by `rule`, and fits: a refusal breaks `rule`, or the one of `others` that it names."""
        refused = self._op.refused
        if refused is not None:
            short = refused.pages_short or refused.rows_short or refused.window_short or refused.states_short
            if isinstance(self._op, OpenSession) and self._op.session in self._state.closed_late:
                rule = "SESS-4"
            broken = "CAP-1" if short else refused.rule if refused.rule in ("CAP-1", "RACE-1", *others) else rule
            what = f"the operation was refused ({refused.reason or 'no reason given'}), but nothing stands in its way"
            raise Violation(broken, what, expected="carried out", observed="refused", part="refused")
        self._state.checked["OP-1"] += 1
        for one in (rule, *others):
            self._state.checked[one] += one != "OP-1"

    def length(self, part: str, rule: str, due: int, /) -> None:
        """A length, in tokens; a protected one is whole pages (LEN-2)."""
        observed = self._answered(part, due)
        rules = (rule, "LEN-2") if part == "protected_len" else (rule,)
        for one in reversed(rules) if (observed or 0) % self._state.config.page_size else rules:
            check_length(self._state, one, part, due, observed)
        if part == "protected_len":
            self._state.reached["match cut short by a tombstone"] += rule == "SWA-4"
            self._state.reached["match ends where a state is"] += rule == "MAMBA-3"

    def choice(self, part: str, otherwise: int, /) -> int:
        """A number that is free to choose."""
        observed: int | None = self._answered(part, otherwise)
        chosen = otherwise if observed is None else observed
        self._state.chosen["window kept longer"] += part == "evicted_len" and chosen < otherwise
        return chosen

    def room(self, exact: int, estimate: int, /) -> int:
        """The pages that must be free. An engine with an estimate may also refuse by the exact number."""
        state, refused = self._state, self._op.refused
        if refused is None or refused.rule != "CAP-1":
            return exact
        short = [max(0, exact - free) for free in (state.free_pages, state.free_window_pages)]
        if any(short) and refused.pages_short in (0, short[0]) and refused.window_short in (0, short[1]):
            return exact
        state.chosen["refused by an estimate"] += 1
        return estimate

    def withheld(self, rows: int, /) -> int:
        """The rows that the engine still withholds, by the count in its refusal, of those that it still may."""
        state, refused = self._state, self._op.refused
        if not state.may_keep or refused is None or refused.rule not in (None, "CAP-1"):
            return 0
        free, kept = state.free_rows, len(state.may_keep)
        if refused.rows_short:
            kept = min(kept, refused.rows_short - (rows - free))
        elif refused.pages_short or refused.window_short or refused.states_short:
            return 0
        if kept <= 0 or rows + kept <= free:
            return 0
        state.chosen["row withheld longer"] += 1
        return kept

    # Allocations

    def given(self, pool: PoolName, needs: Needs, rule: str = "", /) -> dict[str, list[int]]:
        """Check the numbers given to each request. Negative numbers stand for unreported ones, and are never compared.

        If there is no answer, the smallest free numbers are made up.
        """
        there = pool_of(self._state, pool)
        if there is None:
            return {}
        numbers = getattr(self._obs, there.given) if self._obs else self._answered(there.given, smallest(there, needs))
        return self._given(there, needs, numbers, rule)

    def slot(self, part: str, req: str, /) -> int:
        """One free state slot."""
        pool, needs = pool_of(self._state, "states"), [(req, 1)]
        assert pool is not None, "there are state slots"
        slot = self._answered(part, smallest(pool, needs)[req][0] if self._obs is None else None)
        return self._given(pool, needs, None if slot is None else {req: [slot]}, "")[req][0]

    def _given(self, pool: Pool, needs: Needs, numbers: dict[str, Runs] | None, due: str) -> dict[str, list[int]]:
        state = self._state
        if numbers is None:
            not_reported(state, pool.rule, f"{pool.kind.replace(' slot', '').replace(' ', '_')}s")
            return {req: [self._invented_number() for _ in range(need)] for req, need in needs if need}
        given: dict[str, list[int]] = {}
        seen: set[int] = set()
        wanted = dict(needs)
        for req in [*wanted, *(numbers.keys() - wanted.keys())]:
            need, runs = wanted.get(req, 0), numbers.get(req, ())
            taken = beginning(runs, need + _MORE)
            if len(taken) != need:
                rule, what = due if due and req in wanted else pool.due, f"the number of {pool.kind}s given to {req}"
                raise Violation(rule, f"{what} is wrong", expected=need, observed=taken, part=pool.given)
            if taken:
                check_free(state, pool, taken, given, seen, req)
                given[req] = taken
        state.checked[pool.rule] += bool(given)
        if pool.due != pool.rule:
            state.checked[pool.due] += 1
        return given

    def _invented_number(self) -> int:
        self._state.virtual_page -= 1
        return self._state.virtual_page

    def rows(self, kept: Mapping[str, int | None], /) -> dict[str, int]:
        """Check the row of each request of an extend; `kept` are the rows that the requests have already."""
        given: dict[str, int] | None = self._answered("rows", self._smallest_rows(kept) if self._obs is None else None)
        rows: dict[str, int] = {}
        for req, row in kept.items():
            rows[req] = check_row(self._state, req, row, given, rows)
        if given is not None and len(given) > len(rows):
            raise Violation(
                "ROW-1", "rows were given to requests that are not in the batch", observed=given, part="rows"
            )
        return rows

    def _smallest_rows(self, kept: Mapping[str, int | None]) -> dict[str, int] | None:
        """Kept rows, and the smallest free ones; `None` without rows."""
        state = self._state
        free = (row for row in range(state.config.num_rows) if row not in state.rows)
        return {req: next(free) if row is None else row for req, row in kept.items()} if state.config.num_rows else None

    # Releases

    def let_go(
        self,
        pages: list[int],
        rule: str,
        *,
        window_rule: str = "SWA-1",
        states: Collection[int] = (),
        states_rule: str = "MAMBA-2",
        staying: Mapping[int, str] | None = None,
        unpublished: Collection[int] = (),
    ) -> None:
        """Compare the freed numbers with `pages`, their window sides and `states`. The store gets no state."""
        self.freed("pages", rule, pages, staying, unpublished)
        if self._state.config.hybrid:
            self.freed("window", window_rule, self._state.window_sides(pages))
            self.freed("states", states_rule, states)
        if (cached := getattr(self._obs, "state_cached", None)) is not None:
            self.cached(cached, ())

    def freed(
        self,
        pool: PoolName,
        rule: str,
        due: Collection[int],
        staying: Mapping[int, str] | None = None,
        unpublished: Collection[int] = (),
        /,
    ) -> None:
        """Compare the freed numbers of a pool with the expected ones, in any order; a missing one breaks `rule`.

        `staying` are numbers that must stay by a rule of the operation itself. `unpublished` are pages of a session
        that the store must not get: if exactly these are missing, the store got them (SESS-6). If some expected numbers
        were never reported (negative ones), any number that seems to be free may be one of them.
        """
        if pool != "pages" and pool_of(self._state, pool) is None:
            return
        expected = [*due]
        if isinstance(self._op, FreeState):
            slot = self._answered("state", expected[0])
            observed: Runs | None = None if slot is None else [slot]
        else:
            observed = self._answered(FREED[pool], expected)
        if observed is None:
            not_reported(self._state, rule, "state" if isinstance(self._op, FreeState) else FREED[pool])
            return
        self._state.checked[rule] += 1
        freed = beginning(observed, len(expected) + _MORE)
        if pool == "pages" and freed:
            self._state.checked["TAIL-2"] += 1
        if freed != expected:
            if freed and unpublished and set(expected) - set(freed) == set(unpublished):
                rule = "SESS-6"
            elif freed and rule in ("SESS-4", "SESS-5"):
                rule = "PAGE-1"  # the memory was released when it was due, but a part was lost
            check_freed(self._state, pool, rule, expected, freed, count(observed), staying or {})

    def revived(self, moves: Collection[tuple[int, int]], /) -> None:
        """Each tombstone gets the window side of a duplicate; freeing the tombstone or that side breaks SWA-6."""
        sides = [self._state.window_of[duplicate] for _, duplicate in moves]
        given = beginning(getattr(self._obs, "window_freed", None) or (), self._state.config.num_window_pages)
        for side in set(sides).intersection(given):
            what = f"window page {side} was freed, but it moves to the prefix store's page"
            due = [one for one in given if one not in sides]
            raise Violation("SWA-6", what, expected=due, observed=given, part="window_freed.early")
        if (freed := getattr(self._obs, "freed", ())) is None:
            return
        self._state.checked["SWA-6"] += 1
        gone = set(beginning(freed, len(self._state.owner) + 1))
        for page, _ in moves:
            if page in gone:
                what = f"page {page} of the prefix store was freed while it is locked"
                raise Violation("SWA-6", what, observed=freed, part="freed.early", wrong={"pages": [page]})

    # State slots

    def cached(self, slot: int | None, due: Collection[int], /) -> None:
        """The state slot that the store took, if it took one, is one of those due (MAMBA-4)."""
        if slot is not None and slot not in due:
            what = f"state slot {slot}, which is not the request's" if due else "a state that is not due"
            expected, part = ([*due], "state_cached.other") if due else (None, "state_cached.early")
            raise Violation("MAMBA-4", f"the store took {what}", expected=expected, observed=slot, part=part)
        if due:
            reported = self.chooses or self._obs.state_cached is not None
            if reported:
                self._state.checked["MAMBA-4"] += 1
            else:
                not_reported(self._state, "MAMBA-4", "state_cached")

    def content(self, record: int, slot: int, length: int, what: str, /) -> None:
        """Check that a slot used as a record's state after `length` tokens has that state. `what` names the use."""
        check_content(self._state, record, slot, length, what)

    def sources(self, batch: list[Part], /) -> None:
        """The slots from whose states the requests of a prefill batch continue, each at its `prefix_len`."""
        state = self._state
        if not state.config.num_states:
            return
        due = {req: slot for req, one, start, _ in batch if (slot := source(state, one, start)) is not None}
        slots: dict[str, int] | None = self._answered("states_from", due)
        for req, request, prefix_len, _ in batch:
            if slots is None or req not in slots:
                not_reported(state, "DATA-2", "states_from", prefix_len > 0)
                continue
            record, slot, expected = request.record, slots[req], due.get(req)
            if slot in (expected, self._cached_state(record, prefix_len)) or (expected is not None and expected < 0):
                state.checked["DATA-2"] += 1
            elif record is not None and slot in state.records[record].states and prefix_len:
                check_content(state, record, slot, prefix_len, f"{req} goes on from")
            else:
                raise other_state(f"{req} goes on from", slot, prefix_len, expected, slot)

    def _cached_state(self, record: int | None, length: int) -> int | None:
        """The store's state after `length` tokens of a record, if its lock ends there. It is as good as an own copy."""
        state = self._state
        locked = record is not None and state.lengths[record].protected == length
        return state.store.states.get(state.records[record].locked) if record is not None and locked else None

    # Evictions

    def evicted(self, asked: int, /) -> dict[PrefixKey, int]:
        """The pages that left the store. Each must be a page of the store, and named once."""
        state = self._state
        evicted = self._answered("evicted", victims(state, asked) if self._obs is None else ())
        pages = beginning(evicted, len(state.store.pages) + 1)
        owners = dict(zip(map(state.owner.get, pages), pages, strict=True))
        if len(owners) < len(pages) or {*map(type, owners)} - {bytes}:
            raise never_evicted(state, pages)
        state.checked["STORE-2"] += 1
        state.checked["STORE-3"] += 1
        state.chosen["more evicted than asked"] += len(pages) > asked
        state.chosen["some of several evicted"] += 0 < len(pages) < state.store.evictable
        state.reached["eviction stopped at a lock"] += bool(len(pages) < asked and state.store.pins)
        state.reached["page evicted"] += bool(pages)
        return cast("dict[PrefixKey, int]", owners)

    def left(self, pool: PoolName, rule: str, asked: int, leaving: list[int], evictable: list[int], /) -> list[int]:
        """Compare and return the numbers of a pool that left the store. `leaving` must leave, since their pages do.

        Besides, only `evictable` numbers may leave, and enough of them must. `rule` is the rule for both.
        """
        there, may, state = pool_of(self._state, pool), {*leaving, *evictable}, self._state
        assert there is not None, "it is asked of pools that are there"
        more = sorted(may.difference(leaving))[: max(0, asked - len(leaving))]
        observed = self._answered(_EVICTED[pool], leaving + more)
        evicted = leaving if observed is None else beginning(observed, len(there.owners) + 1)
        if len(set(evicted)) < len(evicted) or not set(leaving) <= set(evicted):
            what = f"the {there.kind}s of evicted pages stay, or leave twice"
            raise Violation(there.rule, what, expected=leaving, observed=evicted, part=_EVICTED[pool])
        for number in evicted:
            if number not in may:
                whose = there.use(state, number)[1]
                broken = rule if whose.endswith(STORE) else there.rule
                what = "it is locked" if broken == rule else f"it {whose}"
                what = f"{there.kind} {number} was evicted, but {what}"
                raise Violation(broken, what, observed=evicted, part=f"{_EVICTED[pool]}.early")
        due = min(asked, len(evictable))
        if len(evicted) < due:
            what = f"too few {there.kind}s were evicted"
            raise Violation(rule, what, expected=f"at least {due}", observed=len(evicted), part=_EVICTED[pool])
        state.checked[rule] += 1
        state.chosen["more evicted than asked"] += len(evicted) > max(asked, len(leaving))
        state.chosen["some of several evicted"] += 0 < len(evicted) < len(evictable)
        if pool == "window":
            state.reached["tombstone left"] += len(evicted) - len(leaving)
            state.reached["window eviction stopped at a lock"] += bool(len(evicted) < asked and state.store.window_pins)
        else:
            state.reached["state evicted"] += bool(evicted)
        return evicted

    # Reports and snapshots

    def figures(self, due: Figures, /) -> None:
        """The figures of a report."""
        looking.check_figures(self._state, due, self._obs or due)
        if self._obs is None:
            self._made_up = asdict(due)

    def whole(self) -> None:
        """The whole state, as far as it was reported."""
        due = looking.check_snapshot(self._state, self._obs)
        if self._obs is None:
            self._made_up = asdict(due)
