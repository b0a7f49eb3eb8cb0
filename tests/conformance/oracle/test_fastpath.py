"""A decode batch that goes on comes to the state that its operations come to one by one."""

import copy
import random
from collections import Counter, deque
from typing import Any

import msgspec
import pytest

from kvcheck import Checker
from kvconform.oracle import Model, NotedState
from kvconform.oracle.fastpath import QuickModel
from kvspec.events import (
    CacheUnfinished,
    Complete,
    CompleteAnswer,
    Config,
    Decode,
    DecodeAnswer,
    Done,
    Event,
    Evict,
    Extend,
    ExtendAnswer,
    Finish,
    Launch,
    MatchPrefix,
    Operation,
    Refusal,
    Refused,
    Report,
    Retract,
    Submit,
    Verify,
)
from kvspec.memory.events import Release
from kvspec.pages import Runs, expand
from kvspec.rules import Violation
from tests.marks import one_in

CONFIGS = {
    "plain": Config(page_size=4, num_pages=60, num_rows=8, max_context_len=40),
    "tokens as pages": Config(page_size=1, num_pages=200, num_rows=8, max_context_len=40, rows_read="at_launch"),
    "a window": Config(
        page_size=2, num_pages=100, num_rows=8, max_context_len=40, sliding_window=4, num_window_pages=90
    ),
    "states": Config(page_size=2, num_pages=100, num_rows=8, max_context_len=40, num_states=40),
}


def traffic(config: Config, seed: int, ahead: int) -> list[Operation[Any]]:
    """Operations with the model's own answers: requests that come, decode together for a while, and leave.

    Now and then a step of the batch is launched in two parts, and who is new joins it later. At most `ahead` launches
    are not completed when the next step is decoded.
    """
    rng, model, done = random.Random(seed), Model(config), list[Operation[Any]]()

    def do(op: Event) -> bool:
        try:
            model.step(op)
        except Refusal:
            return False
        done.append(op)
        return True

    def complete(left: int) -> None:
        while len(model.state.flights) > left:
            launch, passages = next(iter(model.state.flights.items()))
            runs = {req: request.run for req, request in model.state.requests.items() if request.running}
            due = [passage.req for passage in passages if passage.samples and runs.get(passage.req) == passage.run]
            tokens = {req: rng.randrange(9) for req in due}
            do(
                Complete(launch, tokens)
                if rng.random() < 0.8
                else Complete(launch, dict.fromkeys(due, 9), obs=CompleteAnswer(tokens))
            )

    launches = 0
    for number in range(12):
        req, length = f"r{number}", rng.randrange(1, 20)
        do(Submit(req, [rng.randrange(2) for _ in range(length)]))
        if do(MatchPrefix(req)) and do(Extend([(req, length)])):
            launches += 1
            do(Launch(launches, [req]))
            complete(rng.randrange(ahead + 1))
            if rng.random() < 0.6:
                do(CacheUnfinished(req))
        all_running = [name for name, request in model.state.requests.items() if request.running]
        running = [name for name in all_running if name != req] if rng.random() < 0.4 else all_running
        for _ in range(rng.randrange(12)):
            if rng.random() < 0.3:
                running = all_running
            if not running or not do(Decode(running)):
                break
            if rng.random() < 0.1:
                do(Report())
            cut = rng.randrange(len(running)) if rng.random() < 0.2 else 0
            for together in (running[:cut], running[cut:]):
                if together:
                    launches += 1
                    do(Launch(launches, together))
            complete(ahead)
            if rng.random() < 0.1:
                do(CacheUnfinished(rng.choice(running)))
            if rng.random() < 0.1:
                complete(rng.choice((0, ahead)))
                gone = rng.choice(running)
                do(Finish(gone))
                running, all_running = ([name for name in names if name != gone] for names in (running, all_running))
        complete(rng.choice((0, ahead)))
        for name in rng.sample(running, len(running) // 2):
            do((Finish if rng.random() < 0.9 else Retract)(name))
        do(Evict(rng.randrange(1, 4)))
    return done


def attributes(state: NotedState) -> dict[str, Any]:
    """A state, to be compared; counters without what they never counted."""
    shown = {name: value for name, value in vars(state).items() if name not in ("store", "requests", "memory")}
    counters = {name: +Counter(shown[name]) for name in ("checked", "unchecked", "reached", "chosen")}
    store = {name: getattr(state.store, name) for name in state.store.__slots__}
    requests = {req: (*request[1:], request.tokens.elements()) for req, request in state.requests.items()}
    return shown | counters | store | {"requests": requests, "memory": plain(state.memory)}


def plain(value: Any) -> Any:
    """The attributes of any object, to be compared."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, deque):  # operations in flight, each of which knows the stream that has it
        return [flight.number for flight in value]
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    names = getattr(value, "__dict__", getattr(value, "__slots__", ()))
    return plain({name: getattr(value, name) for name in names}) if names else value


@pytest.mark.slow
@pytest.mark.parametrize("checker", [None, Checker])
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("name", one_in(2, CONFIGS))
def test_a_batch_that_goes_on_comes_to_the_same_state(name: str, ahead: int, checker: type[Checker] | None) -> None:
    went_on = beside = 0
    for seed in ((0, 1, 3)[ahead],) if checker else (0, 1):
        operations = traffic(CONFIGS[name], seed, ahead)
        watched, alone = Model(CONFIGS[name], checker=checker), QuickModel(CONFIGS[name], checker=checker)
        for number, op in enumerate(operations):
            watched.step(op)
            alone.step(op)
            went_on += bool(alone._steady._members)
            assert alone._state.flights == watched.state.flights
            beside += bool(alone._steady._members) and not isinstance(op, (Decode, Launch, Complete))
            if number % 60 == 59 or number == len(operations) - 1:
                assert attributes(alone.state) == attributes(watched.state)
            elif alone._steady._members and (number % 4 == 3 if checker else isinstance(op, Finish)):
                assert attributes(copy.deepcopy(alone).state) == attributes(watched.state)
    one_by_one = {"states", "a window"} if checker else {"states"}
    assert (went_on > 40) == (name not in one_by_one), went_on
    assert (beside > 1) == (name in ("plain", "tokens as pages")), beside


@pytest.mark.parametrize("name", CONFIGS)
def test_what_has_become_of_pages_is_seen_while_the_batch_goes_on(name: str) -> None:
    def pages(state: NotedState) -> tuple[object, ...]:
        return state.store.evictable, {**state.owner}, {**state.window_owner}, {**state.state_owner}

    watched, alone, went_on = Model(CONFIGS[name]), QuickModel(CONFIGS[name]), 0
    for op in traffic(CONFIGS[name], 0, 1):
        watched.step(op)
        alone.step(op)
        assert pages(alone.unsettled) == pages(watched.state)
        went_on += bool(alone._steady._members)
    assert (went_on > 40) == (name != "states")


def test_a_wrong_answer_of_a_batch_that_goes_on_is_found() -> None:
    config = CONFIGS["plain"]
    operations = [op for op in traffic(config, 0, 0) if not isinstance(op, Report)]
    model = QuickModel(config)
    caught = 0
    for op in operations:
        if model._steady._members and isinstance(op, Decode) and isinstance(op.obs, DecodeAnswer) and op.obs.pages:
            taken = next(iter(model._state.owner))
            wrong = Decode(op.reqs, obs=DecodeAnswer({req: [taken] for req in op.obs.pages}))
            with pytest.raises(Violation) as broken:
                model.step(wrong)
            assert broken.value.rule.id == "PAGE-1"
            with pytest.raises(Violation) as broken:
                model.step(Decode(op.reqs, obs=DecodeAnswer({})))
            assert broken.value.rule.id == "PAGE-2"
            caught += 1
        model.step(op)
    assert caught > 2


def outcome(model: Model, op: Event) -> str:
    """A model's verdict on an operation, and the answer: the model's own where none is reported."""
    own = copy.deepcopy(op)
    try:
        model.step(own)
    except (Refusal, Violation) as found:
        return str(found)
    return f"allowed: {own.obs}"


SHORT = {
    "pages": Config(page_size=1, num_pages=26, num_rows=8, max_context_len=40),
    "window pages": Config(
        page_size=1, num_pages=100, num_rows=8, max_context_len=40, sliding_window=4, num_window_pages=26
    ),
    "positions": Config(page_size=4, num_pages=60, num_rows=8, max_context_len=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_batch_that_goes_on_is_refused_what_it_is_refused_one_by_one(name: str) -> None:
    refused = 0
    for ahead in (0, 2):
        model = QuickModel(SHORT[name])
        for op in traffic(SHORT[name], 3, ahead)[:150]:
            decoded, steady = [*model._steady._decoded], bool(model._steady._members)
            in_flight = [*model._state.flights]
            attempts: list[Event] = [Decode(decoded, obs=DecodeAnswer())]
            attempts += [Decode(decoded, refused=Refused(rule="CAP-1", pages_short=short)) for short in (0, 1)]
            others = [req for req in model._state.requests if req not in decoded]
            attempts += [Decode([*decoded, req], obs=DecodeAnswer()) for req in others]
            attempts += [
                Complete(number, {passage.req: 1 for passage in passages}, obs=CompleteAnswer())
                for number, passages in model._state.flights.items()
            ]
            attempts += [Launch(number, decoded, obs=Done()) for number in (*in_flight, 999)]
            attempts += [Complete(number, {}, obs=CompleteAnswer()) for number in (*in_flight, 999)]
            no = Refused("no", "OP-1")
            attempts += [Launch(999, decoded, refused=no), Complete(next(iter(in_flight), 999), {}, refused=no)]
            attempts += [Decode(decoded), Launch(999, decoded)]
            attempts += [Finish(req, refused=no) for req in decoded[:1]] + [Submit("new", [1], refused=no)]
            for attempt in attempts if steady else ():
                goes_on, one_by_one = copy.deepcopy(model), copy.deepcopy(model)
                one_by_one.state  # noqa: B018 (reading it ends the batch)
                verdict = outcome(goes_on, attempt)
                assert verdict == outcome(one_by_one, attempt)
                refused += not verdict.startswith("allowed")
            model.step(op)
    assert refused > 10


def test_a_batch_goes_on_where_there_is_no_room_for_its_next_step() -> None:
    """So it does once a request has evicted pages, or retracted another."""
    model, went_on = QuickModel(SHORT["pages"]), 0
    for op in traffic(SHORT["pages"], 3, 0)[:150]:
        short = copy.deepcopy(model)
        refused = Decode([*short._steady._decoded], refused=Refused("", "CAP-1"))
        if short._steady._members and outcome(short, refused).startswith("allowed"):
            went_on += short._steady._members.keys() == model._steady._members.keys()
        model.step(op)
    assert went_on > 2, went_on


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_request_that_finishes_with_a_page_of_another_sees_the_pages_of_that_one_by_then(ahead: int) -> None:
    reported = dict[tuple[int, str], set[str]]()
    for seed in range(4):
        watched, alone = Model(CONFIGS["plain"]), QuickModel(CONFIGS["plain"])
        for op in traffic(CONFIGS["plain"], seed, ahead):
            if isinstance(op, Finish) and op.obs is not None and op.req in alone._steady._members:
                others = [member for req, member in alone._steady._members.items() if req != op.req]
                pages = [alone._state.tables[member.record][-1] for member in others]
                wrong = msgspec.structs.replace(op, obs=msgspec.structs.replace(op.obs, freed=pages))
                for model in (watched, alone) if others else ():
                    with pytest.raises(Violation) as broken:
                        model.step(wrong)
                    reported.setdefault((seed, op.req), set()).add(str(broken.value))
            watched.step(op)
            alone.step(op)
    assert len(reported) > 2 and all(len(said) == 1 for said in reported.values())


@pytest.mark.slow
def test_a_request_that_is_given_a_page_of_a_batch_sees_the_pages_of_the_batch_by_then() -> None:
    reported = dict[tuple[int, str], set[str]]()
    for seed in range(4):
        watched, alone = Model(CONFIGS["plain"]), QuickModel(CONFIGS["plain"])
        for op in traffic(CONFIGS["plain"], seed, 0):
            members = [*alone._steady._members.values()]
            if isinstance(op, Extend) and op.obs is not None and op.obs.pages and members:
                last = alone._state.tables[members[0].record][-1]
                pages: dict[str, Runs] = {req: [last, *expand(own)[1:]] for req, own in op.obs.pages.items()}
                wrong = msgspec.structs.replace(op, obs=msgspec.structs.replace(op.obs, pages=pages))
                for model in (watched, alone):
                    with pytest.raises(Violation) as broken:
                        model.step(wrong)
                    reported.setdefault((seed, str(op.reqs)), set()).add(str(broken.value))
            watched.step(op)
            alone.step(op)
    assert len(reported) > 2 and all(len(said) == 1 for said in reported.values())
    assert any("committed" in one for said in reported.values() for one in said)


def test_launches_of_a_batch_that_goes_on_complete_in_order() -> None:
    model, late = QuickModel(CONFIGS["plain"]), 0
    for op in traffic(CONFIGS["plain"], 1, 2):
        flights = [*model._state.flights]
        if model._steady._members and isinstance(op, Complete) and len(flights) > 1:
            with pytest.raises(Violation) as broken:
                model.step(Complete(flights[1], op.tokens, obs=CompleteAnswer()))
            assert broken.value.rule.id == "LAUNCH-1"
            late += 1
        model.step(op)
    assert late > 2


def test_a_batch_does_not_go_on_where_one_of_it_was_let_go_in_between() -> None:
    config = Config(page_size=4, num_pages=20, num_rows=4, max_context_len=40)
    model = QuickModel(config)
    model.step(Submit("a", [1] * 6))
    model.step(Submit("b", [2] * 6))
    for op in (MatchPrefix("a"), MatchPrefix("b"), Extend([("a", 6), ("b", 6)])):
        model.step(op)
    model.step(Launch(1, ["a", "b"]))
    model.step(Complete(1, {"a": 3, "b": 3}))
    model.step(Decode(["a", "b"]))
    model.step(Retract("a"))
    model.step(MatchPrefix("a"))
    model.step(Extend([("a", 4)]))
    model.step(Launch(2, ["a", "b"]))
    model.step(Complete(2, {"b": 3}))
    with pytest.raises(Violation, match="a has a prefill"):
        model.step(Decode(["a", "b"], obs=DecodeAnswer({})))


@pytest.mark.parametrize(
    ("done", "why"), [(1, "not done"), (2, "not verified"), (3, "not verified"), (4, "no token"), (0, "a prefill")]
)
def test_a_request_with_another_operation_first_does_not_join(done: int, why: str) -> None:
    """A speculative step that is prepared, launched, completed, or verified past its stop; or an unfinished prefill."""
    model = QuickModel(CONFIGS["plain"])
    for req in "abc":
        model.step(Submit(req, [1] * 6))
        model.step(MatchPrefix(req))
    for op in (Extend([("a", 6), ("b", 6), ("c", 3)]), Launch(1, ["a", "b", "c"]), Complete(1, {"a": 3, "b": 3})):
        model.step(op)
    for further in (Decode(["b"], 3), Launch(2, ["b"]), Complete(2), Verify("b", 3, [4]))[:done]:
        model.step(further)
    for number in (3, 4):
        model.step(Decode(["a"], obs=DecodeAnswer({})))
        model.step(Launch(number, ["a"], obs=Done()))
    assert model._steady._members, "the batch goes on"
    with pytest.raises(Violation, match=why):
        model.step(Decode(["a", "b" if done else "c"], obs=DecodeAnswer({})))


def test_what_a_batch_that_goes_on_has_past_its_last_step_stays_its_own() -> None:
    """A speculative step has left room for eight positions more than were accepted."""
    model = QuickModel(CONFIGS["plain"])
    for op in (Submit("a", [1] * 6), MatchPrefix("a"), Extend([("a", 6)]), Launch(1, ["a"]), Complete(1, {"a": 3})):
        model.step(op)
    for further in (Decode(["a"], 9), Launch(2, ["a"]), Complete(2), Verify("a", 1, [4])):
        model.step(further)
    for number in range(3, 7):
        model.step(Decode(["a"], obs=DecodeAnswer({})))
        model.step(Launch(number, ["a"], obs=Done()))
        model.step(Complete(number, {"a": 5}, obs=CompleteAnswer()))
    assert model._steady._members, "the batch goes on"
    assert model.lengths_of("a") == (0, 11, 15)


def test_rows_are_given_beside_a_batch_in_flight_as_after_any_launch() -> None:
    """That a row which is given was not one that is read is checked, whether the batch goes on or not."""
    model, prompt = QuickModel(Config(4, 16, 3, 64)), [*range(9)]
    first: list[Event] = [Submit("a", prompt), MatchPrefix("a"), Extend([("a", 9)]), Launch(1, ["a"])]
    first += [Complete(1, {"a": 50}), Submit("b", prompt), MatchPrefix("b")]
    batch: list[Event] = [
        Decode(["a"], obs=DecodeAnswer({})),
        Launch(2, ["a"], obs=Done()),
        Complete(2, {"a": 1}, obs=CompleteAnswer()),
    ]
    second: list[Event] = [
        Decode(["a"], obs=DecodeAnswer({})),
        Launch(3, ["a"], obs=Done()),
    ]
    for op in (*first, *batch, *second):
        model.step(op)
    assert model._steady._members
    before = model.state.checked["RACE-1"]
    model.step(Extend([("b", 9)], obs=ExtendAnswer({"b": 1}, {"b": [5, 6, 7]})))
    assert model.state.checked["RACE-1"] == before + 1


def decoding(alone: int, together: int) -> list[Event]:
    """One of two requests decodes for some steps, then both do."""
    answers, operations = Model(CONFIGS["plain"]), list[Event]()
    begin: list[Event] = [Submit("a", [1] * 6), Submit("b", [2] * 6), MatchPrefix("a"), MatchPrefix("b")]
    batches = [["a", "b"], *[["a"]] * alone, *[["a", "b"]] * together]
    for launch, batch in enumerate(batches):
        first: list[Event] = [Decode(batch)] if launch else [*begin, Extend([("a", 6), ("b", 6)])]
        operations += [*first, Launch(launch, batch), Complete(launch, dict.fromkeys(batch, 3))]
    for op in operations:
        answers.step(op)
    return operations


def test_who_joins_a_batch_with_a_page_that_is_not_its_own_is_found() -> None:
    model, operations = QuickModel(CONFIGS["plain"], checker=Checker), decoding(5, 2)
    *before, join, launch, _ = operations[:-3]
    for op in before:
        model.step(op)
    memory, (record,) = model._state.memory, {model._state.requests["b"].record}
    assert memory is not None and record is not None and model._steady._members
    assert memory.checker.step(Release(memory.names[record].holder, "pages", [model._state.tables[record][0]])) == []
    model.step(join)
    with pytest.raises(Violation, match="MEM-USE/not-held") as broken:
        model.step(launch)
    assert broken.value.rule.id == "MEM-USE"
