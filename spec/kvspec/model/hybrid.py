"""Hybrid pools: window sides behind pages (20070), and matches that end where a request can go on."""

from itertools import takewhile
from typing import NamedTuple

from kvspec.events import Abort, Evict, Refusal, SwaEvict
from kvspec.model.answer import ObservedAnswer
from kvspec.model.records import Request
from kvspec.model.state import State
from kvspec.rules import Violation
from kvspec.tokens import PrefixKey, Tokens
from kvspec.window import evictable_until, left_behind


class Match(NamedTuple):
    """The match of a request in the prefix store."""

    pages: int
    """The longest cached prefix from which it can go on, in pages."""
    rule: str
    """The rule that says why it is not longer."""


def longest_match(state: State, tokens: Tokens) -> Match:
    """The longest cached prefix of all tokens but the last from which a request can go on.

    With a sliding window, the window sides of its last pages must be live as far as the window reaches (rule SWA-4);
    with recurrent states, the state after it must be cached (rule MAMBA-3).
    """
    pages, states, window_of = state.store.pages, state.store.states, state.window_of
    windowed, has_states = bool(state.config.sliding_window), bool(state.config.num_states)
    cached = [*takewhile(pages.__contains__, map(tokens.key, range((len(tokens) - 1) // state.config.page_size)))]
    best = walked = 0 if state.config.hybrid else len(cached)
    tombstone = -state.store.reach  # the number of pages up to the last one without a window side
    for walked, key in enumerate(cached if state.config.hybrid else (), start=1):
        if windowed and pages[key] not in window_of:
            tombstone = walked
        elif walked - tombstone >= state.store.reach and (not has_states or key in states):
            best = walked
    if best == walked:
        return Match(best, "STORE-4")
    return Match(best, "SWA-4" if windowed else "MAMBA-3")


def is_match(state: State, tokens: Tokens, pages: int) -> bool:
    """Whether a request may still go on from a prefix of `pages` that it matched."""
    if not pages:
        return True
    key = tokens.key(pages - 1)
    if key not in state.store.pages or (state.config.num_states and key not in state.store.states):
        return False
    return not state.config.sliding_window or all(
        state.store.pages[inside] in state.window_of for inside in state.store.in_reach(key)
    )


def furthest_cursor(state: State, request: Request, record: int) -> int:
    """How far the cursor of a running request may move on, in tokens; it never goes back (rule SWA-2)."""
    cursor = max(state.lengths[record].protected, state.cursor[record])
    bound = evictable_until(state.next_position(request, record), state.config.sliding_window, state.config.page_size)
    return max(cursor, bound)


def swa_evict(state: State, op: SwaEvict, answer: ObservedAnswer) -> None:
    """Give back the window sides that no later step reads: the cursor moves on, by whole pages (20070).

    [max(protected, cursor), until)   private: lose their window side, keep their page
    [until, ceil(allocated))          stay whole
    """
    request, record = state.running(op.req)
    config = state.config
    if not config.sliding_window:
        raise Refusal("OP-1", "there is no sliding window")
    answer.carried_out()
    until = answer.choice("evicted_len", furthest_cursor(state, request, record))
    pages = left_by(state, op.req, record, until)
    answer.freed("window", "SWA-3", state.window_sides(pages))
    answer.length("evicted_len", "SWA-2", until)
    state.leave_behind(record, until, pages)


def left_by(state: State, req: str, record: int, until: int) -> list[int]:
    """The pages that lose their window side when the cursor moves on to `until`, which must be a place for it."""
    held, page_size = state.lengths[record], state.config.page_size
    cursor, furthest = max(held.protected, state.cursor[record]), furthest_cursor(state, state.requests[req], record)
    if until % page_size or not cursor <= until <= furthest:
        what, due = f"the window of {req} was evicted up to {until}", f"a page border in {cursor}..{furthest}"
        raise Violation("SWA-2", what, expected=due, observed=until, part="swa_evicted_len")
    return [state.tables[record][index] for index in left_behind(held, cursor, until, page_size)]


def release_waiting(state: State, op: Abort, answer: ObservedAnswer, rule: str, kept: list[int]) -> None:
    """A request leaves that holds no row of its own: all that may go back is a state slot (17850).

    `kept` are the private pages that its session keeps, by `rule`.
    """
    slot = state.requests[op.req].state
    answer.let_go([], rule, states=() if slot is None else (slot,), staying=dict.fromkeys(kept, rule))
    if slot is not None:
        del state.state_owner[slot]


def check_eviction(state: State, op: Evict) -> None:
    """Refuse an eviction that asks for nothing, or for what there is no pool of."""
    if min(op.n, op.window, op.states) < 0 or op.n + op.window + op.states < 1:
        raise Refusal("OP-1", f"n is {op.n}, window {op.window}, states {op.states}")
    if op.window and not state.config.sliding_window:
        raise Refusal("OP-1", "there is no sliding window")
    if op.states and not state.config.num_states:
        raise Refusal("OP-1", "there are no recurrent states")


def evictable_windows(state: State) -> list[int]:
    """The window pages of the store that no window lock covers."""
    return [
        state.window_of[page]
        for page in state.store.pages.values()
        if page in state.window_of and page not in state.store.window_pins
    ]


def evict_windows(state: State, op: Evict, answer: ObservedAnswer, keys: dict[PrefixKey, int]) -> None:
    """Check the window sides that leave the store, those of the pages `keys` among them, and remove them."""
    leaving = state.window_sides(keys.values())
    state.drop_sides(answer.left("window", "SWA-5", op.window, leaving, evictable_windows(state)))
