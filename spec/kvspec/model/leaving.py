"""Operations by which memory moves to the prefix store, to a session slot, or back to the free pages."""

from collections.abc import Collection

from kvspec import lengths, ownership
from kvspec.events import Abort, CacheUnfinished, CloseSession, Evict, Finish, Preempt, Refusal, Retract
from kvspec.model import hybrid, recurrent
from kvspec.model.answer import ObservedAnswer
from kvspec.model.records import Request
from kvspec.model.state import State
from kvspec.pages import Runs, beginning, floor_align
from kvspec.rules import Violation
from kvspec.store import Publication


def plan_publication(
    state: State, request: Request, record: int, length: int, freed: Runs | None = None
) -> Publication:
    """Publish the whole pages of the first `length` tokens.

    [0, protected)               the store's already
    [protected, known)           the store has these pages too: the holder's are duplicates
    [known, floor(length))       go to the store
    [floor(length), ceil(alloc)) stay private

    A tombstone is revived by a duplicate that still has its window side (rule SWA-6): the side moves behind the store's
    page, or the store takes the holder's page and frees its own, if that has no lock. `freed` are the pages that an
    implementation freed: they decide which.
    """
    page_size, table = state.config.page_size, state.tables[record]
    first, last = state.lengths[record].protected // page_size, length // page_size
    duplicates, shared, revived, exchanged = [], [], [], []
    let_go = set(beginning(freed, len(state.owner) + 1)) if freed and state.config.sliding_window else set()
    pages, windowed = state.store.pages, bool(state.config.sliding_window)
    keys = request.tokens.keys(first, last)
    for index, key in enumerate(keys, start=first):
        page, known = table[index], pages.get(key)
        if known is None:  # nor has the store any longer prefix
            break
        duplicates.append(page)
        if windowed and page in state.window_of and known not in state.window_of:
            if known in let_go and known not in state.store.pins:
                exchanged.append((key, page))
                shared.append(page)
                continue
            revived.append((known, page))
        shared.append(known)
    inserted = table[first + len(shared) : last]
    if inserted:
        written = state.written[record]
        if last * page_size > written:
            page = table[max(first + len(shared), written // page_size)]
            what = f"page {page} is published, but does not hold its tokens"
            raise Violation("DATA-1", what, expected=f"{last * page_size} positions written", observed=written)
    until = max(first * page_size, floor_align(length, page_size))
    return Publication(until, duplicates, shared, keys, inserted, revived, exchanged)


def cache_unfinished(state: State, op: CacheUnfinished, answer: ObservedAnswer) -> None:
    """Publish what the last extend wrote. A session turn publishes only at the end of a first turn (20476)."""
    request, record = state.running(op.req)
    if op.req in state.prepared:
        raise Refusal("LAUNCH-1", f"what {op.req} has prepared is not launched yet")
    mid_prefill = op.req in state.mid_prefill
    if op.chunked != mid_prefill:
        raise Refusal("CHUNK-1", f"chunked is {op.chunked}, but {op.req} has {request.seq_len}/{len(request.tokens)}")
    if not mid_prefill and len(request.tokens) == request.seq_len:
        raise Refusal("CHUNK-1", f"the token that follows the prompt of {op.req} is not sampled yet")
    answer.carried_out()

    waits_for_last = op.chunked and state.config.first_turn_chunks == "private"
    keeps_out = not state.config.prefix_cache or (request.session is not None and (request.resumed or waits_for_last))
    protected = state.lengths[record].protected
    # A chunk MAY be left to a later publication, which covers it too.
    puts_off = op.obs is not None and op.obs.protected_len == protected and op.obs.state_taken is None
    waits = puts_off and op.chunked and not keeps_out and request.seq_len - protected >= state.config.page_size
    limit = protected if keeps_out or waits else request.seq_len
    left = _leave_window(state, op, record, limit)
    plan = plan_publication(state, request, record, limit, op.obs.freed if op.obs else None)
    tombstones, own, sides = state.freed_by(plan)
    key = None if keeps_out or waits else recurrent.state_to_publish(state, request, record, plan.length)
    answer.length("protected_len", "SESS-6" if keeps_out and state.config.prefix_cache else "STORE-5", plan.length)
    if plan.revived:
        answer.revived(plan.revived)
    of_others = dict.fromkeys([*state.tables[record], *plan.shared], "STORE-5")
    answer.freed("pages", "STORE-5", tombstones + own, of_others)
    answer.freed("window", "SWA-1", left + sides)
    recurrent.publish_copy(state, op, answer, record, key if state.free_states else None, plan.length)
    state.publish(record, plan)


def _leave_window(state: State, op: CacheUnfinished, record: int, limit: int) -> list[int]:
    """The window pages that are freed because an implementation moves the cursor as it publishes, which it MAY.

    Positions before the new cursor and before `limit` are published with their window side or without, as the answer
    says.
    """
    until = None if op.obs is None else op.obs.evicted_len
    if op.obs is None or until is None or not state.config.sliding_window:
        return []
    pages = hybrid.left_by(state, op.req, record, until)
    if op.obs.window_freed is not None:
        gone = set(beginning(op.obs.window_freed, state.config.num_window_pages + 1))
        published = set(state.tables[record][: limit // state.config.page_size])
        pages = [page for page in pages if page not in published or state.window_of[page] in gone]
    sides = state.window_sides(pages)
    state.leave_behind(record, until, pages)
    return sides


def finish(state: State, op: Finish, answer: ObservedAnswer) -> None:
    """The request is complete. Plain: publish, then release. Session turn: the slot takes the record (22862)."""
    request, record = state.running(op.req)
    if op.req in state.mid_prefill:
        raise Refusal("OP-1", f"{op.req} is in the middle of its prefill")
    if op.req in state.prepared:
        raise Refusal("LAUNCH-1", f"what {op.req} has prepared is not launched yet")
    answer.carried_out()
    if request.session is not None:
        _finish_turn(state, op, answer, request, record)
    else:
        _finish_plain(state, op, answer, request, record)
    state.drop_prepared(op.req)
    del state.requests[op.req]


def _finish_plain(state: State, op: Finish, answer: ObservedAnswer, request: Request, record: int) -> None:
    """Publish the whole committed pages of the returned tokens, or of all accepted ones, and free the rest (994).

    [0, protected)               the store's: unlocked
    [protected, floor)           published: to the store, duplicates freed
    [floor, ceil(allocated))     freed
    """
    beyond = state.lengths[record].committed - len(request.tokens)
    if beyond > 0 and state.config.overshoot == "published":
        request = request._replace(tokens=request.tokens.copy())
        # The ids of tokens past the stop are unknown.
        request.tokens.extend(-(request.run << 32) - number for number in range(1, beyond + 1))
    committed = min(state.lengths[record].committed, len(request.tokens))
    limit = committed if state.config.prefix_cache else state.lengths[record].protected
    plan = plan_publication(state, request, record, limit, op.obs.freed if op.obs else None)
    rest = state.tables[record][plan.length // state.config.page_size :]
    tombstones, own, sides = state.freed_by(plan)
    key = recurrent.state_to_publish(state, request, record, plan.length)
    if plan.revived:
        answer.revived(plan.revived)
    answer.freed("pages", "PAGE-1", tombstones + own + rest, dict.fromkeys(plan.inserted, "STORE-5"))
    answer.freed("window", "SWA-3", sides + state.window_sides(rest))
    recurrent.publish_own(state, op, answer, record, key, plan.length)
    state.publish(record, plan)
    state.forget_record(record)


def _finish_turn(state: State, op: Finish, answer: ObservedAnswer, request: Request, record: int) -> None:
    """Hand the record to the slot, or release it if the session is closing."""
    assert request.session is not None
    session = state.sessions[request.session]
    if session.closing:
        _, unpublished = _whole_pages(state, request, record)
        _release(state, answer, record, "SESS-4", unpublished)
        del state.sessions[request.session]
        return
    _hand_to_slot(state, op, answer, request, record)
    lease = ownership.save(ownership.Lease(session.record or 0, record))
    state.sessions[request.session] = session._replace(record=lease.slot, turn=None, history=request.tokens)


def _hand_to_slot(state: State, op: Finish | Retract, answer: ObservedAnswer, request: Request, record: int) -> None:
    """Cut the record to what is written of the returned tokens, for a slot to keep.

    [0, committed)               stays
    [committed, ceil(tokens))    stays: the next match decides where it writes
    [ceil(tokens), ceil(alloc))  over-allocated: freed here, or left to the next match (TAIL-1); both are allowed
    """
    returned, page_size = len(request.tokens), state.config.page_size
    before = state.lengths[record]
    duplicates, _ = _whole_pages(state, request, record) if op.obs is not None and op.obs.freed else ((), ())
    staying = dict.fromkeys(duplicates, "SESS-6")
    if state.sessions[request.session or ""].closing:
        staying = dict.fromkeys(state.private(record), "SESS-4")
    trimmed = lengths.trim(before, min(returned, state.written[record]), page_size)
    if op.obs is not None and op.obs.freed and returned < before.allocated:
        tail = lengths.tail(returned, before.allocated, page_size)
        answer.let_go(state.tables[record][tail.start : tail.stop], "PAGE-1", staying=staying)
        state.cut_table(record, tail.start)
        state.lengths[record] = lengths.shrink(trimmed, returned, page_size)
    else:
        answer.let_go([], "PAGE-1", staying=staying)
        state.lengths[record] = trimmed


def _whole_pages(state: State, request: Request, record: int) -> tuple[list[int], list[int]]:
    """A turn's pages that a publication would take: those that the store has already, and the others (SESS-6)."""
    page_size, (protected, committed, _) = state.config.page_size, state.lengths[record]
    first, last = protected // page_size, min(committed, len(request.tokens)) // page_size
    pages = zip(request.tokens.keys(first, last), state.tables[record][first:last], strict=True)
    duplicates = [page for key, page in pages if key in state.store.pages]
    return duplicates, state.tables[record][first + len(duplicates) : last]


def _release(
    state: State, answer: ObservedAnswer, record: int | None, rule: str, unpublished: Collection[int] = ()
) -> None:
    """Release all that a record has; `rule` is what a page left behind breaks. Its holder must forget it.

    [0, protected)               the store's: unlocked
    [protected, ceil(allocated)) freed, with the window sides that the cursor has left
    the state slots              freed
    """
    freed, states = ([], ()) if record is None else (state.private(record), state.records[record].states)
    answer.let_go(freed, rule, window_rule="SWA-3", states=states, unpublished=unpublished)
    if record is not None:
        state.forget_record(record)


def retract(state: State, op: Retract, answer: ObservedAnswer) -> None:
    """Take a running request's memory away; it waits again with its tokens (994, 22862)."""
    request, record = state.running(op.req)
    answer.carried_out()
    if request.session is not None:
        _hand_to_slot(state, op, answer, request, record)
        session = state.sessions[request.session]
        lease = ownership.save(ownership.Lease(session.record or 0, record))
        state.sessions[request.session] = session._replace(record=lease.slot)
    else:
        _release(state, answer, record, "PAGE-1")
    state.drop_prepared(op.req)
    state.requests[op.req] = request._replace(running=False, record=None, prefix_len=None, resumed=False)


def abort(state: State, op: Abort, answer: ObservedAnswer) -> None:
    """The request leaves without a result. If a turn has run, its session's KV is freed with it (22862)."""
    request = state.request(op.req)
    answer.carried_out()
    session = None if request.session is None else state.sessions[request.session]
    record = request.record
    if session is not None and record is None:
        record = session.record
    doomed = request.run > 0 or (session is not None and session.closing)
    rule = "PAGE-1" if session is None else "SESS-5"
    if doomed and record is not None:
        _release(state, answer, record, rule)
        record = None
    else:
        staying = {} if record is None else dict.fromkeys(state.private(record), rule)
        answer.let_go([], rule, states=() if request.state is None else (request.state,), staying=staying)
        if request.state is not None:
            del state.state_owner[request.state]
    if request.session is not None and session is not None:
        if session.closing:
            del state.sessions[request.session]
        else:
            state.sessions[request.session] = session._replace(record=record, turn=None)
    state.drop_prepared(op.req)
    del state.requests[op.req]


def close_session(state: State, op: CloseSession, answer: ObservedAnswer) -> None:
    """Release an idle session; with a turn in flight the release waits for it (22213)."""
    session = state.session(op.session)
    if session.closing:
        raise Refusal("OP-1", f"session {op.session} is closing already")
    answer.carried_out()
    if session.turn is not None:
        record = state.requests[session.turn].record or session.record
        staying = {} if record is None else dict.fromkeys(state.private(record), "SESS-4")
        answer.let_go([], "SESS-4", window_rule="SESS-4", states_rule="SESS-4", staying=staying)
        state.sessions[op.session] = session._replace(closing=True)
        return
    _release(state, answer, session.record, "PAGE-1")
    del state.sessions[op.session]


def preempt(state: State, op: Preempt, answer: ObservedAnswer) -> None:
    """Release an idle slot's KV and keep the session's tokens: its next turn prefills again."""
    session = state.session(op.session)
    if session.record is None:
        raise Refusal("OP-1", f"the slot of session {op.session} holds nothing, or is lent")
    answer.carried_out()
    _release(state, answer, session.record, "PAGE-1")
    state.sessions[op.session] = session._replace(record=None)


def evict(state: State, op: Evict, answer: ObservedAnswer) -> None:
    """Free unlocked pages of the prefix store, leaves first: at least `n`, or all there are.

    Their window sides and states leave with them. A page that loses only its window side stays as a tombstone.
    """
    if min(op.n, op.window, op.states) < 0 or op.n + op.window + op.states < 1:
        raise Refusal("OP-1", f"n is {op.n}, window {op.window}, states {op.states}")
    if op.window and not state.config.sliding_window:
        raise Refusal("OP-1", "there is no sliding window")
    if op.states and not state.config.num_states:
        raise Refusal("OP-1", "there are no recurrent states")
    answer.carried_out()
    keys = answer.evicted(op.n)
    losing = state.store.check_evictable(keys)
    due = min(op.n, state.store.evictable)
    if len(keys) < due:
        raise Violation(
            "STORE-2", "too few pages were evicted", expected=f"at least {due}", observed=len(keys), part="evicted"
        )
    if state.config.sliding_window:
        leaving = state.window_sides(keys.values())
        state.drop_sides(answer.left("window", "SWA-5", op.window, leaving, hybrid.evictable_windows(state)))
    if state.config.num_states:
        states = state.store.states
        leaving = sorted(states[key] for key in keys if key in states)
        state.drop_states(answer.left("states", "MAMBA-5", op.states, leaving, recurrent.evictable_states(state)))
    state.drop(keys, losing)
