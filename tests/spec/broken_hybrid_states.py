"""The same for states with a second pool: a sliding window, or recurrent states."""

from collections.abc import Callable

from kvspec.lengths import Lengths
from kvspec.model.state import State
from kvspec.tokens import Tokens
from tests.spec.broken_states import busy_state, change_lengths, record_of, state_with_states, windowed_state


def side_before_the_cursor(state: State) -> None:
    page = state.tables[record_of(state, "a")][0]
    state.window_of[page], state.window_owner[10] = 10, page


def side_of(state: State, page: int, window_page: int) -> None:
    """The page gets another window side, or one that it must not have."""
    state.release_window(page)
    state.window_of[page], state.window_owner[window_page] = window_page, page


def side_of_two_pages(state: State) -> None:
    page, other = state.tables[record_of(state, "b")][-2:]
    state.window_of[page] = state.window_of[other]


def private_side(state: State, req: str, index: int) -> None:
    state.release_window(state.tables[record_of(state, req)][index])


def slots_of(state: State, req: str, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    record = record_of(state, req)
    state.records[record] = state.records[record]._replace(states=change(state.records[record].states))


def early_slot(state: State, req: str, slot: int | None) -> None:
    state.requests[req] = state.requests[req]._replace(state=slot)


def early_slot_while_running(state: State) -> None:
    early_slot(state, "w", 8)
    state.requests["w"] = state.requests["w"]._replace(running=True)


def other_slot(state: State, slot: int) -> None:
    """Request w has another slot than the one that it took."""
    del state.state_owner[state.requests["w"].state or 0]
    early_slot(state, "w", slot)
    state.state_owner[slot] = "w"


def state_of_nothing(state: State) -> None:
    state.store.states[b"nothing"] = 8


HYBRID: list[tuple[str, Callable[[], State], Callable[[State], object]]] = [
    (
        "MEM-COUNT/total: window",
        windowed_state,
        lambda state: side_of(state, 19, 10),
    ),
    (
        "MEM-NAME: window: other prefixes are cached",
        windowed_state,
        side_of_two_pages,
    ),
    (
        "MEM-COUNT/missing: window, page 6",
        windowed_state,
        lambda state: state.window_owner.pop(6),
    ),
    (
        "MEM-NAME: window: other prefixes are cached",
        windowed_state,
        lambda state: side_of(state, 1, 0),
    ),
    (
        "MEM-NAME: window: other prefixes are cached",
        windowed_state,
        lambda state: side_of(state, 1, 11),
    ),
    (
        "SWA-2: request b would read pages without a window side (expected None, observed [2])",
        windowed_state,
        lambda state: private_side(state, "b", 1),
    ),
    (
        "SWA-2: request b would read pages without a window side (expected None, observed [6])",
        windowed_state,
        lambda state: private_side(state, "b", 2),
    ),
    (
        "SWA-2: request a would read pages without a window side (expected None, observed [3])",
        windowed_state,
        lambda state: change_lengths(state, "a", Lengths(0, 3, 6)),
    ),
    (
        "SWA-2: request a would read pages without a window side (expected None, observed [3])",
        windowed_state,
        lambda state: state.written.update({record_of(state, "a"): 3}),
    ),
    (
        "SWA-2: request a would read pages without a window side (expected None, observed [3])",
        windowed_state,
        lambda state: state.requests.update(a=state.requests["a"]._replace(tokens=Tokens(2, [1, 2, 3, 4]))),
    ),
    (
        "SWA-3: the window side of page 3 of request a, whose cursor is 2",
        windowed_state,
        side_before_the_cursor,
    ),
    (
        "SWA-3: the window side of page 4 of request a, whose cursor is 2",
        windowed_state,
        lambda state: private_side(state, "a", 1),
    ),
    (
        "SWA-3: the window side of page 6 of request b, whose cursor is 0",
        windowed_state,
        lambda state: private_side(state, "b", 2),
    ),
    (
        "MEM-COUNT/listed: window, page 2",
        windowed_state,
        lambda state: state.store.window_pins.clear(),
    ),
    (
        "STORE-2: a prefix is locked that is gone",
        windowed_state,
        lambda state: state.store.window_pins.update({99: 1}),
    ),
    (
        "ACC-2: the tokens of the window pool do not add up (expected 20, observed 22)",
        windowed_state,
        lambda state: private_side(state, "b", -1),
    ),
    (
        "MEM-COUNT/references: states, page 4",
        state_with_states,
        lambda state: early_slot(state, "w", 4),
    ),
    (
        "MEM-COUNT/total: states",
        state_with_states,
        lambda state: state.state_owner.update({8: "w"}),
    ),
    (
        "MEM-COUNT/references: states, page 5",
        state_with_states,
        lambda state: early_slot(state, "w", None),
    ),
    (
        "MEM-COUNT/references: states, page 0",
        state_with_states,
        lambda state: other_slot(state, 0),
    ),
    (
        "MEM-COUNT/references: states, page 9",
        state_with_states,
        lambda state: other_slot(state, 9),
    ),
    (
        "MAMBA-2: the state slots of request b (expected 3, observed (1, 3))",
        state_with_states,
        lambda state: slots_of(state, "b", lambda slots: slots[:2]),
    ),
    (
        "MAMBA-2: the state slots of request a (expected 0, observed (1,))",
        busy_state,
        lambda state: slots_of(state, "a", lambda _: (1,)),
    ),
    (
        "MAMBA-2: request b has a state slot beside those of its row",
        state_with_states,
        lambda state: early_slot(state, "b", 8),
    ),
    ("MAMBA-2: request w has a state slot beside those of its row", state_with_states, early_slot_while_running),
    ("MAMBA-4: the store keeps the state of a prefix that it does not hold", state_with_states, state_of_nothing),
    (
        "MEM-COUNT/listed: states, page 2",
        state_with_states,
        lambda state: state.store.state_pins.clear(),
    ),
    (
        "STORE-2: a prefix is locked that is gone",
        windowed_state,
        lambda state: state.store.state_pins.update({99: 1}),
    ),
    (
        "ACC-3: the state slots do not add up (expected 8, observed 7)",
        state_with_states,
        lambda state: slots_of(state, "b", lambda slots: slots[:2]),
    ),
]
"""The same for states with a sliding window or with recurrent states; figures are cut off."""
