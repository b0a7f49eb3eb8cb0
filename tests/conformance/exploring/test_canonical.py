"""States that differ in numbers only have one key, and states that differ in anything else have two."""

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

from kvconform.exploring import SCOPES, Scope, exhaust
from kvconform.exploring.canonical import Key, canonical, key
from kvconform.exploring.expanding import carry_out
from kvconform.exploring.moves import Node, choices
from kvconform.exploring.search import Explored
from kvconform.oracle import Model, NotedState
from kvspec.events import Refusal
from kvspec.model.records import Record
from kvspec.model.state import State
from tests.conformance.exploring.small import SMALL
from tests.spec.broken_states import busy_state

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small() -> Explored:
    return exhaust(SMALL)


def nodes(scope: Scope, count: int, seed: int = 0) -> list[Node]:
    """States on a random walk through a scope, which begins anew where it ends."""
    draw, found, model = random.Random(seed), list[Node](), Model(scope.config)
    node = start = Node(NotedState(scope.config), frozenset())
    while len(found) < count:
        options = list(choices(scope, node))
        if not options:
            node = start
            continue
        move, came, _ = draw.choice(options)
        state = node.state.copy()
        try:
            carry_out(model, state, move)
        except Refusal:
            continue
        node = Node(state, node.came if came is None else node.came | {came})
        found.append(node)
    return found


def renumbered(node: Node, seed: int) -> Node:
    """The same state with other numbers for pages, window pages, state slots, rows, records, runs and launches."""
    draw, old = random.Random(seed), node.state
    pages, sides, slots = (
        [0, *draw.sample(range(1, size + 1), size)]
        for size in (old.config.num_pages, old.config.num_window_pages, old.config.num_states)
    )
    rows = draw.sample(range(old.config.num_rows), old.config.num_rows)
    new = old.copy()

    def record(number: int) -> int:
        return number * 7 + 3 if number else 0

    def owner(name: Any) -> Any:
        return record(name) if isinstance(name, int) else name

    def holder(one: Any) -> Any:
        return one._replace(record=None if one.record is None else record(one.record))

    def run(number: int) -> int:
        return number * 5

    new.requests = {
        req: holder(one)._replace(run=run(one.run), state=None if one.state is None else slots[one.state])
        for req, one in sorted(new.requests.items(), reverse=True)
    }
    new.sessions = {name: holder(one) for name, one in sorted(new.sessions.items(), reverse=True)}
    new.records = {
        record(number): Record(
            rows[row], locked, tuple(slots[slot] for slot in states), slots[computing] if computing else 0
        )
        for number, (row, locked, states, computing) in old.records.items()
    }
    new.state_content = {slots[slot]: (record(number), length) for slot, (number, length) in old.state_content.items()}
    for name in ("lengths", "written", "horizon", "cursor", "borders"):
        setattr(new, name, {record(number): value for number, value in getattr(old, name).items()})
    new.tables = {record(number): [pages[page] for page in table] for number, table in old.tables.items()}
    new.rows = {rows[row]: record(number) for row, number in old.rows.items()}
    new.owner = {pages[page]: owner(name) for page, name in old.owner.items()}
    new.store.pages = {name: pages[page] for name, page in old.store.pages.items()}
    new.store.parents = {pages[page]: name for page, name in old.store.parents.items()}
    for name in ("pins", "window_pins", "state_pins"):
        setattr(new.store, name, {pages[page]: count for page, count in getattr(old.store, name).items()})
    new.store.states = {name: slots[slot] for name, slot in old.store.states.items()}
    new.state_owner = {slots[slot]: owner(name) for slot, name in old.state_owner.items()}
    new.window_of = {pages[page]: sides[side] for page, side in old.window_of.items()}
    new.window_owner = {side: page for page, side in new.window_of.items()}
    new.flights = {
        launch + 4: [
            one._replace(run=run(one.run), record=record(one.record), row=rows[one.row]) for one in reversed(passages)
        ]
        for launch, passages in old.flights.items()
    }
    new.readers = {rows[row]: reads for row, reads in old.readers.items()}
    return node._replace(state=new)


@pytest.mark.parametrize(
    "name", ["tiny", "speculative", "chunks", "two-sessions", "sliding-window", "recurrent-states"]
)
def test_states_that_differ_in_numbers_only_have_one_key_and_so_has_all_that_follows(name: str) -> None:
    scope = SCOPES[name]
    for seed, node in enumerate(nodes(scope, 60)):
        other = renumbered(node, seed)
        assert canonical(other) == canonical(node)
        assert key(other) == key(node)
        assert following(scope, other) == following(scope, node)


def following(scope: Scope, node: Node) -> list[Key | str | None]:
    """The key after each choice, or the rule by which it is refused."""
    found: list[Key | str | None] = []
    model = Model(scope.config)
    for move, came, _ in choices(scope, node):
        state = node.state.copy()
        try:
            carry_out(model, state, move)
        except Refusal as refusal:
            found.append(refusal.refused.rule)
        else:
            found.append(key(Node(state, node.came if came is None else node.came | {came})))
    return found


def change_owner(state: State) -> None:
    page = next(page for page, owner in state.owner.items() if isinstance(owner, int))
    state.owner[page] = next(iter(state.store.pages))


def swap_pages(state: State) -> None:
    first, second = (state.tables[request.record] for request in state.requests.values() if request.record is not None)
    first[-1], second[-1] = second[-1], first[-1]


def forget_reader(state: State) -> None:
    state.readers.clear()


def unlock(state: State) -> None:
    path = state.store.path(next(record.locked for record in state.records.values() if record.locked))
    state.store.unlock(path, len(path))


def withhold(state: State) -> None:
    state.rows[7] = 0


def release_row(state: State) -> None:
    state.rows[next(iter(state.rows))] = 0


def orphan(state: State) -> None:
    state.owner[20] = next(iter(state.records))


def unwrite(state: State) -> None:
    for record in state.written:
        state.written[record] = 0


def promise(state: State) -> None:
    for record in state.horizon:
        state.horizon[record] += 1


def rename_passage(state: State) -> None:
    (passages,) = state.flights.values()
    passages[0] = passages[0]._replace(run=99)


@pytest.mark.parametrize(
    "breaking",
    [
        change_owner,
        swap_pages,
        forget_reader,
        unlock,
        withhold,
        release_row,
        orphan,
        unwrite,
        promise,
        rename_passage,
    ],
)
def test_a_broken_state_is_not_taken_for_a_sound_one(breaking: Any) -> None:
    sound, broken = busy_state(), busy_state()
    breaking(broken)
    assert key(Node(sound, frozenset())) != key(Node(broken, frozenset()))


@pytest.mark.parametrize(
    "change",
    [
        {"running": True},
        {"prefix_len": 1},
        {"resumed": False},
        {"run": 3},
        {"session": None},
    ],
)
def test_each_part_of_a_request_is_in_the_key(change: dict[str, Any]) -> None:
    sound, other = busy_state(), busy_state()
    other.requests["w"] = other.requests["w"]._replace(**change)
    assert key(Node(sound, frozenset())) != key(Node(other, frozenset()))
    assert key(Node(sound, frozenset())) != key(Node(sound, frozenset(("b",))))


def forget_window_side(state: State) -> None:
    state.window_of.pop(next(iter(state.window_of)))


def swap_window_sides(state: State) -> None:
    first, second, *_ = state.window_of
    state.window_of[first] = state.window_of[second]


def orphan_window_page(state: State) -> None:
    del state.window_owner[next(iter(state.window_owner))]


def move_cursor(state: State) -> None:
    state.cursor[next(iter(state.cursor))] = 6


def reach_farther(state: State) -> None:
    state.store.window_pins[next(iter(state.store.pages.values()))] = 7


def forget_border(state: State) -> None:
    record = next(record for record, borders in state.borders.items() if borders)
    state.borders[record] = state.borders[record][1:]


def take_state_of_store(state: State) -> None:
    state.state_owner[next(iter(state.store.states.values()))] = next(iter(state.records))


def give_state_away(state: State) -> None:
    req = next(req for req, request in state.requests.items() if request.state is not None)
    state.requests[req] = state.requests[req]._replace(state=None)


def one_state_for_two(state: State) -> None:
    record = next(iter(state.records))
    states = state.records[record].states
    state.records[record] = state.records[record]._replace(states=(states[0], states[0], states[2]))


def lock_state(state: State) -> None:
    state.store.state_pins[next(iter(state.store.pages.values()))] = 7


def lose_slot(state: State) -> None:
    state.state_owner.pop(next(iter(state.state_owner)))


def write_on(state: State) -> None:
    """A slot whose state stands past its committed length: what matches next resumes elsewhere."""
    record = next(session.record for session in state.sessions.values() if session.record is not None)
    state.written[record] += 1


@pytest.mark.parametrize(
    ("scope", "breaking"),
    [
        ("sliding-window", forget_window_side),
        ("sliding-window", swap_window_sides),
        ("sliding-window", orphan_window_page),
        ("sliding-window", move_cursor),
        ("sliding-window", reach_farther),
        ("recurrent-states", forget_border),
        ("recurrent-states", take_state_of_store),
        ("recurrent-states", give_state_away),
        ("recurrent-states", one_state_for_two),
        ("recurrent-states", lock_state),
        ("recurrent-states", lose_slot),
        ("recurrent-states", write_on),
    ],
)
def test_each_part_of_a_hybrid_pool_is_in_the_key(scope: str, breaking: Callable[[State], None]) -> None:
    tried = 0
    for node in nodes(SCOPES[scope], 600):
        broken = node._replace(state=node.state.copy())
        try:
            breaking(broken.state)
        except (StopIteration, ValueError):
            continue  # there is no such thing in this state
        tried += 1
        assert key(broken) != key(node)
    assert tried > 3


@pytest.mark.thorough
def test_without_symmetry_the_same_states_are_reached(small: Explored) -> None:
    seen: set[Key] = set()

    def numbered(node: Node) -> Key:
        """A key that differs with page and row numbers."""
        state = node.state
        seen.add(key(node))
        rows = {name: state.records[record].row for name, record in holders(state)}
        tables = {name: state.tables[record] for name, record in holders(state)}
        store = sorted(state.store.pages.items())
        readers = sorted((row, list(reads)) for row, reads in state.readers.items())
        return pickle.dumps((canonical(node), rows, tables, store, readers))

    by_number = exhaust(SMALL, key_of=numbered, live=False)
    assert by_number.states > 1.5 * small.states
    assert seen == small.keys
    assert {label: len(trace) for label, trace in by_number.witnesses.items()} == {
        label: len(trace) for label, trace in small.witnesses.items()
    }


def holders(state: State) -> list[tuple[str, int]]:
    records = [(req, request.record) for req, request in sorted(state.requests.items())]
    records += [(name, session.record) for name, session in sorted(state.sessions.items())]
    return [(name, record) for name, record in records if record is not None]
