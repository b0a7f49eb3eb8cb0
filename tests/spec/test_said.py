"""Findings of the model, whole: the rule, the sentence, what was expected, and what was observed."""

from collections.abc import Sequence

import pytest

from kvconform.oracle import Model, owner_name, record_name
from kvspec import events
from kvspec.events import Config, Refused, ReleaseAnswer
from kvspec.model.recurrent import slot_keeping
from kvspec.rules import Violation

PLAIN = Config(4, 16, 3, 64)
WINDOW = Config(4, 16, 3, 64, sliding_window=4, num_window_pages=16)
STATES = Config(4, 16, 3, 64, num_states=8)
PROMPT = list(range(9))

Reported = tuple[str, str, object, object]


def after(config: Config, *ops: events.Event) -> Model:
    model = Model(config)
    for op in ops:
        model.step(op)
    return model


def said(config: Config, *ops: events.Event) -> Reported:
    """The finding on the last operation."""
    *before, last = ops
    model = after(config, *before)
    with pytest.raises(Violation) as raised:
        model.step(last)
    found = raised.value
    return found.rule.id, found.what, found.expected, found.observed


def waiting(req: str, tokens: Sequence[int] = PROMPT, session: str | None = None) -> list[events.Event]:
    return [events.Submit(req, [*tokens], session), events.MatchPrefix(req)]


def running(
    req: str = "r", launch: int = 1, tokens: Sequence[int] = PROMPT, session: str | None = None
) -> list[events.Event]:
    """A request that has done its prefill."""
    prefill: list[events.Event] = [
        events.Extend([(req, len(tokens))]),
        events.Launch(launch, [req]),
        events.Complete(launch, {req: 50}),
    ]
    return [*waiting(req, tokens, session), *prefill]


@pytest.mark.parametrize(
    ("refused", "rule", "reason"),
    [
        (Refused("busy", "OP-1"), "OP-1", "busy"),
        (Refused(), "OP-1", "no reason given"),
        (Refused("full", "CAP-1"), "CAP-1", "full"),
        (Refused("full", pages_short=1), "CAP-1", "full"),
    ],
)
def test_what_is_due_and_refused(refused: Refused, rule: str, reason: str) -> None:
    what = f"the operation was refused ({reason}), but nothing stands in its way"
    extend = events.Extend([("r", 9)], refused=refused)
    assert said(PLAIN, *waiting("r"), extend) == (rule, what, "carried out", "refused")


@pytest.mark.parametrize(
    ("reported", "rule"), [("OP-1", "OP-1"), ("SESS-6", "SESS-6"), ("SESS-1", "SESS-1"), (None, "SESS-1")]
)
def test_a_turn_that_is_due_and_refused_breaks_what_it_was_refused_for(reported: str | None, rule: str) -> None:
    submit = events.Submit("t", [1], "s", refused=Refused("no", reported))
    assert said(PLAIN, events.OpenSession("s"), submit)[0] == rule


def test_what_must_be_refused_and_is_carried_out() -> None:
    what = "the operation was carried out, but must be refused: there is no request r"
    gone = [*running(), events.Abort("r")]
    assert said(PLAIN, *gone, events.Retract("r", obs=ReleaseAnswer([]))) == ("OP-1", what, "refused", "carried out")
    freed = f"{what}; page 2 was freed, but it is free already"
    assert said(PLAIN, *gone, events.Retract("r", obs=ReleaseAnswer([2]))) == ("PAGE-1", freed, None, [2])


def test_how_many_pages_go_back_is_checked_where_their_numbers_were_never_reported() -> None:
    unreported = events.Extend([("r", 9)], obs=events.ExtendAnswer())
    abort = events.Abort("r", obs=ReleaseAnswer([(1, 2)]))
    assert said(PLAIN, *waiting("r"), unreported, abort) == ("PAGE-1", "the number of freed pages is wrong", 3, 2)


def test_a_cursor_that_moves_on_too_far() -> None:
    evict = events.SwaEvict("r", obs=events.SwaEvictAnswer(8, [(1, 2)]))
    reported = said(WINDOW, *running(), evict)
    assert reported == ("SWA-2", "the window of r was evicted up to 8", "a page border in 0..4", 8)


@pytest.mark.parametrize(
    ("n", "window", "states"), [(0, 0, 0), (-1, 2, 2), (2, -1, 2), (2, 2, -1), (-1, 1, 0), (-3, 0, 1)]
)
def test_an_eviction_asks_for_something_and_for_nothing_less_than_nothing(n: int, window: int, states: int) -> None:
    model = Model(Config(4, 16, 3, 64, sliding_window=4, num_window_pages=16, num_states=8))
    with pytest.raises(events.Refusal, match=f"n is {n}, window {window}, states {states}$"):
        model.step(events.Evict(n, window, states))
    for asked in (events.Evict(1), events.Evict(0, window=1), events.Evict(0, states=1)):
        model.step(asked)


@pytest.mark.parametrize("n", [2, 3])
def test_a_recurrent_state_takes_no_step_back(n: int) -> None:
    model = after(STATES, *running())
    with pytest.raises(events.Refusal, match="recurrent states cannot take a speculative step back"):
        model.step(events.Decode(["r"], n))


def seen(computing: int | None, tracking: dict[int, int] | None) -> events.Snapshot:
    view = events.HolderView(0, 0, 9, 9, None, [1, 2, 3], computing, tracking)
    return events.Snapshot(obs=events.SnapshotAnswer(requests={"r": view}))


def test_what_a_slot_has_in_place_of_the_state_that_is_used() -> None:
    """Slot 1 is computed in and stands at 9, slot 2 has kept the state at 8, slot 3 has none."""
    prompt: list[events.Event] = [
        *waiting("r"),
        events.Extend([("r", 9)], obs=events.ExtendAnswer({"r": 0}, {"r": [1, 2, 3]}, None, {"r": [1, 2, 3]}, {})),
    ]
    reported: list[events.Event] = [*prompt, events.Launch(1, ["r"]), events.Complete(1, {"r": 50}), seen(1, {8: 2})]
    what = "r keeps in state slot 3, which does not have the state after 8 tokens"
    assert said(STATES, *reported, seen(1, {8: 3})) == ("DATA-2", f"request {what}", 2, "no state")
    what = "request r keeps in state slot 1, which does not have the state after 8 tokens"
    assert said(STATES, *reported, seen(1, {8: 1})) == ("DATA-2", what, 2, "the state after 9 tokens")


def test_the_states_at_borders_that_a_turn_goes_back_to_or_behind_stay_known() -> None:
    """A launch has written position 13 too, when 14 tokens are matched again: the turn goes on from border 12."""
    turn: list[events.Event] = [events.OpenSession("s"), *running("t", 1, PROMPT, "s")]
    for launch in range(2, 6):
        turn += [events.Decode(["t"]), events.Launch(launch, ["t"]), events.Complete(launch, {"t": 60})]
    ahead: list[events.Event] = [
        events.Decode(["t"]),
        events.Launch(6, ["t"]),
        events.Retract("t"),
        events.Complete(6, {}),
    ]
    model = after(STATES, *turn, *ahead)
    (record,) = model.state.records
    kept = [slot_keeping(model.state, record, border) for border in (8, 12)]
    assert None not in kept
    match = events.MatchPrefix("t")
    model.step(match)
    assert match.obs is not None and match.obs.prefix_len == 12
    assert [slot_keeping(model.state, record, border) for border in (8, 12)] == kept


def test_a_page_s_owner_in_words() -> None:
    """The store has page 1 and its state, request r the others, and request w waits with a state."""
    model = after(
        STATES, *running("p", 1, PROMPT[:5]), events.Finish("p"), *running(), *waiting("w", [3]), events.TakeState("w")
    )
    state = model.state
    (record,) = state.records
    cached = next(iter(state.store.pages.values()))
    (early,) = [slot for slot, owner in state.state_owner.items() if isinstance(owner, str)]
    assert owner_name(state, state.owner[cached]) == "the prefix store"
    assert owner_name(state, state.owner[state.tables[record][-1]]) == record_name(state, record) == "request r"
    assert owner_name(state, state.state_owner[next(iter(state.store.states.values()))]) == "the prefix store"
    assert owner_name(state, state.state_owner[state.records[record].states[0]]) == "request r"
    assert owner_name(state, state.state_owner[early]) == "request w"
    session = after(PLAIN, events.OpenSession("s"), *running("t", 1, PROMPT, "s"), events.Finish("t")).state
    assert {owner_name(session, owner) for owner in session.owner.values()} == {"the slot of session s"}


def test_each_request_that_speculates_ahead_is_checked() -> None:
    both = [*running("a"), *running("b", 2), events.Decode(["a", "b"], 2), events.Launch(3, ["a", "b"])]
    model = after(PLAIN, *both, events.Complete(3))
    before = model.state.checked["SPEC-2"]
    model.step(events.Decode(["a", "b"], 2))
    assert model.state.checked["SPEC-2"] == before + 2


def test_a_window_that_is_left_while_publishing_is_checked_each_time() -> None:
    model = Model(WINDOW)
    for launch, req in enumerate("ab", 1):
        for op in running(req, launch, [launch] * 13):
            model.step(op)
        before = model.state.checked["SWA-2"]
        model.step(events.CacheUnfinished(req, obs=events.PublishAnswer(12, [], evicted_len=8)))
        assert model.state.checked["SWA-2"] == before + 1


@pytest.mark.parametrize("reported", [True, False])
def test_at_its_end_a_request_gives_the_slot_that_has_kept_the_border(reported: bool) -> None:
    """Whether the model itself says which, or an engine reports nothing of states."""
    model = after(STATES, *running())
    (record,) = model.state.records
    kept, states = slot_keeping(model.state, record, 8), model.state.records[record].states
    assert kept is not None and kept != states[-1]
    model.step(events.Finish("r", obs=None if reported else ReleaseAnswer([3])))
    assert [*model.state.store.states.values()] == [kept]


def test_evicted_pages_are_reported_of_the_pools_that_there_are() -> None:
    for config, windows, states in ((PLAIN, None, None), (WINDOW, [], None), (STATES, None, [])):
        model, evict = Model(config), events.Evict(1)
        model.step(evict)
        assert evict.obs == events.EvictAnswer([], windows, states)


def test_a_state_slot_that_the_store_takes_is_the_request_s() -> None:
    gives = events.ExtendAnswer({"r": 0}, {"r": [1, 2, 3]}, None, {"r": [1, 2, 3]}, {})
    prompt: list[events.Event] = [*waiting("r"), events.Extend([("r", 9)], obs=gives), events.Launch(1, ["r"])]
    prompt += [events.Complete(1, {"r": 50}), seen(1, {8: 2})]
    what = "the store took state slot 6, which is not the request's"
    publish = events.CacheUnfinished("r", obs=events.PublishAnswer(8, [], None, 6, 4))
    assert said(STATES, *prompt, publish) == ("MAMBA-4", what, [4, 1, 2, 3], 6)
    finish = events.Finish("r", obs=ReleaseAnswer([3], None, [1, 2, 3], 6))
    assert said(STATES, *prompt, finish) == ("MAMBA-4", what, [1, 2, 3], 6)


@pytest.mark.parametrize(("again", "rule"), [(False, "STORE-2"), (True, "SESS-2")])
def test_what_is_protected_of_a_slot_that_is_lent(again: bool, rule: str) -> None:
    turn = [events.OpenSession("s"), *running("t", 1, PROMPT, "s"), events.CacheUnfinished("t"), events.Finish("t")]
    ops: list[events.Event] = [*turn, events.Submit("u", [*PROMPT, 50, 6], "s"), *[events.MatchPrefix("u")] * again]
    match = events.MatchPrefix("u", obs=events.MatchAnswer(9, 4, []))
    assert said(PLAIN, *ops, match) == (rule, "protected_len is wrong", 8, 4)


def test_a_chunk_goes_on_from_the_state_that_the_one_before_has_left() -> None:
    gives = events.ExtendAnswer({"r": 0}, {"r": [1, 2]}, None, {"r": [1, 2, 3]}, {})
    chunk: list[events.Event] = [*waiting("r"), events.Extend([("r", 8)], obs=gives), events.Launch(1, ["r"])]
    view = events.HolderView(0, 0, 8, 8, None, [1, 2, 3], 1, {8: 2})
    chunk += [events.Complete(1), events.Snapshot(obs=events.SnapshotAnswer(requests={"r": view}))]
    wrong = events.Extend([("r", 9)], obs=events.ExtendAnswer({"r": 0}, {"r": [3]}, None, {}, {"r": 3}))
    what = "r goes on from state slot 3, which does not have the state after 8 tokens"
    assert said(STATES, *chunk, wrong) == ("DATA-2", what, 2, "no state")
    model, last = after(STATES, *chunk), events.Extend([("r", 9)])
    model.step(last)
    assert last.obs is not None and last.obs.states_from == {"r": 1}


@pytest.mark.parametrize(("end", "early"), [(2, 0), (8, 1)])
def test_a_first_turn_is_published_early_where_a_chunk_fills_a_page(end: int, early: int) -> None:
    config = Config(4, 16, 3, 64, first_turn_chunks="published")
    chunk: list[events.Event] = [events.OpenSession("s"), *waiting("t", PROMPT, "s"), events.Extend([("t", end)])]
    chunk += [events.Launch(1, ["t"]), events.Complete(1), events.CacheUnfinished("t", chunked=True)]
    assert after(config, *chunk).state.chosen["first turn published early"] == early
