"""The model refines the memory model: the events of its operations never break it, and those of a broken one do."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

from kvcheck import Checker, Finding
from kvconform.fuzzing.swarm import memory, swarm
from kvconform.oracle import Model, NotedState, WatchedState
from kvconform.oracle.meaning import pools
from kvspec import events, invariants, lengths, ownership
from kvspec.events import Config, Refusal, RowsRead
from kvspec.invariants import CHECKS, check
from kvspec.lengths import Lengths
from kvspec.memory.events import Begin, Drop, Event, Map, Share, Take, Transfer, Unmap
from kvspec.model.state import WITHHELD
from kvspec.rules import Violation
from kvspec.store import PrefixStore
from tests.spec.test_hybrid import tombstones
from tests.walk import SEEDS, RandomDraw, proposals

STEPS = 120
LONGER = 300
"""A walk through a broken model ends at what it breaks, which may be long in coming."""


class Recording(Checker):
    """A checker that keeps its events."""

    def __init__(self, config: Config) -> None:
        super().__init__(pools(config))
        self.reported: list[Event] = []

    def step(self, event: Event) -> list[Finding]:
        self.reported.append(event)
        return super().step(event)


def listening(config: Config) -> tuple[Model, Recording]:
    model = Model(config, checker=Checker)
    assert model.state.memory is not None
    model.state.memory.checker = checker = Recording(config)
    return model, checker


def meaning(model: Model, checker: Recording, op: events.Event) -> list[str]:
    """The memory events of an operation, in short: their names, with their pool or the slots that they use."""
    checker.reported.clear()
    model.step(op)
    assert not [event for event in checker.reported if half_reported(event)]
    return [_short(event) for event in checker.reported]


def _short(event: Event) -> str:
    name = str(event.__struct_config__.tag)
    if isinstance(event, Begin):
        uses = [
            f"{use.pool} {use.pages}" if use.pages else f"{use.table or use.pool} {use.start}:{use.stop}"
            for use in (*event.reads, *event.writes)
        ]
        return f"{name} on {event.stream}: {', '.join(uses)}"
    if isinstance(event, Share) and event.pin:
        name = "pin"
    pool, pages = getattr(event, "pool", None), getattr(event, "pages", None)
    return " ".join(str(part) for part in (name, pool, pages) if part not in (None, []))


def test_what_the_operations_of_a_request_mean() -> None:
    model, checker = listening(Config(2, 8, 2, 16))
    for op in (events.Submit("a", [1, 2, 3]), events.MatchPrefix("a")):
        assert meaning(model, checker, op) == []
    assert meaning(model, checker, events.Extend([("a", 3)])) == [
        "take rows [0]",
        "map rows [0]",
        "map pages",
        "take pages [1, 2]",
        "map pages [1, 2]",
        "begin on forward: row 1 0:4",
    ]
    assert meaning(model, checker, events.Launch(1, ["a"])) == ["begin on forward: row 1 0:4, table 1 0:3, table 1 0:3"]
    assert meaning(model, checker, events.Complete(1, {"a": 4})) == ["end"]
    assert meaning(model, checker, events.CacheUnfinished("a")) == ["publish pages [1]"]
    assert meaning(model, checker, events.Decode(["a"])) == []
    assert meaning(model, checker, events.Launch(2, ["a"])) == ["begin on forward: row 1 0:4, table 1 0:4, table 1 3:4"]
    assert meaning(model, checker, events.Finish("a")) == [
        "publish pages [2]",
        "unmap",
        "unmap",
        "release pages [1, 2]",
        "pin rows [0]",
        "release rows [0]",
        "end_holder",
    ]
    assert meaning(model, checker, events.Complete(2, {})) == ["end", "release rows [0]"]
    assert meaning(model, checker, events.Evict(1)) == ["drop pages [2]"]
    assert meaning(model, checker, events.Report("idle")) == ["idle"]


@pytest.mark.parametrize(("pool", "last"), [("pages", 8), ("rows", 1), ("window", 6), ("sides", 1), ("states", 5)])
def test_the_pools_have_the_sizes_of_the_config(pool: str, last: int) -> None:
    config = Config(2, 8, 2, 16, sliding_window=2, num_window_pages=6, num_states=5)
    first = 0 if pool == "rows" else 1
    invented = () if pool == "sides" else (-1,)  # numbers that no answer reported
    assert Checker(pools(config)).step(Take("a", pool, [*{first, last, *invented}])) == []
    for page in (first - 1 if first else last + 1, last + 1):
        (found,) = Checker(pools(config)).step(Take("a", pool, [page]))
        assert found.rule == "MEM-TAKE"


def test_what_the_operations_of_a_session_mean() -> None:
    model, checker = listening(Config(2, 8, 2, 16))
    for op in (
        events.OpenSession("s"),
        events.Submit("a", [1, 2, 3], "s"),
        events.MatchPrefix("a"),
        events.Extend([("a", 3)]),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 4}),
    ):
        model.step(op)
    assert meaning(model, checker, events.Decode(["a"], 4)) == [
        "take pages [3, 4]",
        "map pages [3, 4]",
        "begin on forward: row 1 4:8",
    ]
    for op in (events.Launch(2, ["a"]), events.Complete(2)):
        model.step(op)
    assert meaning(model, checker, events.Finish("a")) == ["transfer"]
    model.step(events.Submit("b", [1, 2, 3, 4, 5], "s"))
    assert meaning(model, checker, events.MatchPrefix("b")) == ["unmap", "release pages [3, 4]", "transfer"]
    assert meaning(model, checker, events.Abort("b")) == ["transfer"]
    assert meaning(model, checker, events.CloseSession("s")) == [
        "unmap",
        "unmap",
        "release pages [1, 2]",
        "release rows [0]",
        "end_holder",
    ]


def test_a_launch_reads_the_row_up_to_the_page_that_it_writes() -> None:
    model, checker = listening(Config(2, 8, 2, 16))
    for op in (*prefill("a", [1, 2, 3], 1), events.Complete(1, {"a": 4})):
        model.step(op)
    for launch, row in ((2, "0:4"), (3, "0:6"), (4, "0:6"), (5, "0:8")):
        model.step(events.Decode(["a"]))
        assert meaning(model, checker, events.Launch(launch, ["a"]))[0].startswith(f"begin on forward: row 1 {row}, ")
        model.step(events.Complete(launch, {"a": 5}))


def test_what_the_operations_on_states_mean() -> None:
    model, checker = listening(Config(2, 16, 3, 16, num_states=6))
    for op in prefill("a", [1, 2, 3], 1)[:-2]:
        model.step(op)
    assert meaning(model, checker, events.Extend([("a", 3)]))[5:] == [
        "take states [1, 2, 3]",
        "begin on forward: states [1, 2, 3]",
        "begin on forward: row 1 0:4",
    ]
    assert meaning(model, checker, events.Launch(1, ["a"]))[0] == "begin on forward: states [1, 2, 3], states [1, 2, 3]"
    model.step(events.Complete(1, {"a": 4}))
    assert meaning(model, checker, events.CacheUnfinished("a")) == [
        "take states [4]",
        "begin on forward: states [4]",
        "publish states [4]",
        "release states [4]",
        "publish pages [1]",
        "pin states [4]",
    ]
    for op in (events.Finish("a"), events.Submit("b", [1, 2, 3, 4]), events.MatchPrefix("b")):
        model.step(op)
    assert meaning(model, checker, events.Extend([("b", 4)]))[-3:] == [
        "take states [1, 2, 3]",
        "begin on forward: states [4], states [1, 2, 3]",
        "begin on forward: row 2 0:2, row 2 2:4",
    ]


def test_who_reads_behind_a_window_side_that_is_gone_reads_padding() -> None:
    model, _ = listening(Config(2, 8, 3, 16, sliding_window=4, num_window_pages=8))
    *before, launch = prefill("a", [1, 2, 3], 1)
    for op in before:
        model.step(op)
    model.state.window_of.clear()
    with pytest.raises(Violation, match="MEM-USE/padding: window, page 0"):
        model.step(launch)


def test_a_holder_that_has_locked_a_prefix_pins_its_state_when_it_comes() -> None:
    model, checker = listening(Config(2, 16, 4, 16, num_states=7))
    for req, launch in (("a", 1), ("b", 2)):
        for op in (*prefill(req, [1, 2, 3], launch), events.Complete(launch, {req: 4})):
            model.step(op)
    for op in (events.Submit("c", [5]), events.MatchPrefix("c"), events.TakeState("c")):
        model.step(op)
    assert "publish states [7]" not in meaning(model, checker, events.CacheUnfinished("a")), "no slot is free"
    model.step(events.FreeState("c"))
    assert meaning(model, checker, events.CacheUnfinished("b")).count("pin states [7]") == 2


def test_a_copy_of_a_model_is_checked_on_its_own() -> None:
    model = Model(Config(2, 8, 2, 16), checker=Checker)
    for op in prefill("a", [1, 2, 3], 1):
        model.step(op)
    other = model.state.copy()
    assert model.state.memory is not None and other.memory is not None and other.memory is not model.state.memory
    checker, own = other.memory.checker, model.state.memory.checker
    assert isinstance(checker, Checker) and isinstance(own, Checker)
    before = checker.checked
    model.step(events.Complete(1, {"a": 4}))
    assert checker.checked == before != own.checked
    assert checker.state.tables.keys() == {"row 1", "table 1", *own.state.tables}


def walk(model: Model, draw: RandomDraw, *, books: bool = True, steps: int = STEPS) -> Iterator[NotedState]:
    for op in proposals(model.state, draw, steps):
        try:
            model.step(op)
        except Refusal:
            continue
        if books:
            check(model.state)
        yield model.state


def half_reported(event: Event) -> bool:
    """Whether the model, which knows all of it, leaves out what an event may leave out."""
    match event:
        case Map(holder=None) | Unmap(table=None) | Drop(keys=None):
            return True
        case Map(pool="pages"):
            return bool(event.pages) and not event.labels
        case Share(pool="states"):
            return not event.pin
        case Begin():
            uses = [*event.reads, *event.writes, *(use for pair in event.copies for use in pair)]
            return any(use.table is None and use.holder is None for use in uses)
        case Transfer():
            return (event.pool is None) != (event.pages is None)
    return False


def broken_rules(config: Config | None = None, *, books: bool = True, broken: bool = False) -> Iterator[str]:
    """Walk with the checker until a finding; the findings, for each walk that has one. A broken model may raise."""
    steps = LONGER if broken else STEPS
    for seed in SEEDS:
        draw = RandomDraw(seed)
        drawn = memory(draw)
        model, checker = listening(config or drawn)
        try:
            for _ in walk(model, draw, books=books, steps=steps):
                pass
            if not model.state.config.num_states:  # the content of states is not reported to the checker
                yield from (f"{rule} unchecked" for rules in checker.unchecked.values() for rule in rules)
            yield from (f"half reported: {event}" for event in checker.reported if half_reported(event))
        except Violation as violation:
            yield violation.rule.id
        except KeyError:
            if not broken:
                raise


@pytest.mark.slow
def test_no_step_that_conforms_breaks_the_memory_model() -> None:
    assert list(broken_rules()) == []


@pytest.mark.slow
def test_walks_reach_all_rules_of_the_memory_model() -> None:
    met: set[str] = set()
    for seed in range(60):  # one walk of them revives a tombstone
        draw = RandomDraw(seed)
        drawn = swarm(draw)
        model, checker = listening(drawn.config)
        for op in proposals(model.state, draw, STEPS, drawn):
            with suppress(Refusal):
                model.step(op)
            met |= {f"{_short(event).partition(' [')[0].partition(':')[0]}" for event in checker.reported}
            checker.reported.clear()
    for kind in ("publish", "drop", "take", "release"):
        assert {f"{kind} pages", f"{kind} window", f"{kind} states"} <= met, kind
    assert {"share pages", "share window", "pin states"} <= met
    assert {"transfer", "end", "end_holder", "unify", "unmap", "pin rows", "begin on forward"} <= met


def _resume_past_what_is_written(before: Lengths, key_len: int, page_size: int) -> Lengths:
    length = min(before.allocated, key_len)
    return Lengths(before.protected, length, length)


def _unlock_nothing(store: PrefixStore, table: list[int], length: int) -> None:
    """Take back nothing."""


def _keep_the_owner(state: NotedState, record: int, pages: list[int]) -> None:
    if state.memory is not None:
        state.memory.release_pages(record, pages, state.sides_behind(pages))


def _release_without_a_word(state: NotedState, record: int, pages: list[int]) -> None:
    state.release_pages(pages)


def _free_the_last_too(
    original: Callable[[WatchedState, int, int], None],
) -> Callable[[WatchedState, int, int], None]:
    def cut(state: WatchedState, record: int, index: int) -> None:
        original(state, record, index)
        last = state.tables[record][-1:]
        if [state.owner.get(page) for page in last] == [record]:
            state.release_private(record, last)

    return cut


BROKEN_MODELS: list[tuple[str, object, str, object, set[str]]] = [
    (
        "a resume frees the page that it goes on in",
        WatchedState,
        "cut_table",
        _free_the_last_too(WatchedState.cut_table),
        {"MEM-USE"},
    ),
    ("a resume counts what was never written", lengths, "resume", _resume_past_what_is_written, {"MEM-WRITTEN"}),
    ("a lock is not taken back", PrefixStore, "unlock", _unlock_nothing, {"MEM-COUNT"}),
    ("a freed page keeps its owner", WatchedState, "release_private", _keep_the_owner, {"MEM-COUNT"}),
    ("a page is not let go by who leaves", WatchedState, "release_private", _release_without_a_word, {"MEM-LEAK"}),
]
"""The mistake, the text and its replacement, and the rule of the memory model that is broken."""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "where", "name", "wrong", "found"), BROKEN_MODELS)
def test_a_broken_model_breaks_the_memory_model(
    what: str, where: object, name: str, wrong: object, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    monkeypatch.setattr(invariants, "CHECKS", {"PAGE-1": CHECKS["PAGE-1"]})
    rules = set[str]()
    for rule in broken_rules(Config(2, 12, 3, 12), books="MEM-COUNT" in found, broken=True):
        rules.add(rule)
        if found <= rules:
            return
    pytest.fail(f"the memory checker says {rules}")


def carried_out(writes_on: str, config: Config, operations: list[events.Event]) -> Model:
    model = Model(config, checker=Checker, writes_on=writes_on)
    for op in operations:
        model.step(op)
        check(model.state)
    return model


def prefill(req: str, tokens: list[int], launch: int) -> list[events.Event]:
    return [
        events.Submit(req, [*tokens]),
        events.MatchPrefix(req),
        events.Extend([(req, len(tokens))]),
        events.Launch(launch, [req]),
    ]


def publish_in_flight(config: Config) -> tuple[Config, list[events.Event]]:
    """Request b's duplicates of a's pages are dropped, and its row rewritten, while its decode step is in flight.

    The window side of the duplicate goes back with it.
    """
    return config, [
        *prefill("a", [1, 2, 3], 1),
        *prefill("b", [1, 2, 3], 2),
        events.Complete(1, {"a": 4}),
        events.Complete(2, {"b": 4}),
        events.CacheUnfinished("a"),
        events.Decode(["b"]),
        events.Launch(3, ["b"]),
        events.CacheUnfinished("b"),
    ]


def written(state: NotedState, pool: str, page: int) -> dict[int, str | None]:
    """Slot -> what was written there last."""
    assert state.memory is not None and isinstance(state.memory.checker, Checker)
    found = state.memory.checker.state.pools[pool].pages.get(page)
    pieces = [] if found is None else found.content
    return {slot: piece.label for piece in pieces for slot in range(piece.start, piece.stop)}


def check_written(state: NotedState) -> None:
    """Rows name the pages of their tables, and sides the window pages behind pages, or none."""
    size = state.config.page_size
    for record, held in state.records.items():
        slots = {slot: str(state.tables[record][slot // size]) for slot in range(len(state.tables[record]) * size)}
        assert {slot: written(state, "rows", held.row)[slot] for slot in slots} == slots
    if state.config.sliding_window:
        sides = {page - 1: str(side) for page, side in state.window_of.items() if page > 0}
        reported = written(state, "sides", 1)
        assert reported == dict.fromkeys(reported, "0") | sides


def test_rows_and_window_sides_hold_what_the_books_say() -> None:
    for seed in SEEDS[:12]:
        draw = RandomDraw(seed)
        model, _ = listening(memory(draw))
        for state in walk(model, draw, books=False, steps=60):
            check_written(state)
    for locked in (False, True):
        model = tombstones(locked=locked)
        for op in (events.CacheUnfinished("b"), events.Finish("b")):
            model.step(op)
            check_written(model.state)


def test_tombstones_that_give_way_are_withdrawn_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages 1 and 2 of the store give way to b's 6 and 7, which have their window sides."""
    step, reported = Checker.step, list[Event]()

    def noted(checker: Checker, event: Event) -> list[Finding]:
        reported.append(event)
        return step(checker, event)

    monkeypatch.setattr(Checker, "step", noted)
    model = tombstones()
    obs = events.PublishAnswer(8, [1, 2], [])
    model.step(events.CacheUnfinished("b", obs=obs))
    check_written(model.state)
    assert not [event for event in reported if half_reported(event)]
    assert [event.pages for event in reported if isinstance(event, Drop) and event.pool == "pages"] == [[1], [2]]


def test_of_pages_that_take_the_place_of_duplicates_all_is_reported() -> None:
    config, operations = publish_in_flight(Config(2, 8, 3, 16, sliding_window=4, num_window_pages=8))
    model, checker = listening(config)
    for op in operations:
        model.step(op)
    assert [event.pages for event in checker.reported if isinstance(event, Map) and event.table == "table 2"][-1] == [1]
    assert not [event for event in checker.reported if half_reported(event)]


def row_handed_on() -> tuple[Config, list[events.Event]]:
    """A request is retracted in flight, and another one is given a row."""
    return Config(2, 8, 2, 16), [
        *prefill("a", [1, 2, 3], 1),
        events.Retract("a"),
        *prefill("b", [5, 6, 7], 2),
    ]


@pytest.mark.parametrize(
    ("config", "race"),
    [
        (Config(2, 8, 3, 16), "rows, page 1"),
        (Config(2, 8, 3, 16, sliding_window=4, num_window_pages=8), "sides, page 1"),
    ],
)
def test_what_is_rewritten_under_a_launch_is_safe_on_one_stream_only(config: Config, race: str) -> None:
    carried_out("forward", *publish_in_flight(config))
    with pytest.raises(Violation, match=rf"MEM-RACE/write: {race}") as found:
        carried_out("host", *publish_in_flight(config))
    assert isinstance(found.value.observed, Begin) and found.value.observed.stream == "host"


def test_a_withheld_row_is_never_rewritten_under_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried_out("host", *row_handed_on()).state.rows == {0: WITHHELD, 1: 2}

    def hand_on_at_once(state: WatchedState, record: int) -> None:
        readers, state.readers = state.readers, {}
        forget_record(state, record)
        state.readers = readers

    forget_record = WatchedState.forget_record
    monkeypatch.setattr(WatchedState, "forget_record", hand_on_at_once)
    monkeypatch.setattr(ownership, "allocate", lambda owner, readers, record: record)  # its contract says it first
    monkeypatch.setattr(invariants, "CHECKS", {"PAGE-1": CHECKS["PAGE-1"]})
    carried_out("forward", *row_handed_on())
    with pytest.raises(
        Violation,
        match=r"MEM-RACE/write: rows, page 0",
    ):
        carried_out("host", *row_handed_on())


@pytest.mark.parametrize(("rows_read", "writes_on"), [("at_launch", "host"), ("in_order", "forward")])
def test_a_row_that_is_copied_or_written_in_order_may_be_handed_on_at_once(rows_read: RowsRead, writes_on: str) -> None:
    config, operations = row_handed_on()
    config = msgspec.structs.replace(config, rows_read=rows_read, num_rows=1)
    model = carried_out(writes_on, config, operations)
    assert model.state.rows == {0: 2}
    assert model.state.chosen["row not withheld"] == 1


def test_rows_that_are_written_from_the_host_are_not_in_order() -> None:
    config, operations = row_handed_on()
    with pytest.raises(Violation, match=r"MEM-RACE/write: rows, page 0"):
        carried_out("host", msgspec.structs.replace(config, rows_read="in_order", num_rows=1), operations)
