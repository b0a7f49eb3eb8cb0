"""Hybrid pools: window sides behind pages (20070), and matches that end where a request can go on."""

from itertools import takewhile

from kvspec.events import Refusal, SwaEvict
from kvspec.model.answer import ObservedAnswer
from kvspec.model.records import Request
from kvspec.model.state import State
from kvspec.rules import Violation
from kvspec.tokens import Tokens
from kvspec.window import evictable_until, left_behind


def longest_match(state: State, tokens: Tokens) -> tuple[int, str]:
    """The longest cached prefix of all tokens but the last from which a request can go on, in pages.

    The second value is the rule that says why it is not longer.

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
        return best, "STORE-4"
    return best, "SWA-4" if windowed else "MAMBA-3"


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
    """How far the cursor of a running request may move on, in tokens; it never goes back (rule SWA-2).

    No later step of it, or of its session's next turn, computes a position before `position`. A retracted turn resumes
    after the written ones of its tokens, but always recomputes its last token.
    """
    protected, committed, _ = state.lengths[record]
    position = min(committed, state.written[record], len(request.tokens) - 1)
    bound = evictable_until(position, state.config.sliding_window, state.config.page_size)
    return max(protected, state.cursor[record], bound)


def swa_evict(state: State, op: SwaEvict, answer: ObservedAnswer) -> None:
    """Give back the window sides that no later step reads: the cursor moves on, by whole pages (20070).

    [max(protected, cursor), until)   private: lose their window side, keep their page
    [until, ceil(allocated))          stay whole
    """
    request, record = state.running(op.req)
    if not state.config.sliding_window:
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


def evictable_windows(state: State) -> list[int]:
    """The window pages of the store that no window lock covers."""
    return [
        state.window_of[page]
        for page in state.store.pages.values()
        if page in state.window_of and page not in state.store.window_pins
    ]
