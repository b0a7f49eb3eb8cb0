"""The model's counters are right: each happening is counted here a second time, by its effect on the state."""

import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kvconform.oracle import Model
from kvspec import events
from kvspec.events import Refusal
from kvspec.model.state import WITHHELD, State
from kvspec.pages import expand
from kvspec.rules import Violation
from tests.spec import tries
from tests.spec.findings import names, source

pytestmark = pytest.mark.slow

SOURCES = [name for name in names() if "blind" not in name]

Happened = Callable[[State, Any, State], int]
"""How often something happened from one state, by an operation and its answer, to the next."""


def _reported(op: Any, part: str) -> Any:
    return getattr(op.obs, part)


def _withheld(state: State) -> set[int]:
    return {row for row, record in state.rows.items() if record == WITHHELD}


def _record(state: State, req: str) -> int | None:
    """The state slots that a request holds, or the slot of its session that it would be lent."""
    request = state.requests[req]
    if request.record is not None or request.session is None:
        return request.record
    return state.sessions[request.session].record


def _lent(before: State, op: Any, after: State) -> bool:
    return isinstance(op, events.MatchPrefix) and after.requests[op.req].record is not None


def _partial_page_kept(before: State, op: Any, after: State) -> bool:
    if not _lent(before, op, after):
        return False
    record = after.requests[op.req].record
    assert record is not None
    allocated = after.lengths[record].allocated
    return allocated < before.lengths[record].allocated and allocated % after.config.page_size > 0


def _went_back_to_a_border(before: State, op: Any, after: State) -> bool:
    if not (after.config.num_states and _lent(before, op, after)):
        return False
    record = after.requests[op.req].record
    assert record is not None
    keeps = min(before.lengths[record].committed, len(before.requests[op.req].tokens) - 1)
    return before.written[record] > keeps


def _known_further(before: State, op: Any, after: State) -> bool:
    """A match of the store ends before the pages do that are cached."""
    if not isinstance(op, events.MatchPrefix) or after.requests[op.req].record is not None:
        return False
    tokens = before.requests[op.req].tokens
    known = 0
    while (known + 1) * before.config.page_size < len(tokens) and tokens.key(known) in before.store.pages:
        known += 1
    return bool(known * before.config.page_size > _reported(op, "prefix_len"))


def _dropped(before: State, op: Any, after: State) -> bool:
    """A publication frees pages that the store has already."""
    if isinstance(op, events.CacheUnfinished):
        return bool(_reported(op, "freed"))
    if not isinstance(op, events.Finish) or before.requests[op.req].session is not None:
        return False
    request = before.requests[op.req]
    assert request.record is not None
    lengths = before.lengths[request.record]
    kept = min(lengths.committed, len(request.tokens)) if before.config.prefix_cache else lengths.protected
    return bool(
        set(expand(_reported(op, "freed"))) - set(before.tables[request.record][kept // before.config.page_size :])
    )


def _revived(before: State, op: Any, after: State) -> bool:
    both = before.store.pages.keys() & after.store.pages.keys()
    return any(
        before.store.pages[key] not in before.window_of and after.store.pages[key] in after.window_of
        for key in both
        if before.config.sliding_window
    )


def _kept_out(before: State, op: Any, after: State) -> bool:
    if not isinstance(op, events.CacheUnfinished) or not before.config.prefix_cache:
        return False
    request = before.requests[op.req]
    private = op.chunked and before.config.first_turn_chunks == "private"
    return request.session is not None and (request.resumed or private)


def _given_back(before: State, op: Any, after: State) -> int:
    """A slot that was taken early is free again."""
    early = [request.state for request in before.requests.values() if request.state is not None]
    return len(set(early) - after.state_owner.keys())


def _evicts(op: Any, part: str) -> list[int]:
    return expand(getattr(op.obs, part) or ()) if isinstance(op, events.Evict) else []


def _sides_lost(before: State, op: Any, after: State) -> int:
    if not isinstance(op, events.Evict):
        return 0
    return sum(page in before.window_of and page not in after.window_of for page in after.store.pages.values())


HAPPENED: dict[str, Happened] = {
    "slot lent": lambda b, op, a: _lent(b, op, a) and b.requests[op.req].record is None,
    "lend repeated": lambda b, op, a: _lent(b, op, a) and b.requests[op.req].record is not None,
    "slot given up": lambda b, op, a: (
        isinstance(op, events.MatchPrefix) and _record(b, op.req) is not None and _record(a, op.req) is None
    ),
    "tail freed": lambda b, op, a: _lent(b, op, a) and bool(_reported(op, "freed")),
    "partial page kept": _partial_page_kept,
    "resumed at a page border": _went_back_to_a_border,
    "prefix matched": lambda b, op, a: (
        isinstance(op, events.MatchPrefix) and not _lent(b, op, a) and _reported(op, "prefix_len") > 0
    ),
    "match cut short by a tombstone": lambda b, op, a: b.config.sliding_window > 0 and _known_further(b, op, a),
    "match ends where a state is": lambda b, op, a: b.config.sliding_window == 0 and _known_further(b, op, a),
    "last chunk beside a first chunk": lambda b, op, a: (
        isinstance(op, events.Extend) and bool(dict(op.reqs).keys() & b.mid_prefill and a.mid_prefill - b.mid_prefill)
    ),
    "launch overlapped": lambda b, op, a: isinstance(op, events.Launch) and bool(b.flights),
    "overshoot": lambda b, op, a: isinstance(op, events.Verify) and len(op.tokens) < op.accepted,
    "duplicate dropped": _dropped,
    "prefix published": lambda b, op, a: bool(a.store.pages.keys() - b.store.pages.keys()),
    "tombstone revived": _revived,
    "session kept out of the store": _kept_out,
    "turn retracted": lambda b, op, a: isinstance(op, events.Retract) and b.requests[op.req].session is not None,
    "request retracted": lambda b, op, a: isinstance(op, events.Retract) and b.requests[op.req].session is None,
    "running request aborted": lambda b, op, a: isinstance(op, events.Abort) and len(a.records) < len(b.records),
    "lend ended by abort": lambda b, op, a: isinstance(op, events.Abort) and b.requests[op.req].record in a.records,
    "close deferred": lambda b, op, a: isinstance(op, events.CloseSession) and op.session in a.sessions,
    "idle session closed": lambda b, op, a: isinstance(op, events.CloseSession) and len(a.records) < len(b.records),
    "deferred close done": lambda b, op, a: (
        not isinstance(op, events.CloseSession) and len(b.sessions.keys() - a.sessions.keys())
    ),
    "slot preempted": lambda b, op, a: isinstance(op, events.Preempt),
    "row withheld": lambda b, op, a: len(_withheld(a) - _withheld(b)),
    "page evicted": lambda b, op, a: bool(_evicts(op, "evicted")),
    "eviction stopped at a lock": lambda b, op, a: (
        isinstance(op, events.Evict) and len(_evicts(op, "evicted")) < op.n and bool(b.store.pins)
    ),
    "window evicted": lambda b, op, a: isinstance(op, events.SwaEvict) and len(a.window_of) < len(b.window_of),
    "tombstone left": _sides_lost,
    "window eviction stopped at a lock": lambda b, op, a: (
        isinstance(op, events.Evict) and len(_evicts(op, "window_evicted")) < op.window and bool(b.store.window_pins)
    ),
    "state without a row": lambda b, op, a: isinstance(op, events.TakeState),
    "state given back": _given_back,
    "state published": lambda b, op, a: len(a.store.states.keys() - b.store.states.keys()),
    "state evicted": lambda b, op, a: bool(_evicts(op, "states_evicted")),
}
CHOSEN = {
    "some of several evicted",
    "first turn published early",
    "row not withheld",
    "turn counted as its session's",
    "overshoot published",
}
"""Choices that the model makes itself, or that the policies of its configuration are."""


def test_what_is_said_to_be_reached_happened() -> None:
    happened: Counter[str] = Counter()
    for name in SOURCES:
        given = source(name)
        for op in given.operations:
            before = given.model.state.copy()
            done: Any = replace(op, obs=None, refused=None)
            try:
                given.model.step(done)
            except Refusal:
                continue
            after = given.model.state
            counted = {one: after.reached[one] - before.reached[one] for one in after.reached}
            due = {one: int(times(before, done, after)) for one, times in HAPPENED.items()}
            assert {one: times for one, times in counted.items() if times} == {
                one: times for one, times in due.items() if times
            }, (name, done)
            assert {one for one in after.chosen if after.chosen[one] != before.chosen[one]} <= CHOSEN, done
            happened.update(due)
    assert not [one for one in HAPPENED if not happened[one]]


CHECKED_BY = {
    "abort": "MAMBA-2 PAGE-1 SESS-5 SWA-1 SWA-3 TAIL-2",
    "cache_unfinished": "DATA-1 LEN-2 MAMBA-1 MAMBA-4 SESS-6 STORE-5 SWA-1 SWA-6 TAIL-2",
    "close_session": "MAMBA-2 PAGE-1 SESS-4 SWA-3 TAIL-2",
    "complete": "CHUNK-1 LAUNCH-1",
    "decode": "PAGE-1 PAGE-2 SPEC-2 SWA-1",
    "evict": "MAMBA-5 STORE-2 STORE-3 SWA-5",
    "extend": "BATCH-1 BATCH-2 DATA-2 MAMBA-1 PAGE-1 PAGE-2 RACE-1 ROW-1 ROW-2 ROW-3 SWA-1",
    "finish": "DATA-1 DATA-2 MAMBA-2 MAMBA-4 PAGE-1 SESS-4 SWA-1 SWA-3 SWA-6 TAIL-2",
    "free_state": "MAMBA-2",
    "launch": "",
    "match_prefix": "LEN-2 LEN-3 MAMBA-1 MAMBA-2 MAMBA-3 PAGE-1 SESS-2 STORE-2 STORE-4 SWA-1 SWA-4 TAIL-1 TAIL-2",
    "open_session": "",
    "preempt": "MAMBA-2 PAGE-1 SWA-3 TAIL-2",
    "report": "ACC-1 ACC-2 ACC-3 SESS-3 STORE-2",
    "retract": "MAMBA-2 PAGE-1 SWA-1 SWA-3 TAIL-2",
    "snapshot": (
        "DATA-2 LEN-1 MAMBA-1 MAMBA-4 MAMBA-5 PAGE-1 PAGE-3 RACE-1 ROW-1 ROW-2 ROW-4 SESS-2 STORE-1 STORE-2 SWA-2 SWA-3"
        " SWA-5 TAIL-1"
    ),
    "submit": "SESS-1 SESS-6",
    "swa_evict": "SWA-2 SWA-3",
    "take_state": "MAMBA-1",
    "verify": "SPEC-1",
}
"""The rules that check an operation besides OP-1, in some state or other."""


def test_each_operation_is_checked_by_its_rules() -> None:
    checked: dict[str, set[str]] = {}
    for name in SOURCES:
        given = source(name)
        for op in given.operations:
            before = Counter(given.model.state.checked)
            try:
                given.model.step(replace(op, obs=None, refused=None))
            except Refusal:
                continue
            checked.setdefault(str(op.__struct_config__.tag), set()).update(Counter(given.model.state.checked) - before)
    assert checked == {tag: {"OP-1", *rules.split()} for tag, rules in CHECKED_BY.items()}


COMPANIONS = {"DATA-2", "LEN-3", "PAGE-2", "ROW-2", "ROW-3", "ROW-4", "SESS-2", "SESS-3", "SPEC-1", "STORE-2", "SWA-2"}
COMPANIONS |= {"SWA-6", "TAIL-1", "TAIL-2"}
"""Rules that are checked together with another, which is reported as unchecked otherwise."""


@pytest.mark.parametrize("name", ["walk 0", "walk 3", "walk 6", "walk 9", "walk 12", "walk 15"])
def test_reported_values_are_checked_and_rules_without_them_are_unchecked(name: str) -> None:
    given = source(name)
    for op in given.operations:
        for one in (op, events.Report(), events.Snapshot()):
            right: Any = replace(one, obs=None, refused=None)
            try:
                _copied(given.model).step(right)
            except Refusal:
                continue
            whole, left_out = _counts(given.model, right)
            assert not left_out, (right, left_out)
            for change, answer in tries.answers(given.model.state, right):
                if not re.search("not reported|nothing reported", change):
                    continue
                try:
                    checked, unchecked = _counts(given.model, replace(right, obs=answer))
                except Violation:
                    continue
                assert all(checked[rule] <= whole[rule] for rule in checked), (right, change)
                assert whole.keys() - checked.keys() <= unchecked.keys() | COMPANIONS, (right, change)
                assert checked == whole or unchecked, (right, change)
        try:
            given.model.step(replace(op, obs=None, refused=None))
        except Refusal:
            continue


def _copied(model: Model) -> Model:
    other = copy.copy(model)
    other.state = model.state.copy()
    return other


def _counts(model: Model, op: Any) -> tuple[Counter[str], Counter[str]]:
    """How often which rule is checked in a step of a copy, and how often one cannot be."""
    trial = _copied(model)
    trial.step(op)
    before, after = model.state, trial.state
    return Counter(after.checked) - Counter(before.checked), Counter(after.unchecked) - Counter(before.unchecked)
