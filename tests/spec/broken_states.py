"""Sound states, and each broken in every way that a whole-state check must notice."""

from collections.abc import Callable
from typing import Any

from kvcheck import Checker
from kvconform.oracle import Model, NotedState
from kvspec import events
from kvspec.events import Config
from kvspec.invariants import check
from kvspec.lengths import Lengths
from kvspec.model.state import WITHHELD, State
from kvspec.store import ROOT
from kvspec.tokens import PrefixKey, Tokens


def busy_state() -> NotedState:
    """Request a runs with a launch in flight, slot s is idle, slot u is lent to request w; P = 2."""
    model = Model(Config(2, 20, 4, 16), checker=Checker)
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


def windowed_state() -> NotedState:
    """P = 2, window of 2: request a runs with its first page's window side gone; request b goes on from a prefix."""
    model = Model(Config(2, 20, 4, 32, sliding_window=2, num_window_pages=10), checker=Checker)
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


def state_with_states() -> NotedState:
    """P = 2: request b runs from a prefix whose state the store has; request w waits with a state slot."""
    model = Model(Config(2, 20, 4, 32, num_states=8), checker=Checker)
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
    path = state.store.path(state.records[record_of(state, "w")].locked)
    state.store.unlock(path, len(path))


def hole_in_the_store(state: State) -> None:
    key = state.records[record_of(state, "w")].locked
    state.store.parents[state.store.pages[key]] = b"unknown"


def two_mid_prefill(state: State) -> None:
    state.mid_prefill |= {"a", "w"}
    state.requests["w"] = state.requests["w"]._replace(running=True)


def wrong_table(state: State) -> None:
    state.tables[record_of(state, "a")].append(19)


def row_changes_hands(state: State) -> None:
    state.flights[2][0] = state.flights[2][0]._replace(row=state.records[record_of(state, "w")].row)
    state.readers = {state.flights[2][0].row: (3,)}


def row_without_a_holder(state: State) -> None:
    state.rows[3] = 77


def withheld_without_a_request(state: State) -> None:
    state.rows[3] = WITHHELD


def figures_do_not_add_up(state: State) -> None:
    state.owner = {page: owner for page, owner in state.owner.items() if page != state.tables[record_of(state, "a")][0]}


def other_history(state: State) -> None:
    state.sessions["u"] = state.sessions["u"]._replace(history=Tokens(2, [5]))


def short_history(state: State) -> None:
    state.sessions["s"] = state.sessions["s"]._replace(history=Tokens(2, [ord("s"), 1]))


def let_go_of(state: State, req: str) -> None:
    state.requests[req] = state.requests[req]._replace(record=None)


def change_record(state: State, req: str, record: int) -> None:
    state.requests[req] = state.requests[req]._replace(record=record)


def change_session(state: State, name: str, **changes: Any) -> None:
    state.sessions[name] = state.sessions[name]._replace(**changes)


def marked_for_another(state: State) -> None:
    state.rows[state.records[record_of(state, "a")].row] = record_of(state, "w")


def two_rows_of_one(state: State) -> None:
    state.rows[3] = record_of(state, "a")


def more_rows_than_there_are(state: State) -> None:
    for row in (3, 4):
        state.rows[row] = WITHHELD
        state.readers[row] = (1,)


def twice_in_the_store(state: State) -> None:
    state.store.insert(ROOT, [b"other"], [state.store.pages[state.requests["w"].tokens.key(0)]])


def change_page(state: State, key: PrefixKey, page: int) -> None:
    state.store.pins[page] = state.store.pins.pop(state.store.pages[key])
    state.store.pages[key] = page


def page_of_the_store(state: State, page: int) -> None:
    """The first page of w's prefix becomes `page`."""
    key = state.requests["w"].tokens.key(0)
    del state.owner[state.store.pages[key]]
    change_page(state, key, page)
    state.owner[page] = key


def private_page_in_the_store(state: State) -> None:
    change_page(state, state.requests["w"].tokens.key(0), state.tables[record_of(state, "a")][0])


def other_protected_pages(state: State) -> None:
    state.tables[record_of(state, "w")][0] = 13


def protected_but_not_locked(state: State) -> None:
    change_lengths(state, "w", Lengths(2, 5, 5))


def lock_of_another(state: State) -> None:
    one, other = record_of(state, "w"), state.sessions["s"].record
    assert other is not None
    state.records[one] = state.records[one]._replace(locked=state.records[other].locked)
    state.tables[one][:2] = state.tables[other][:2]


def miscounted_children(state: State) -> None:
    state.store.children[state.requests["w"].tokens.key(0)] = 2


def cached_prefix_is_gone(state: State) -> None:
    del state.store.pages[state.requests["w"].tokens.key(1)]


def locked_without_a_holder(state: State) -> None:
    state.store.insert(ROOT, [b"new"], [17])
    state.store.lock([17], 1)


def more_rows_than_are_counted(state: State) -> None:
    state.rows[3] = 77


def miscounted_readers(state: State) -> None:
    state.readers[state.records[record_of(state, "a")].row] += (9,)


BROKEN: list[tuple[str, Callable[[State], object]]] = [
    ("MEM-COUNT/total: rows", row_without_a_holder),
    ("MEM-COUNT/total: rows", two_rows_of_one),
    ("MEM-COUNT/total: rows", withheld_without_a_request),
    ("MEM-COUNT/references: pages, page 4", lend_twice),
    ("MEM-COUNT/references: pages, page 7", lambda state: let_go_of(state, "a")),
    ("ROW-1: the row of request a is gone", lambda state: change_record(state, "a", 77)),
    ("ROW-1: row 2 is not marked as its holder's", marked_for_another),
    ("ROW-1: the row of session u is gone", lend_another),
    ("MEM-COUNT/total: rows", more_rows_than_there_are),
    ("ROW-3: request w brings a row without committed KV", lambda state: change_lengths(state, "w", Lengths(0, 0, 5))),
    (
        "LEN-1: the lengths of request a (expected None, observed Lengths(protected=-2, committed=3, allocated=3))",
        lambda state: change_lengths(state, "a", Lengths(-2, 3, 3)),
    ),
    (
        "LEN-1: the lengths of request a (expected None, observed Lengths(protected=4, committed=3, allocated=5))",
        lambda state: change_lengths(state, "a", Lengths(4, 3, 5)),
    ),
    (
        "LEN-1: the lengths of request a (expected None, observed Lengths(protected=0, committed=4, allocated=3))",
        lambda state: change_lengths(state, "a", Lengths(0, 4, 3)),
    ),
    (
        "LEN-1: the lengths of request a (expected None, observed Lengths(protected=0, committed=3, allocated=17))",
        lambda state: change_lengths(state, "a", Lengths(0, 3, 17)),
    ),
    (
        "LEN-2: the protected length of request a (expected None, observed 1)",
        lambda state: change_lengths(state, "a", Lengths(1, 3, 3)),
    ),
    ("LEN-3: session s could not be resumed (expected None, observed 4)", short_history),
    (
        "LEN-3: session s could not be resumed (expected None, observed 4)",
        lambda state: change_session(state, "s", history=Tokens(2, [ord("s"), 1, 2, 3])),
    ),
    ("MEM-COUNT/references: pages, page 6", share_a_page),
    ("MEM-COUNT/total: pages", orphan_a_page),
    ("MEM-COUNT/missing: pages, page 7", figures_do_not_add_up),
    ("MEM-NAME: pages: other prefixes are cached", private_page_in_the_store),
    ("MEM-NAME: pages: other prefixes are cached", twice_in_the_store),
    (
        "MEM-NAME: pages: other prefixes are cached",
        lambda state: page_of_the_store(state, 0),
    ),
    (
        "MEM-NAME: pages: other prefixes are cached",
        lambda state: page_of_the_store(state, 21),
    ),
    ("PAGE-2: the block table of request a has 3 pages (expected 3, observed None)", wrong_table),
    ("PAGE-2: the protected pages of request w (expected [4, 5], observed [13, 5])", other_protected_pages),
    ("PAGE-2: the protected pages of request w (expected [4, 5], observed [4, 5])", protected_but_not_locked),
    ("PAGE-2: request w has locked a prefix that is not its own", lock_of_another),
    ("TAIL-1: request w (expected 5, observed 6)", lambda state: change_lengths(state, "w", Lengths(4, 5, 6))),
    ("TAIL-1: request w (expected 5, observed 4)", lambda state: change_lengths(state, "w", Lengths(4, 4, 4))),
    ("STORE-1: page 5 is cached behind a hole", hole_in_the_store),
    (
        "STORE-1: the numbers of longer prefixes are wrong (expected Counter({b'': 2, #: 1, #: 1}), observed None)",
        miscounted_children,
    ),
    (
        "MEM-COUNT/listed: pages, page 4",
        forget_a_lock,
    ),
    ("STORE-2: a prefix is locked that is gone", cached_prefix_is_gone),
    (
        "MEM-NAME: pages: other prefixes are cached",
        locked_without_a_holder,
    ),
    ("SESS-1: session s has 0 turns in flight", lambda state: change_session(state, "s", turn="a")),
    ("SESS-1: session u has 1 turns in flight", lambda state: change_session(state, "u", turn=None)),
    ("SESS-1: a turn has lost its session", lambda state: state.sessions.pop("u")),
    ("SESS-3: request w and session u both hold KV", lend_another),
    ("SESS-6: request w does not continue session u", other_history),
    ("BATCH-2: requests are in the middle of their prefill (expected None, observed ['a', 'w'])", two_mid_prefill),
    (
        "BATCH-2: requests are in the middle of their prefill (expected None, observed ['w'])",
        lambda state: state.mid_prefill.add("w"),
    ),
    ("ACC-1: the tokens do not add up (expected 40, observed 42)", figures_do_not_add_up),
    ("ACC-1: the rows do not add up (expected 4, observed 3)", more_rows_than_are_counted),
    ("RACE-1: row 1 has changed hands under the launch for a", row_changes_hands),
    ("RACE-1: the readers of rows are not the launches in flight", miscounted_readers),
]
"""The finding, word for word, and how the state comes to be broken; `#` stands for the name of a prefix."""
