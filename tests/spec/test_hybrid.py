"""Where the specification of hybrid pools leaves a choice: revival by exchange, states copied or given away."""

import re
from collections.abc import Iterable

import pytest

from kvcheck import Checker
from kvconform.oracle import Model
from kvspec.events import (
    Abort,
    CacheUnfinished,
    Complete,
    CompleteAnswer,
    Config,
    Decode,
    Done,
    Event,
    Evict,
    EvictAnswer,
    Extend,
    ExtendAnswer,
    Finish,
    HolderView,
    Launch,
    MatchPrefix,
    OpenSession,
    Preempt,
    PublishAnswer,
    Refusal,
    Refused,
    ReleaseAnswer,
    Retract,
    Room,
    Snapshot,
    SnapshotAnswer,
    Submit,
    SwaEvict,
    SwaEvictAnswer,
    TakeState,
)
from kvspec.invariants import check
from kvspec.rules import Violation

PROMPT = list(range(20))


def carried_out(model: Model, ops: Iterable[Event]) -> Model:
    for op in ops:
        model.step(op)
        check(model.state)
        assert model.state.store.parents.keys() == {*model.state.store.pages.values()}
    return model


def prefill(req: str, tokens: list[int], launch: int, session: str | None = None) -> list[Event]:
    return [
        Submit(req, [*tokens], session),
        MatchPrefix(req),
        Extend([(req, len(tokens))]),
        Launch(launch, [req]),
        Complete(launch, {req: 900}),
    ]


def tombstones(*, locked: bool = False) -> Model:
    """P = 4 = window: the store has pages 1..5, of which 1..4 are tombstones; b has written the first two again.

    It has them in pages 6, 7, 8 with window pages 1, 2, 3 behind them, or each one more if a request has locked the
    prefix.
    """
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=16), checker=Checker)
    carried_out(model, [*prefill("a", PROMPT, 1), SwaEvict("a"), Finish("a")])
    if locked:
        carried_out(model, prefill("holder", [*PROMPT, 7], 2))
    return carried_out(model, prefill("b", [*PROMPT[:8], 50], 3))


def cached_pages(model: Model, pages: int) -> list[int]:
    return [model.state.store.pages[key] for key in model.state.requests["c"].tokens.keys(0, pages)]


def publish_a(answer: PublishAnswer) -> Model:
    """P = 4 = window: a has written 14 tokens, in pages 1..4 with window pages 1..4, and publishes 12 of them."""
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=16), checker=Checker)
    return carried_out(model, [*prefill("a", PROMPT[:14], 1), CacheUnfinished("a", obs=answer)])


def test_swa_2_the_window_may_be_left_when_publishing() -> None:
    left = publish_a(PublishAnswer(12, [], [(1, 2)], evicted_len=8)).state
    assert left.window_of == {3: 3, 4: 4}
    assert left.chosen["window left when publishing"] == 1
    # Published first, then left behind: the store has those window sides.
    kept = publish_a(PublishAnswer(12, [], [], evicted_len=8)).state
    assert kept.window_of == {1: 1, 2: 2, 3: 3, 4: 4}


@pytest.mark.parametrize(
    ("freed", "evicted_len", "rule"),
    [([(1, 3)], 12, "SWA-2"), ([1], 6, "SWA-2"), ([(1, 2)], None, "SWA-2"), ([(1, 3)], 8, "SWA-2")],
)
def test_swa_2_publishing_leaves_what_is_read(freed: list[int], evicted_len: int | None, rule: str) -> None:
    with pytest.raises(Violation) as error:
        publish_a(PublishAnswer(12, [], freed, evicted_len=evicted_len))
    assert error.value.rule.id == rule


def test_swa_2_a_snapshot_reports_the_cursor_or_the_protected_length_where_that_is_more() -> None:
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=16), checker=Checker)
    carried_out(model, prefill("a", PROMPT[:14], 1))
    for op, cursor in ((None, 0), (SwaEvict("a"), 8), (CacheUnfinished("a"), 12)):
        carried_out(model, [op] if op else [])
        carried_out(model, [Snapshot(obs=SnapshotAnswer(requests={"a": HolderView(swa_evicted_len=cursor)}))])
        with pytest.raises(Violation, match="SWA-2: swa_evicted_len of request a is wrong"):
            model.step(Snapshot(obs=SnapshotAnswer(requests={"a": HolderView(swa_evicted_len=cursor + 4)})))


@pytest.mark.parametrize(
    ("evicted", "rule", "words"),
    [
        ([9], "SWA-3", "window page 9 was evicted, but it is free already"),
        ([6], "SWA-3", "window page 6 was evicted, but it is behind page 6 of request b, which is still read"),
        ([1, 1], "SWA-3", "the window pages of evicted pages stay, or leave twice"),
    ],
)
def test_of_an_eviction_of_what_no_window_side_of_the_store_is(evicted: list[int], rule: str, words: str) -> None:
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=16), checker=Checker)
    carried_out(model, [*prefill("a", PROMPT, 1), Finish("a"), *prefill("b", [90, 91, 92], 2)])
    with pytest.raises(Violation) as raised:
        model.step(Evict(0, window=1, obs=EvictAnswer([], [*evicted])))
    assert (raised.value.what, raised.value.observed) == (words, evicted)


def test_the_window_is_left_once_where_the_rest_of_the_answer_is_wrong() -> None:
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=16), checker=Checker)
    carried_out(model, prefill("a", PROMPT[:14], 1))
    with pytest.raises(Violation, match="STORE-5"):
        model.step(CacheUnfinished("a", obs=PublishAnswer(8, [], [(1, 2)], evicted_len=8)))
    carried_out(model, [CacheUnfinished("a", obs=PublishAnswer())])
    check(model.state)
    right = publish_a(PublishAnswer(12, [], [(1, 2)], evicted_len=8)).state
    assert (model.state.cursor, model.state.window_of) == (right.cursor, right.window_of) == ({1: 8}, {3: 3, 4: 4})


@pytest.mark.parametrize(
    ("freed", "cached"),
    [([6, 7, 8], [1, 2]), ([1, 2, 8], [6, 7]), ([1, 7, 8], [6, 2]), ([6, 2, 8], [1, 7]), (None, [1, 2])],
)
@pytest.mark.parametrize("at_finish", [True, False])
def test_swa_6_a_tombstone_is_revived_one_way_or_the_other(
    freed: list[int] | None, cached: list[int], at_finish: bool
) -> None:
    model = tombstones()
    if at_finish:
        ops: list[Event] = [Finish("b", obs=ReleaseAnswer(freed, [3]))]
    else:
        reported = None if freed is None else freed[:2]
        ops = [CacheUnfinished("b", obs=PublishAnswer(8, reported, [])), Finish("b", obs=ReleaseAnswer([8], [3]))]
    carried_out(model, [*ops, Submit("c", [*PROMPT[:9]])])
    assert cached_pages(model, 2) == cached
    assert [model.state.window_of[page] for page in cached] == [1, 2]
    match = MatchPrefix("c")
    model.step(match)
    assert match.obs is not None and match.obs.prefix_len == 8


@pytest.mark.parametrize("at_finish", [True, False])
def test_swa_6_a_locked_tombstone_stays(at_finish: bool) -> None:
    model = tombstones(locked=True)
    with pytest.raises(Violation, match="SWA-6: page 1 of the prefix store was freed while it is locked") as violation:
        if at_finish:
            model.step(Finish("b", obs=ReleaseAnswer([1, 8, 9], [4])))
        else:
            model.step(CacheUnfinished("b", obs=PublishAnswer(8, [1, 8], [])))
    assert violation.value.observed == ([1, 8, 9] if at_finish else [1, 8])


def speculating_turn() -> Model:
    """P = 2: turn a of session s has 3 tokens in pages 1 and 2, and pages 3 and 4 for drafts that are not verified."""
    model = Model(Config(2, 20, 4, 64, sliding_window=2, num_window_pages=16))
    return carried_out(model, [OpenSession("s"), *prefill("a", [1, 2], 1, "s"), Decode(["a"], 5)])


def test_swa_1_pages_past_the_tokens_of_a_turn_go_with_their_window_sides() -> None:
    model = carried_out(speculating_turn(), [Retract("a", obs=ReleaseAnswer([3, 4], [3, 4]))])
    assert model.state.window_owner.keys() == {1, 2} and model.state.checked["SWA-1"]


@pytest.mark.parametrize(
    ("window_freed", "found"),
    [([3], "window page(s) 4 were not freed"), ([3, 4, 2], "window page 2 was freed, but"), ([3, 3], "freed twice")],
)
def test_swa_1_a_window_side_that_stays_without_its_page_is_found(window_freed: list[int], found: str) -> None:
    with pytest.raises(Violation, match=re.escape(found)) as violation:
        speculating_turn().step(Retract("a", obs=ReleaseAnswer([3, 4], list(window_freed))))
    assert violation.value.rule.id == ("SWA-2" if 2 in window_freed else "SWA-1")


def with_states(num_states: int = 8) -> Model:
    """P = 4: request a has slots 1, 2, 3 and kept the state at 8; the store has none."""
    model = Model(Config(4, 20, 4, 64, num_states=num_states))
    return carried_out(model, prefill("a", PROMPT[:9], 1))


@pytest.mark.parametrize(
    ("cached", "taken", "kept", "borders"),
    [(4, 4, (1, 2, 3), (8,)), (8, 8, (1, 2, 3), (8,)), (2, 5, (1, 5, 3), ())],
)
def test_mamba_4_a_state_is_copied_or_given_away_for_a_fresh_slot(
    cached: int, taken: int, kept: tuple[int, ...], borders: tuple[int, ...]
) -> None:
    model = with_states()
    carried_out(model, [CacheUnfinished("a", obs=PublishAnswer(8, [], None, cached, taken))])
    (record,) = model.state.records
    assert model.state.records[record].states == kept
    assert model.state.borders[record] == borders
    assert list(model.state.store.states.values()) == [cached]
    reported = Finish("a")
    carried_out(model, [reported])
    assert reported.obs is not None and reported.obs.states_freed == list(kept) and reported.obs.state_cached is None


def test_cap_1_a_state_slot_is_refused_to_a_waiting_request_where_none_is_free() -> None:
    model = with_states(3)
    carried_out(model, [Submit("b", [9]), MatchPrefix("b")])
    with pytest.raises(Refusal, match="no state slot is free") as refusal:
        model.step(TakeState("b"))
    assert refusal.value.refused.states_short == 1


def test_mamba_4_without_a_free_slot_nothing_is_taken_before_the_end() -> None:
    model = with_states(3)
    with pytest.raises(Violation, match="MAMBA-4: the store took a state that is not due") as violation:
        model.step(CacheUnfinished("a", obs=PublishAnswer(8, [], None, 2, None)))
    assert violation.value.observed == 2
    carried_out(model, [CacheUnfinished("a"), Finish("a", obs=ReleaseAnswer([3], None, [1, 3], 2))])
    assert list(model.state.store.states.values()) == [2]


def test_mamba_3_a_turn_goes_back_to_the_state_that_it_gave_to_the_store() -> None:
    """The step at position 9 is launched, but its token never comes: the working state stands past what is resumed."""
    model = Model(Config(4, 20, 4, 64, num_states=8), checker=Checker)
    carried_out(
        model,
        [
            OpenSession("s"),
            *prefill("a", PROMPT[:9], 1, "s"),
            CacheUnfinished("a", obs=PublishAnswer(8, [], None, 2, 5)),
            Decode(["a"]),
            Launch(2, ["a"]),
            Retract("a"),
            Complete(2),
        ],
    )
    match = MatchPrefix("a")
    carried_out(model, [match])
    assert match.obs is not None and (match.obs.prefix_len, match.obs.states_freed) == (8, [])
    assert model.state.reached["resumed at a page border"] == 1 and not model.state.reached["slot given up"]


def test_mamba_3_a_turn_goes_back_to_its_first_token() -> None:
    model = Model(Config(1, 20, 4, 64, num_states=8))
    ops = [OpenSession("s"), *prefill("a", [7], 1, "s"), Decode(["a"]), Launch(2, ["a"]), Retract("a"), Complete(2)]
    match = MatchPrefix("a")
    carried_out(model, [*ops, match])
    assert match.obs is not None and match.obs.prefix_len == 1
    assert model.state.reached["resumed at a page border"] == 1


def test_a_window_side_and_a_state_leave_the_store_without_their_page() -> None:
    model = carried_out(tombstones(), [Finish("b")])
    carried_out(model, [Evict(0, 2, obs=EvictAnswer([], [2, 5]))])
    assert len(model.state.store.pages) == 5 and model.state.window_owner.keys() == {1}
    model = carried_out(with_states(), [Finish("a"), Evict(0, states=1)])
    assert len(model.state.store.pages) == 2 and not model.state.state_owner


@pytest.mark.parametrize(
    ("freed", "allowed"), [([3, 4, 5], True), ([3, 3, 5], False), ([3, 4, 99], False), ([3, 4], False)]
)
def test_window_pages_that_were_never_reported_excuse_no_impossible_ones(freed: list[int], allowed: bool) -> None:
    model = Model(Config(2, 10, 2, 16, sliding_window=2, num_window_pages=8))
    for op in (
        Submit("a", [1, 2, 3, 4, 5]),
        MatchPrefix("a"),
        Extend([("a", 5)], obs=ExtendAnswer(rows={"a": 0}, pages={"a": [1, 2, 3]})),
    ):
        model.step(op)
    abort = Abort("a", obs=ReleaseAnswer([1, 2, 3], window_freed=freed))
    if allowed:
        model.step(abort)
        return
    with pytest.raises(Violation) as violation:
        model.step(abort)
    assert violation.value.rule.id in ("SWA-1", "SWA-3")


def reported_by_the_engine() -> Model:
    """Slots 1 to 3 as an engine gives them out, which reports the use of each only in a snapshot."""
    model = Model(Config(4, 20, 4, 64, num_states=8), checker=Checker)
    carried_out(model, [Submit("a", [*PROMPT[:9]]), MatchPrefix("a")])
    extend = Extend([("a", 9)], obs=ExtendAnswer({"a": 0}, {"a": [1, 2, 3]}, None, {"a": [1, 2, 3]}, {}))
    carried_out(model, [extend, Launch(1, ["a"], obs=Done()), Complete(1, {"a": 50}, obs=CompleteAnswer())])
    return model


def seen(computing: int | None, tracking: dict[int, int] | None) -> Snapshot:
    return Snapshot(obs=SnapshotAnswer(requests={"a": HolderView(0, 0, 9, 9, None, [1, 2, 3], computing, tracking)}))


def test_data_2_the_use_of_slots_is_learned_where_it_is_reported_and_holds_from_then_on() -> None:
    model = carried_out(reported_by_the_engine(), [seen(None, None)])
    assert not model.state.checked["DATA-2"] and model.state.unchecked["DATA-2"] == 1
    carried_out(model, [seen(2, {8: 3}), seen(2, None), seen(2, {8: 3})])
    for other in (seen(1, {8: 3}), seen(2, {8: 1}), seen(2, {8: 2})):
        with pytest.raises(Violation, match="DATA-2"):
            model.step(other)
    with pytest.raises(Violation, match="MAMBA-3: the page borders whose states request a has kept are wrong"):
        model.step(seen(2, {4: 3}))


def test_data_2_the_slot_that_keeps_the_border_before_keeps_it_when_another_is_passed() -> None:
    def kept(tracking: dict[int, int]) -> Snapshot:
        view = HolderView(states=[1, 2, 3], computing=2, tracking=tracking)
        return Snapshot(obs=SnapshotAnswer(requests={"a": view}))

    model = carried_out(reported_by_the_engine(), [seen(2, {8: 3})])
    for launch in (2, 3, 4):
        carried_out(model, [Decode(["a"]), Launch(launch, ["a"]), Complete(launch, {"a": 60})])
    with pytest.raises(Violation, match="DATA-2: request a keeps in state slot 1"):
        model.step(kept({8: 1, 12: 3}))
    carried_out(model, [kept({8: 3, 12: 1})])


@pytest.mark.parametrize(("pages", "states", "left"), [(0, 1, 1), (0, 2, 0), (1, 1, 1), (1, 2, 0), (2, 1, 0)])
def test_the_model_itself_evicts_as_many_states_as_are_asked_for(pages: int, states: int, left: int) -> None:
    model = Model(Config(4, 20, 4, 64, num_states=8), checker=Checker)
    for launch, tokens in ((1, PROMPT[:5]), (2, [90, 91, 92, 93, 94])):
        carried_out(model, [*prefill("a", tokens, launch), Finish("a")])
    assert len(model.state.store.states) == 2
    carried_out(model, [Evict(pages, states=states)])
    assert len(model.state.store.states) == left


@pytest.mark.parametrize("cached", [1, 2])
def test_data_2_the_slot_that_is_published_has_kept_the_border(cached: int) -> None:
    publish = CacheUnfinished("a", obs=PublishAnswer(8, [], None, cached, 4))
    carried_out(reported_by_the_engine(), [publish])  # not reported
    with pytest.raises(Violation, match=f"DATA-2: the store took state slot {cached}, "):
        carried_out(reported_by_the_engine(), [seen(2, {8: 3}), publish])


@pytest.mark.parametrize(("slot", "right"), [(1, False), (2, True), (3, False)])
def test_data_2_at_the_end_any_slot_is_published_whose_state_is_that_of_the_border(slot: int, right: bool) -> None:
    """Slot 1 is computed in and stands at 9; slot 2 has kept the state at 8, slot 3 none."""
    freed = [one for one in (1, 2, 3) if one != slot]
    finish = Finish("a", obs=ReleaseAnswer([3], None, [*freed], slot))
    if right:
        carried_out(with_states(), [finish])
        return
    with pytest.raises(Violation, match=f"DATA-2: the store took state slot {slot}, which does not have"):
        carried_out(with_states(), [finish])


@pytest.mark.parametrize("reported", [1, 3, 5])
def test_data_2_a_request_goes_on_from_the_state_of_what_it_matched(reported: int) -> None:
    model = carried_out(with_states(), [Finish("a"), Submit("b", [*PROMPT[:10]]), MatchPrefix("b")])
    extend = Extend([("b", 10)], obs=ExtendAnswer({"b": 0}, {"b": [3]}, None, {"b": [1, 3, 4]}, {"b": reported}))
    with pytest.raises(Violation, match=f"DATA-2: b goes on from state slot {reported}") as violation:
        model.step(extend)
    assert (violation.value.expected, violation.value.observed) == (2, reported)


@pytest.mark.parametrize(("reported", "right"), [(1, True), (4, True), (9, False)])
def test_data_2_a_turn_retracted_before_its_launch_goes_on_from_the_stores_state_or_its_copy(
    reported: int, right: bool
) -> None:
    """Slot 1 is its own, which has a copy of the store's slot 4 unless the engine copies at the launch."""
    model = Model(Config(page_size=4, num_pages=16, num_rows=2, max_context_len=64, num_states=12))
    turn: list[Event] = [OpenSession("s"), Submit("a", [0] * 6, "s"), MatchPrefix("a"), Extend([("a", 6)])]
    turn += [Launch(1, ["a"]), Complete(1, {"a": 0}), CacheUnfinished("a"), Finish("a"), Submit("b", [0] * 13, "s")]
    for op in [*turn, Preempt("s"), MatchPrefix("b"), Extend([("b", 13)]), Retract("b"), MatchPrefix("b")]:
        model.step(op)
    again = Extend([("b", 13)], obs=ExtendAnswer(states_from={"b": reported}))
    if right:
        model.step(again)
        return
    with pytest.raises(Violation, match="DATA-2"):
        model.step(again)


@pytest.mark.parametrize("reported", [1, 2, 3])
def test_data_2_a_request_that_begins_at_its_first_token_goes_on_from_no_state(reported: int) -> None:
    model = carried_out(with_states(), [Submit("b", [99, *PROMPT[:9]]), MatchPrefix("b")])
    extend = Extend([("b", 10)], obs=ExtendAnswer({"b": 1}, {"b": [4, 5, 6]}, None, {"b": [4, 5, 6]}, {"b": reported}))
    with pytest.raises(Violation, match=f"DATA-2: b goes on from state slot {reported}"):
        model.step(extend)


@pytest.mark.parametrize(("cached", "right"), [(1, False), (2, True)])
def test_data_2_the_slot_that_is_computed_in_is_kept_though_it_has_the_state_of_the_border(
    cached: int, right: bool
) -> None:
    """A prompt ends at a page border: slot 1, which is computed in, has the same state as slot 2."""
    model = Model(Config(4, 20, 4, 64, num_states=8), checker=Checker)
    carried_out(model, prefill("a", PROMPT[:8], 1))
    publish = CacheUnfinished("a", obs=PublishAnswer(8, [], None, cached, 4))
    if right:
        carried_out(model, [publish])
        return
    with pytest.raises(Violation, match="DATA-2: the store took state slot 1, in which a computes"):
        model.step(publish)


def test_swa_2_a_cursor_stands_at_page_borders() -> None:
    """P = 4 = window, 14 tokens: positions from 9 on are still read."""
    for until in range(16):
        model = carried_out(
            Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=16)), prefill("a", PROMPT[:14], 1)
        )
        sides = list(range(1, until // 4 + 1))
        evict = SwaEvict("a", obs=SwaEvictAnswer(until, sides))
        if until in (0, 4, 8):
            carried_out(model, [evict])
            continue
        with pytest.raises(Violation, match=f"SWA-2: the window of a was evicted up to {until}"):
            model.step(evict)


@pytest.mark.parametrize(
    ("room", "tokens", "short", "allowed"),
    [
        ("estimated", 20, 0, True),
        ("estimated", 20, 1, True),
        ("estimated", 20, 2, False),
        ("estimated", 16, 1, False),
        ("estimated", 24, 0, True),
        ("estimated", 24, 1, True),
        ("estimated", 24, 2, True),
        ("estimated", 24, 3, False),
        ("exact", 20, 1, False),
        ("exact", 24, 1, True),
        ("exact", 24, 2, False),
    ],
)
def test_what_fits_may_be_refused_by_an_estimate_where_that_is_declared(
    room: Room, tokens: int, short: int, allowed: bool
) -> None:
    """Five window pages are free, and the estimate is one page more than the tokens fill; six do not fit."""
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=5, room=room))
    carried_out(model, [Submit("a", [0] * tokens), MatchPrefix("a")])
    refused = Extend([("a", tokens)], refused=Refused("estimated", "CAP-1", window_short=short))
    if allowed:
        carried_out(model, [refused])
        assert model.state.requests["a"].record is None
    else:
        with pytest.raises(Violation, match="CAP-1"):
            model.step(refused)
    if tokens <= 20:
        carried_out(model, [Extend([("a", tokens)])])


@pytest.mark.parametrize(("end", "allowed"), [(20, True), (16, False)])
def test_an_estimate_is_of_what_a_chunk_adds(end: int, allowed: bool) -> None:
    """Two pages are there and three window pages free: of 12 tokens more the estimate is four pages, of 8 three."""
    model = Model(Config(4, 20, 4, 64, sliding_window=4, num_window_pages=5, room="estimated"))
    carried_out(model, [Submit("a", [0] * 20), MatchPrefix("a"), Extend([("a", 8)]), Launch(1, ["a"]), Complete(1)])
    refused = Extend([("a", end)], refused=Refused("estimated", "CAP-1", window_short=1))
    if allowed:
        carried_out(model, [refused])
    else:
        with pytest.raises(Violation, match="CAP-1"):
            model.step(refused)
