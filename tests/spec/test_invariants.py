"""Each whole-state check fails when its rule is broken: one broken state for each."""

from collections import deque
from collections.abc import Callable

import pytest

from kvspec import events
from kvspec.events import Config
from kvspec.invariants import CHECKS, check
from kvspec.lengths import Lengths
from kvspec.model import Model
from kvspec.model.state import WITHHELD, State
from kvspec.rules import RULES, Violation
from kvspec.store import Entry
from kvspec.tokens import Tokens


def busy_state() -> State:
    """Request a runs with a launch in flight, slot s is idle, slot u is lent to request w; P = 2."""
    model = Model(Config(2, 20, 4, 16))
    for name in ("s", "u"):
        first = f"{name}1"
        for op in (
            events.OpenSession(name),
            events.Submit(first, [ord(name), 1, 2, 3, 4], name),
            events.MatchPrefix(first),
            events.Extend([(first, 5)]),
            events.Launch(1, [first]),
            events.Complete(1, {first: 9}),
            events.CacheUnfinished(first),
            events.Finish(first),
        ):
            model.step(op)
    for op in (
        events.Submit("w", [ord("u"), 1, 2, 3, 4, 9, 9], "u"),
        events.MatchPrefix("w"),
        events.Submit("a", [1, 2, 3]),
        events.MatchPrefix("a"),
        events.Extend([("a", 3)]),
        events.Launch(2, ["a"]),
    ):
        model.step(op)
    check(model.state)
    return model.state


def windowed_state() -> State:
    """P = 2, window of 2: request a runs with its first page's window side gone; request b goes on from a prefix."""
    model = Model(Config(2, 20, 4, 32, sliding_window=2, num_window_pages=10))
    for op in (
        events.Submit("p", [7, 7, 7, 7, 7]),
        events.MatchPrefix("p"),
        events.Extend([("p", 5)]),
        events.Launch(1, ["p"]),
        events.Complete(1, {"p": 1}),
        events.Finish("p"),
        events.Submit("a", [1, 2, 3, 4, 5, 6]),
        events.Submit("b", [7, 7, 7, 7, 8]),
        events.MatchPrefix("a"),
        events.MatchPrefix("b"),
        events.Extend([("a", 6), ("b", 5)]),
        events.Launch(2, ["a", "b"]),
        events.SwaEvict("a"),
    ):
        model.step(op)
    check(model.state)
    return model.state


def state_with_states() -> State:
    """P = 2: request b runs from a prefix whose state the store has; request w waits with a state slot."""
    model = Model(Config(2, 20, 4, 32, num_states=8))
    for op in (
        events.Submit("p", [7, 7, 7]),
        events.MatchPrefix("p"),
        events.Extend([("p", 3)]),
        events.Launch(1, ["p"]),
        events.Complete(1, {"p": 1}),
        events.Finish("p"),
        events.Submit("b", [7, 7, 8]),
        events.MatchPrefix("b"),
        events.Extend([("b", 3)]),
        events.Submit("w", [9]),
        events.MatchPrefix("w"),
        events.TakeState("w"),
    ):
        model.step(op)
    check(model.state)
    return model.state


def record_of(state: State, req: str) -> int:
    record = state.requests[req].record
    assert record is not None
    return record


def change_lengths(state: State, req: str, lengths: Lengths) -> None:
    state.lengths[record_of(state, req)] = lengths


def share_a_page(state: State) -> None:
    state.tables[record_of(state, "a")][0] = state.tables[record_of(state, "w")][-1]


def orphan_a_page(state: State) -> None:
    state.owner[20] = record_of(state, "a")


def lend_twice(state: State) -> None:
    state.sessions["u"] = state.sessions["u"]._replace(record=record_of(state, "w"))


def lend_another(state: State) -> None:
    state.sessions["u"] = state.sessions["u"]._replace(record=99)


def forget_a_lock(state: State) -> None:
    key = state.records[record_of(state, "w")].locked
    state.store.unlock(key)


def hole_in_the_store(state: State) -> None:
    key = state.records[record_of(state, "w")].locked
    state.store.entries[key] = Entry(state.store.entries[key].page, b"nobody")


def two_mid_prefill(state: State) -> None:
    state.mid_prefill |= {"a", "w"}
    state.requests["w"] = state.requests["w"]._replace(running=True)


def other_content(state: State) -> None:
    state.content[state.tables[record_of(state, "a")][0]] = (record_of(state, "w"), 0)


def wrong_table(state: State) -> None:
    state.tables[record_of(state, "a")].append(19)


def row_changes_hands(state: State) -> None:
    state.flights[2][0] = state.flights[2][0]._replace(row=state.records[record_of(state, "w")].row)
    state.readers = {state.flights[2][0].row: deque([3])}


def row_held_by_nobody(state: State) -> None:
    state.rows[3] = 77


def withheld_for_nobody(state: State) -> None:
    state.rows[3] = WITHHELD


def figures_do_not_add_up(state: State) -> None:
    state.owner = {page: owner for page, owner in state.owner.items() if page != state.tables[record_of(state, "a")][0]}


def other_history(state: State) -> None:
    state.sessions["u"] = state.sessions["u"]._replace(history=Tokens(2, [5]))


def short_history(state: State) -> None:
    state.sessions["s"] = state.sessions["s"]._replace(history=Tokens(2, [ord("s"), 1]))


BROKEN: list[tuple[str, Callable[[State], None]]] = [
    ("ROW-1", row_held_by_nobody),
    ("ROW-1", withheld_for_nobody),
    ("ROW-1", lend_twice),
    ("ROW-3", lambda state: change_lengths(state, "w", Lengths(0, 0, 5))),
    ("LEN-1", lambda state: change_lengths(state, "a", Lengths(0, 4, 3))),
    ("LEN-1", lambda state: change_lengths(state, "a", Lengths(0, 3, 17))),
    ("LEN-2", lambda state: change_lengths(state, "a", Lengths(1, 3, 3))),
    ("LEN-3", short_history),
    ("PAGE-1", share_a_page),
    ("PAGE-1", orphan_a_page),
    ("PAGE-1", figures_do_not_add_up),
    ("PAGE-2", wrong_table),
    ("TAIL-1", lambda state: change_lengths(state, "w", Lengths(4, 5, 6))),
    ("STORE-1", hole_in_the_store),
    ("STORE-2", forget_a_lock),
    ("SESS-1", lambda state: state.sessions.update(s=state.sessions["s"]._replace(turn="a"))),
    ("SESS-3", lend_another),
    ("SESS-6", other_history),
    ("BATCH-2", two_mid_prefill),
    ("ACC-1", figures_do_not_add_up),
    ("RACE-1", row_changes_hands),
    ("DATA-1", other_content),
]


def side_before_the_cursor(state: State) -> None:
    page = state.tables[record_of(state, "a")][0]
    state.window_of[page], state.window_owner[10] = 10, page


def side_of_a_free_page(state: State) -> None:
    state.window_of[19], state.window_owner[10] = 10, 19


def side_of_two_pages(state: State) -> None:
    page, other = state.tables[record_of(state, "b")][-2:]
    state.window_of[page] = state.window_of[other]


def last_side(state: State) -> None:
    state.release_window(state.tables[record_of(state, "b")][1])


def slots_of(state: State, req: str, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    record = record_of(state, req)
    state.records[record] = state.records[record]._replace(states=change(state.records[record].states))


def slot_twice(state: State) -> None:
    state.requests["w"] = state.requests["w"]._replace(state=state.records[record_of(state, "b")].states[0])


def slot_beside_a_row(state: State) -> None:
    state.requests["b"] = state.requests["b"]._replace(state=8)


def state_of_nothing(state: State) -> None:
    state.store.states[b"nothing"] = 8


HYBRID: list[tuple[str, Callable[[], State], Callable[[State], None]]] = [
    ("SWA-1", windowed_state, side_of_a_free_page),
    ("SWA-1", windowed_state, side_of_two_pages),
    ("SWA-2", windowed_state, last_side),
    ("SWA-3", windowed_state, side_before_the_cursor),
    ("SWA-5", windowed_state, lambda state: state.store.window_pins.clear()),
    ("ACC-2", windowed_state, lambda state: state.release_window(state.tables[record_of(state, "a")][-1])),
    ("MAMBA-1", state_with_states, slot_twice),
    ("MAMBA-1", state_with_states, lambda state: state.state_owner.update({8: "w"})),
    ("MAMBA-2", state_with_states, lambda state: slots_of(state, "b", lambda slots: slots[:2])),
    ("MAMBA-2", state_with_states, slot_beside_a_row),
    ("MAMBA-4", state_with_states, state_of_nothing),
    ("MAMBA-5", state_with_states, lambda state: state.store.state_pins.clear()),
    ("ACC-3", state_with_states, lambda state: slots_of(state, "b", lambda slots: slots[:2])),
]


@pytest.mark.parametrize(("rule", "make", "breaks"), HYBRID)
def test_the_check_of_a_hybrid_rule_fails_when_it_is_broken(
    rule: str, make: Callable[[], State], breaks: Callable[[State], None]
) -> None:
    state = make()
    CHECKS[rule](state)
    breaks(state)
    with pytest.raises(Violation) as violation:
        CHECKS[rule](state)
    assert violation.value.rule.id == rule


@pytest.mark.parametrize(("rule", "breaks"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_the_check_of_a_rule_fails_when_it_is_broken(rule: str, breaks: Callable[[State], None]) -> None:
    state = busy_state()
    CHECKS[rule](state)
    breaks(state)
    with pytest.raises(Violation) as violation:
        CHECKS[rule](state)
    assert violation.value.rule.id == rule


def test_every_check_is_seen_to_fail() -> None:
    assert {rule for rule, _ in BROKEN} | {rule for rule, _, _ in HYBRID} == CHECKS.keys()
    assert CHECKS.keys() <= RULES.keys()
