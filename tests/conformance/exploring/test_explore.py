"""Exploration is complete, sound, shortest, and can fail."""

import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import kvspec.model
from kvconform.commands.searching import explore
from kvconform.exploring import SCOPES, Arrival, Scope, compare, exhaust
from kvconform.exploring.canonical import Key, canonical, key
from kvconform.exploring.lockstep import Copier, DeepCopier, Replayer, copier
from kvconform.exploring.moves import Node, choices
from kvconform.exploring.report import brief, length, show_explored
from kvconform.exploring.scope import OPTIONAL, SOMETIMES
from kvconform.exploring.search import Explored, carry_out
from kvconform.gallery.finders import rule_of
from kvconform.gallery.mutants import BUGS
from kvref.manager import Manager
from kvspec.events import Config, Refusal
from kvspec.model import Model
from kvspec.model.state import Record, State
from kvspec.store import Entry
from tests.spec.test_invariants import busy_state

SMALL = Scope(
    name="small",
    about="",
    config=Config(page_size=1, num_pages=3, num_rows=2, max_context_len=5),
    arrivals=(Arrival("a", (0, 0)), Arrival("s1", (0,), "s"), Arrival("s2", (0,), "s")),
    operations=frozenset(("cache_unfinished", "retract", "preempt", "evict")),
    sometimes=frozenset(),
)


POOLS = {
    "": {},
    "sliding window": {"sliding_window": 1, "num_window_pages": 3},
    "recurrent states": {"num_states": 4},
}


def small_with(pools: str) -> Scope:
    """The small scope, with a second pool."""
    return SMALL._replace(
        config=msgspec.structs.replace(SMALL.config, **POOLS[pools]),
        operations=SMALL.operations | {"swa_evict", "take_state", "free_state"},
    )


@pytest.fixture(scope="module")
def small() -> Explored:
    return exhaust(SMALL)


def nodes(scope: Scope, count: int, seed: int = 0) -> list[Node]:
    """States on a random walk through a scope, which begins anew where it ends."""
    draw, found, model = random.Random(seed), list[Node](), Model(scope.config)
    node = start = Node(State(scope.config), frozenset())
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


# The key


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

    def content(held: Any) -> Any:
        return (record(held[0]), held[1]) if isinstance(held, tuple) else held

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
        record(number): Record(rows[row], locked, tuple(slots[slot] for slot in states))
        for number, (row, locked, states) in old.records.items()
    }
    for name in ("lengths", "written", "horizon", "cursor", "borders"):
        setattr(new, name, {record(number): value for number, value in getattr(old, name).items()})
    new.tables = {record(number): [pages[page] for page in table] for number, table in old.tables.items()}
    new.rows = {rows[row]: record(number) for row, number in old.rows.items()}
    new.owner = {pages[page]: owner(name) for page, name in old.owner.items()}
    new.store.entries = {name: Entry(pages[page], parent) for name, (page, parent) in old.store.entries.items()}
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
    new.readers = {rows[row]: deque(reads) for row, reads in old.readers.items()}
    new.content = {pages[page]: content(held) for page, held in old.content.items()}
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
    state.owner[page] = next(iter(state.store.entries))


def change_content(state: State) -> None:
    record = state.requests["w"].record
    assert record is not None
    state.content[state.tables[record][-1]] = (99, 0)


def swap_pages(state: State) -> None:
    first, second = (state.tables[request.record] for request in state.requests.values() if request.record is not None)
    first[-1], second[-1] = second[-1], first[-1]


def forget_reader(state: State) -> None:
    state.readers.clear()


def unlock(state: State) -> None:
    state.store.unlock(next(record.locked for record in state.records.values() if record.locked))


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
        change_content,
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
    state.store.window_pins[next(iter(state.store.entries))] = 7


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
    state.store.state_pins[next(iter(state.store.entries))] = 7


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


def test_without_symmetry_the_same_states_are_reached(small: Explored) -> None:
    seen: set[Key] = set()

    def numbered(node: Node) -> Key:
        """A key that tells page and row numbers apart."""
        state = node.state
        seen.add(key(node))
        rows = {name: state.records[record].row for name, record in holders(state)}
        tables = {name: state.tables[record] for name, record in holders(state)}
        store = sorted((name, entry.page) for name, entry in state.store.entries.items())
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


# What is exhausted


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_result_does_not_depend_on_the_number_of_processes(small: Explored, jobs: int) -> None:
    assert exhaust(SMALL, jobs=jobs)._replace(seconds=0) == small._replace(seconds=0)


@pytest.mark.parametrize("pools", POOLS)
def test_every_trace_to_something_reached_shows_it_at_its_end(small: Explored, pools: str) -> None:
    result = exhaust(small_with(pools)) if pools else small
    assert result.holds
    assert len(result.witnesses) > 8
    for label, trace in result.witnesses.items():
        model = Model(result.scope.config)
        for op in trace[:-1]:
            model.step(op)  # type: ignore[arg-type]
        assert not model.reached[label]
        model.step(trace[-1])  # type: ignore[arg-type]
        assert model.reached[label]


def test_what_is_worth_reaching_is_what_the_model_counts() -> None:
    folder = Path(kvspec.model.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    counted = {label for line in re.findall(r"reached\[(.*?)\] \+=", source) for label in re.findall(r'"(.*?)"', line)}
    assert counted == set(SOMETIMES)


def test_scopes_declare_together_all_that_is_worth_reaching() -> None:
    assert frozenset().union(*(scope.sometimes for scope in SCOPES.values())) == frozenset(SOMETIMES)
    assert frozenset().union(*(scope.operations for scope in SCOPES.values())) == frozenset(OPTIONAL)


def test_something_declared_that_is_not_reached_fails_the_run(small: Explored) -> None:
    result = small._replace(scope=SMALL._replace(sometimes=frozenset(("overshoot", "tail freed"))))
    assert result.missing == {"overshoot"}
    assert not result.holds
    console = Console(record=True, width=120)
    show_explored(console, [result])
    assert "1 not reached" in console.export_text()


def without_contracts(code: str) -> Any:
    """What a program prints that runs without contracts, as JSON."""
    environment = os.environ | {"KVSPEC_CONTRACTS": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


EXHAUST = """
import json
from kvconform.exploring import SCOPES, exhaust
results = [exhaust(SCOPES[name]) for name in ("tiny", "speculative", "chunks", "sliding-window", "recurrent-states")]
print(json.dumps([[one.scope.name, one.states, one.transitions, one.depth, one.holds] for one in results]))
"""


def test_the_small_scopes_hold() -> None:
    assert without_contracts(EXHAUST) == [
        ["tiny", 5353, 22823, 25, True],
        ["speculative", 4223, 18830, 37, True],
        ["chunks", 14367, 79220, 24, True],
        ["sliding-window", 24633, 164309, 31, True],
        ["recurrent-states", 21007, 144700, 34, True],
    ]


BROKEN_SPECIFICATION = """
import json
from kvconform.exploring import SCOPES, exhaust
from kvconform.exploring.report import brief
from kvspec import lengths
lengths.tail = lambda kept, allocated, page_size: range(kept // page_size, -(-allocated // page_size))
finding = exhaust(SCOPES["tiny"]).finding
print(json.dumps([finding.finding.rule.id, [brief(op) for op in finding.operations]]))
"""


def test_a_tail_that_begins_inside_a_page_is_found_by_the_shortest_trace() -> None:
    rule, trace = without_contracts(BROKEN_SPECIFICATION)
    assert rule == "PAGE-2"
    assert trace == [
        "open_session s",
        "submit s1 of 2",
        "match_prefix s1",
        "extend s1 to 2",
        "launch 1 of s1",
        "retract s1",
        "match_prefix s1",
    ]


CURSOR_TOO_FAR = """
import json
from kvconform.exploring import SCOPES, exhaust
from kvconform.exploring.report import brief
from kvspec.model.state import State
State.next_position = lambda self, request, record: self.lengths[record].committed
finding = exhaust(SCOPES["sliding-window"]).finding
print(json.dumps([finding.finding.rule.id, [brief(op) for op in finding.operations]]))
"""


def test_a_cursor_that_forgets_the_last_token_is_found_by_the_shortest_trace() -> None:
    """Who is retracted before its token comes begins one position before its committed length, and reads farther."""
    rule, trace = without_contracts(CURSOR_TOO_FAR)
    assert rule == "SWA-2"
    assert trace == ["submit a of 5", "match_prefix a", "extend a to 5", "launch 1 of a", "swa_evict a"]


# LIVE-1


PINNED = Scope(
    name="pinned",
    about="",
    config=Config(page_size=1, num_pages=2, num_rows=2, max_context_len=5),
    arrivals=(Arrival("a", (1,)), Arrival("s1", (0,), "s"), Arrival("t1", (0,), "t")),
    operations=frozenset(("preempt", "evict")),
    sometimes=frozenset(),
)


def test_idle_sessions_that_pin_the_pool_are_a_deadlock_unless_they_are_preempted() -> None:
    assert exhaust(PINNED).holds
    finding = exhaust(PINNED.without(["preempt"])).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"
    assert [brief(op) for op in finding.operations] == [
        "open_session s",
        "submit a of 1",
        "submit s1 of 1",
        "match_prefix a",
        "match_prefix s1",
        "extend s1 to 1",
        "launch 1 of s1",
        "decode s1",
        "complete 1",
        "launch 1 of s1",
        "finish s1",
        "complete 1",
    ]
    assert "a wait, and nothing that the scheduler may do changes the state any more" in str(finding.finding)


def test_turns_that_wait_with_their_sessions_memory_are_a_deadlock_unless_the_lend_can_be_ended() -> None:
    arrivals = (*(Arrival(name, (0,), name[0]) for name in ("s1", "s2", "t1", "t2")),)
    scope = PINNED._replace(arrivals=arrivals, config=Config(1, 3, 2, 5))
    assert exhaust(scope._replace(operations=scope.operations | {"give_back"})).holds
    finding = exhaust(scope).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"
    assert [brief(op) for op in finding.operations] == [
        "open_session s",
        "open_session t",
        "submit s1 of 1",
        "submit t1 of 1",
        "match_prefix s1",
        "match_prefix t1",
        "extend s1 to 1, t1 to 1",
        "launch 1 of s1, t1",
        "complete 1",
        "finish s1",
        "submit s2 of 3",
        "match_prefix s2",
        "finish t1",
        "submit t2 of 3",
        "match_prefix t2",
    ]
    assert "request s2 holds 1, request t2 holds 1" in str(finding.finding)


def test_requests_that_grow_beside_each_other_are_a_deadlock_unless_one_is_retracted() -> None:
    arrivals = (Arrival("a", (0,), outputs=3), Arrival("b", (1,), outputs=3))
    scope = PINNED._replace(arrivals=arrivals, config=Config(1, 3, 2, 5))
    assert exhaust(scope._replace(operations=scope.operations | {"retract"})).holds
    finding = exhaust(scope).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"


def test_requests_that_wait_with_a_state_each_are_a_deadlock_unless_they_give_it_back() -> None:
    scope = PINNED._replace(
        config=Config(1, 3, 2, 5, num_states=3),
        arrivals=(Arrival("a", (0,)), Arrival("b", (1,))),
        operations=frozenset(("evict", "take_state", "free_state")),
    )
    assert exhaust(scope).holds
    finding = exhaust(scope.without(["free_state"])).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"
    assert [brief(op) for op in finding.operations] == [
        "submit a of 1",
        "submit b of 1",
        "match_prefix a",
        "match_prefix b",
        "take_state a",
        "take_state b",
    ]


# Implementations


@pytest.mark.parametrize("pools", POOLS)
def test_the_reference_conforms_in_every_state(pools: str) -> None:
    result = compare(small_with(pools)._replace(arrivals=SMALL.arrivals[:2]), Manager)
    assert result.complete
    assert result.finding is None
    assert result.states > 100


SHORTEST = {
    "held-not-rounded-up": ("tiny", "ACC-1", 3),
    "last-slot-kept": ("tiny", "PAGE-1", 4),
    "stale-row-index": ("tiny", "ROW-4", 4),
    "row-freed-between-chunks": ("tiny", "ROW-2", 5),
    "row-freed-while-read": ("tiny", "RACE-1", 5),
    "continuing-chunk-samples": ("tiny", "CHUNK-1", 5),
    "locked-page-evicted": ("tiny", "STORE-3", 6),
    "protected-from-unaligned-prefix": ("tiny", "LEN-2", 7),
    "tail-freed-from-inside-a-page": ("tiny", "TAIL-2", 7),
    "speculative-tail-orphaned": ("tiny", "TAIL-1", 8),
    "lock-taken-at-retry": ("tiny", "STORE-2", 8),
    "abort-saves-inflated-lengths": ("speculative", "SESS-5", 5),
    "chunk-stash-published": ("speculative", "SESS-6", 6),
    "close-frees-kv-in-use": ("speculative", "SESS-4", 6),
    "retract-tail-orphaned": ("speculative", "TAIL-1", 7),
    "two-new-chunks-in-a-batch": ("chunks", "BATCH-1", 5),
    "last-chunk-forbids-first-chunk": ("chunks", "OP-1", 7),
    "reservation-from-wrong-length": ("chunks", "CAP-1", 8),
    "allocated-falls-behind": ("tiny", "LEN-1", 5),
    "resumed-below-protected": ("tiny", "LEN-3", 10),
    "pages-counted-from-the-extend": ("tiny", "PAGE-2", 9),
    "slots-counted-on": ("tiny", "PAGE-3", 8),
    "front-page-evicted": ("tiny", "STORE-1", 9),
    "last-token-matched": ("tiny", "STORE-4", 8),
    "second-turn-accepted": ("tiny", "SESS-1", 3),
    "chunk-beside-a-chunk": ("chunks", "BATCH-2", 6),
    "published-before-launch": ("tiny", "LAUNCH-1", 4),
    "verified-in-flight": ("speculative", "SPEC-1", 8),
}
"""Where a defect is found, by which rule, and after how many operations."""


@pytest.mark.parametrize("name", SHORTEST)
def test_a_defect_is_found_by_a_shortest_trace(name: str) -> None:
    scope, rule, count = SHORTEST[name]
    result = compare(SCOPES[scope], BUGS[name].factory)
    assert result.finding is not None
    assert rule_of(result.finding) == rule
    assert rule in BUGS[name].rules
    assert length(result.finding.operations) == count


@pytest.mark.parametrize("name", ["last-slot-kept", "row-freed-between-chunks", "two-new-chunks-in-a-batch"])
def test_no_shorter_trace_is_missed_because_states_are_taken_for_one(name: str) -> None:
    scope, _, count = SHORTEST[name]
    apart = compare(SCOPES[scope], BUGS[name].factory, tell_apart=True, deepest=count - 1)
    assert apart.finding is None
    assert not apart.complete


class Unpicklable(Manager):
    """Can be copied, but not written down."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config_of = lambda: config


class Uncopyable(Unpicklable):
    """Can only be made again."""

    def __deepcopy__(self, memo: object) -> "Uncopyable":
        raise TypeError("this lives on a device")


@pytest.mark.parametrize(
    ("factory", "kind"),
    [(Manager, Copier), (Unpicklable, DeepCopier), (Uncopyable, Replayer)],
    ids=lambda one: one.__name__,
)
def test_an_implementation_is_copied_as_it_allows(factory: type[Manager], kind: type[Copier]) -> None:
    scope = SMALL._replace(arrivals=SMALL.arrivals[:1])
    assert type(copier(factory, scope)) is kind
    assert compare(scope, factory)._replace(seconds=0) == compare(scope, Manager)._replace(seconds=0)


# The command


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(explore)
    return app


def test_the_command_prints_what_was_reached_and_what_was_not(
    command: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCOPES, "small", SMALL._replace(sometimes=frozenset(("overshoot",))))
    done = CliRunner().invoke(command, ["--scope", "small", "--jobs", "1"])
    assert done.exit_code == 1
    assert "tail freed" in done.output
    assert "declared, but not reached" in done.output


def test_the_command_prints_the_shortest_trace_of_a_defect(command: typer.Typer) -> None:
    done = CliRunner().invoke(command, ["--scope", "tiny", "--bug", "last-slot-kept"])
    assert done.exit_code == 1
    assert "PAGE-1 is broken" in done.output
    assert "The shortest operations" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scope", "none"],
        ["--without", "launch"],
        ["--bug", "none"],
        ["--bug", "endless-prefill-retract-loop"],
        ["--bug", "last-slot-kept", "--impl", "reference"],
    ],
)
def test_a_wrong_call_is_told(command: typer.Typer, arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2
