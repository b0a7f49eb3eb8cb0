"""Each whole-state check fails when its rule is broken: broken states for each, and what is found in them."""

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kvspec import invariants
from kvspec.invariants import CHECKS, Check
from kvspec.lengths import Lengths
from kvspec.model.looking import figures
from kvspec.model.records import Session
from kvspec.model.state import WITHHELD, State
from kvspec.rules import RULES, Violation
from kvspec.tokens import Tokens
from tests.spec.broken_hybrid_states import (
    HYBRID,
    private_side,
)
from tests.spec.broken_states import (
    BROKEN,
    busy_state,
    change_lengths,
    record_of,
    row_changes_hands,
    state_with_states,
    windowed_state,
)


def check_of(expected: str) -> Check:
    """The check that finds it: the check against the memory checker's books finds its findings."""
    rule = expected.partition(":")[0]
    return CHECKS["PAGE-1" if rule.startswith("MEM") else rule]


def finding(rule: str, state: State) -> str:
    with pytest.raises(Violation) as caught:
        check_of(rule)(state)
    violation = caught.value
    if violation.rule.id.startswith("MEM"):
        return str(violation)
    values = [violation.expected, violation.observed]
    reported = "" if values == [None, None] else f" (expected {values[0]}, observed {values[1]})"
    return re.sub(r"""b'[^']+'|b"[^"]+\"""", "#", f"{violation}{reported}")


@pytest.mark.parametrize(("expected", "make", "breaks"), HYBRID)
def test_the_check_of_a_hybrid_rule_fails_when_it_is_broken(
    expected: str, make: Callable[[], State], breaks: Callable[[State], object]
) -> None:
    rule = expected.partition(":")[0]
    state = make()
    check_of(rule)(state)
    breaks(state)
    found = finding(rule, state)
    assert found.partition("Figures(")[0] == expected.partition("Figures(")[0]


@pytest.mark.parametrize(
    ("rule", "make", "changes"),
    [
        ("SWA-2", windowed_state, lambda state: private_side(state, "b", 0)),
        ("SWA-3", windowed_state, lambda state: private_side(state, "b", 0)),
        ("SWA-3", windowed_state, lambda state: state.cursor.update({record_of(state, "b"): 4})),
        ("MAMBA-2", busy_state, lambda _: None),
        ("ACC-2", state_with_states, lambda state: private_side(state, "b", 0)),
        ("ACC-3", windowed_state, lambda _: None),
    ],
)
def test_what_is_just_allowed_of_a_hybrid_pool(
    rule: str, make: Callable[[], State], changes: Callable[[State], object]
) -> None:
    state = make()
    changes(state)
    CHECKS[rule](state)


@pytest.mark.parametrize(("expected", "breaks"), BROKEN)
def test_the_check_of_a_rule_fails_when_it_is_broken(expected: str, breaks: Callable[[State], object]) -> None:
    rule = expected.partition(":")[0]
    state = busy_state()
    check_of(rule)(state)
    breaks(state)
    assert finding(rule, state) == expected


def test_acc_1_held_memory_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = busy_state()
    reported = figures(state)
    assert reported.available is not None and reported.session_held is not None
    wrong = replace(reported, available=reported.available - 2, session_held=reported.session_held + 2)
    monkeypatch.setattr(invariants, "figures", lambda _: wrong)
    assert finding("ACC-1", state).startswith("ACC-1: the tokens that are held do not add up (expected 8, observed ")


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("ROW-1", lambda state: (state.rows.update({3: WITHHELD}), state.readers.update({3: (1,)}))),
        ("LEN-1", lambda state: change_lengths(state, "a", Lengths(0, 0, 16))),
        ("LEN-1", lambda state: change_lengths(state, "a", Lengths(3, 3, 3))),
        ("LEN-2", lambda state: change_lengths(state, "a", Lengths(2, 2, 2))),
        ("SESS-1", lambda state: state.sessions.update(new=Session(Tokens(2)))),
        ("BATCH-2", lambda state: state.mid_prefill.add("a")),
    ],
)
def test_what_is_just_allowed(rule: str, changes: Callable[[State], object]) -> None:
    state = busy_state()
    changes(state)
    CHECKS[rule](state)


def test_a_check_is_found_by_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "CHECKS", {})
    register = invariants.checks("ROW-1")
    assert register(row_changes_hands) is row_changes_hands
    assert list(invariants.CHECKS.items()) == [("ROW-1", row_changes_hands)]


def test_every_check_is_seen_to_fail() -> None:
    broken = [expected for expected, _ in BROKEN] + [expected for expected, _, _ in HYBRID]
    assert set(map(check_of, broken)) == set(CHECKS.values())
    assert CHECKS.keys() <= RULES.keys()


def test_where_no_row_is_withheld_none_is_kept_for_a_launch() -> None:
    for breaks in ("readers", "rows"):
        state = busy_state()
        state.config = replace(state.config, rows_read="at_launch")
        state.readers = {}
        check_of("RACE-1")(state)
        if breaks == "readers":
            state.readers = {2: (3,)}
        else:
            state.rows[3] = WITHHELD
        observed = "RACE-1: rows are withheld that nothing reads any more (expected None, observed "
        assert finding("RACE-1", state) == f"{observed}{state.readers})"
