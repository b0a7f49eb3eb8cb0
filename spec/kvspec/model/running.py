"""Operations on requests that run: prefill, decode, and the launches that carry them out."""

from typing import NamedTuple

from kvspec import lengths, ownership
from kvspec.batch import Chunking, broken_rule
from kvspec.events import Complete, Decode, Extend, Launch, Refusal, Verify
from kvspec.lengths import Lengths
from kvspec.model import hybrid, recurrent
from kvspec.model.answer import ObservedAnswer
from kvspec.model.records import Part, Passage, Prepared, Speculation
from kvspec.model.state import State
from kvspec.pages import ceil_pages, new_pages
from kvspec.rules import Violation
from kvspec.tokens import Tokens


def extend(state: State, op: Extend, answer: ObservedAnswer) -> None:
    """Prefill a batch: rows, pages and row writes for all of it, or nothing (17850).

    For each request, with `pages` already in its table:
    [0, prefix_len)              matched or written before: stays
    [prefix_len, seq_len)        gets slots: first in the page that prefix_len cuts, then in new pages
    """
    batch = [_check_extend(state, req, seq_len) for req, seq_len in op.reqs]
    _check_batch(state, op, batch)
    page_size = state.config.page_size
    needs = [(req, new_pages(start, end, page_size)) for req, _, start, end in batch]
    brought = ((req, request.record) for req, request, _, _ in batch)
    kept = {req: None if record is None else state.records[record].row for req, record in brought}
    # Before the room: whose row was given away says more than that none was free.
    rows = None if op.obs is None else answer.rows(kept)
    state_needs = [(req, recurrent.states_missing(state, request)) for req, request, _, _ in batch]
    needed = _room(state, answer, sum(need for _, need in needs), [end - start for _, _, start, end in batch])
    new_rows = [*kept.values()].count(None)
    check_room(state, needed, new_rows + answer.withheld(new_rows), sum(need for _, need in state_needs))
    answer.carried_out("OP-1", "BATCH-1", "BATCH-2")

    if rows is None:
        rows = answer.rows(kept)
    pages, sides = answer.given("pages", needs), answer.given("window", needs)
    states = answer.given("states", state_needs)
    answer.sources(batch)
    for part in batch:
        req = part.req
        record = _extend_one(state, part, rows[req])
        state.take_pages(record, pages.get(req, []), sides.get(req, []))
        recurrent.take_states(state, record, req, part.request, states.get(req, []), chooses=answer.chooses)


def _check_extend(state: State, req: str, seq_len: int) -> Part:
    """One request of a prefill batch, from its prefix_len on, or a refusal."""
    request = state.request(req)
    if request.running:
        if req not in state.mid_prefill:
            raise Refusal("OP-1", f"the prefill of {req} is complete")
        if req in state.prepared:
            raise Refusal("LAUNCH-1", f"the last chunk of {req} is not launched yet")
        prefix_len = request.seq_len
    else:
        if request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        prefix_len = request.prefix_len
        if request.record is None:
            if not hybrid.is_match(state, request.tokens, prefix_len // state.config.page_size):
                raise Refusal("STORE-5", f"what {req} matched has been evicted: match again")
        elif state.read_beyond(state.records[request.record].row, prefix_len):
            raise Refusal("RACE-1", f"a launch in flight still reads what {req} would overwrite from {prefix_len} on")
    if not prefix_len < seq_len <= len(request.tokens):
        raise Refusal("OP-1", f"seq_len {seq_len} of {req} is not in {prefix_len + 1}..{len(request.tokens)}")
    if seq_len > state.config.max_context_len:
        raise Refusal("LEN-1", f"seq_len {seq_len} of {req} exceeds the context of {state.config.max_context_len}")
    return Part(req, request, prefix_len, seq_len)


def _check_batch(state: State, op: Extend, batch: list[Part]) -> None:
    """Refuse an empty batch, a request named twice, and what BATCH-1 and BATCH-2 forbid."""
    names = {req for req, _ in op.reqs}
    if not names:
        raise Refusal("OP-1", "the batch is empty")
    if len(names) < len(op.reqs):
        raise Refusal("OP-1", "a request is in the batch twice")
    unfinished = [request.running for _, request, _, end in batch if end < len(request.tokens)]
    chunking = Chunking(
        continuing=len(names & state.mid_prefill),
        newly_chunked=unfinished.count(False),
        left=len(state.mid_prefill - names) + len(unfinished),
    )
    rule = broken_rule(chunking)
    if rule is not None:
        what = f"the batch has {chunking.continuing} continuing and {chunking.newly_chunked} newly chunked requests"
        raise Refusal(rule, f"{what}, and leaves {chunking.left} in the middle of their prefill")


def check_room(state: State, pages: int, rows: int, states: int) -> None:
    """Refuse what needs more pages, rows or state slots than are free; each page needs a window page behind it."""
    sides = pages - state.free_window_pages if state.config.sliding_window else 0
    short = pages - state.free_pages, rows - state.free_rows, sides, states - state.free_states
    if max(short) > 0:
        names = ("pages_short", "rows_short", "window_short", "states_short")
        window = f"; {state.free_window_pages} window pages are free" if state.config.sliding_window else ""
        slots = f"; {states} state slots are needed, {state.free_states} are free" if state.config.num_states else ""
        tables = (f" and {rows} rows", f" and {state.free_rows}") if state.config.num_rows else ("", "")
        what = f"{pages} pages{tables[0]} are needed, {state.free_pages}{tables[1]} are free{window}{slots}"
        raise Refusal("CAP-1", what, **{name: max(0, missing) for name, missing in zip(names, short, strict=True)})


def _room(state: State, answer: ObservedAnswer, pages: int, positions: list[int]) -> int:
    """The pages that must be free for an operation: those that it takes, or as many as policy `room` says."""
    page_size = state.config.page_size
    if not state.config.sliding_window or page_size == 1 or state.config.room == "exact":
        return pages
    return answer.room(pages, ceil_pages(sum(positions), page_size) + len(positions))


def _extend_one(state: State, part: Part, row: int) -> int:
    """Apply one request of a prefill batch that was checked whole: its record. Its new pages follow."""
    req, request, prefix_len, seq_len = part
    record = request.record
    if record is None:
        record = state.begin_record(request.tokens, row, prefix_len, seq_len)
    else:
        state.rows[row] = ownership.reuse(state.rows[row], record)
        state.lengths[record] = lengths.extend(state.lengths[record], seq_len, state.config.page_size)
    state.horizon[record] = len(request.tokens)
    last = seq_len == len(request.tokens)
    if last:
        state.mid_prefill.discard(req)
    else:
        state.mid_prefill.add(req)
    state.prepared[req] = Prepared(prefix_len, seq_len, samples=last, drafts=0)
    if not request.running:
        state.runs += 1
        request = request._replace(record=record, running=True, prefix_len=None, run=state.runs, state=None)
    state.requests[req] = request._replace(seq_len=seq_len)
    return record


def decode(state: State, op: Decode, answer: ObservedAnswer) -> None:
    """Make room for one decode step of each request; `n == 1` commits its token at once (994)."""
    if op.n < 1:
        raise Refusal("OP-1", f"n is {op.n}")
    if op.n > 1 and state.config.num_states:
        raise Refusal("OP-1", "recurrent states cannot take a speculative step back")
    if not op.reqs:
        raise Refusal("OP-1", "the batch is empty")
    if len(set(op.reqs)) < len(op.reqs):
        raise Refusal("OP-1", "a request is in the batch twice")
    steps, needs = _steps(state, op)
    needed = sum(need for _, need in needs)
    if op.n > 1:
        growth = [step.after.allocated - state.lengths[step.record].allocated for step in steps]
        needed = _room(state, answer, needed, [count for count in growth if count])
    check_room(state, needed, 0, 0)
    answer.carried_out()

    pages = answer.given("pages", needs, "SPEC-2" if any(step.ahead for step in steps) else "")
    sides = answer.given("window", needs)
    drafts = 0 if op.n == 1 else op.n
    for req, record, after, committed, ahead in steps:
        state.lengths[record] = after
        # A step that is ahead begins after at least one position of the one before it, and at most after all of them.
        state.prepared[req] = Prepared(committed + (ahead > 0), committed + ahead + op.n, op.n == 1, drafts)
    for req, new in pages.items():
        state.take_pages(state.running(req)[1], new, sides.get(req, []))


class Step(NamedTuple):
    """One request's decode step."""

    req: str
    record: int
    after: Lengths
    committed: int
    """Its length before."""
    ahead: int
    """Positions of the speculative step before it, if that is not verified yet (SPEC-2)."""


def _steps(state: State, op: Decode) -> tuple[list[Step], list[tuple[str, int]]]:
    """The step of each request of a batch, and how many pages those need that need any; or a refusal."""
    n, page_size, max_len = op.n, state.config.page_size, state.config.max_context_len
    # An engine that speculates one step at a time MAY refuse to prepare the next one (SPEC-2).
    one_by_one = op.refused is not None and op.refused.rule in (None, "SPEC-1")
    steps: list[Step] = []
    needs: list[tuple[str, int]] = []
    for req in op.reqs:
        request = state.requests.get(req)
        if request is None or (record := request.record) is None or not request.running:
            raise Refusal("OP-1", f"request {req} is not running")
        if req in state.prepared or req in state.mid_prefill:
            raise Refusal("OP-1", f"{req} has a prefill or a decode step that is not done")
        unverified = state.speculating.get(req, ())
        if unverified and (n == 1 or len(unverified) > 1 or one_by_one):
            raise Refusal("SPEC-1", f"a speculative step of {req} is not verified yet")
        before, ahead = state.lengths[record], sum([step.positions for step in unverified]) if unverified else 0
        if before.committed >= state.horizon[record]:
            raise Refusal("OP-1", f"position {before.committed} of {req} has no token to decode")
        after = lengths.decode(before, n, page_size, ahead)
        if after.allocated > max_len:
            raise Refusal("LEN-1", f"{req} would grow to {after.allocated}, past the context of {max_len}")
        missing = -(-after.allocated // page_size) - len(state.tables[record])
        if missing:
            needs.append((req, missing))
        steps.append(Step(req, record, after, before.committed, ahead))
    return steps, needs


def launch(state: State, op: Launch, answer: ObservedAnswer) -> None:
    """Hand what was prepared to the device. From here on the row positions it reads may not change (17850)."""
    if op.launch in state.flights:
        raise Refusal("OP-1", f"launch {op.launch} is in flight")
    if not op.reqs:
        raise Refusal("OP-1", "the launch is empty")
    names = set(op.reqs)
    if not names <= state.prepared.keys():
        missing = next(req for req in op.reqs if req not in state.prepared)
        raise Refusal("OP-1", f"{missing} has nothing to launch")
    if len(names) < len(op.reqs):
        raise Refusal("OP-1", "a request is in the launch twice")
    answer.carried_out()

    passages = []
    for req in op.reqs:
        start, end, samples, drafts = state.prepared.pop(req)
        request = state.requests[req]
        record = request.record
        assert record is not None, "only running requests have something prepared"
        row = state.records[record].row
        if state.config.withholds_rows:
            state.readers[row] = (*state.readers.get(row, ()), end)
        state.written[record] = end
        if state.config.num_states:
            recurrent.move_on(state, record, start, end, chooses=answer.chooses)
        if samples or drafts:
            state.horizon[record] += 1
        if drafts:
            state.speculating[req] = (*state.speculating.get(req, ()), Speculation(drafts, completed=False))
        passages.append(Passage(req, request.run, record, row, samples, drafts))
    state.flights[op.launch] = passages


def complete(state: State, op: Complete, answer: ObservedAnswer) -> None:
    """The oldest launch has completed: tokens arrive, and rows withheld for it become free (17850).

    Those that an engine has sampled itself are taken as they are, if there are as many as are due.
    """
    if op.launch not in state.flights:
        raise Refusal("OP-1", f"launch {op.launch} is not in flight")
    oldest = next(iter(state.flights))
    if oldest != op.launch:
        raise Refusal("LAUNCH-1", f"launch {oldest} was handed over before launch {op.launch}")
    passages = state.flights[op.launch]
    sampled, to_verify = _arriving(state, op, passages)
    answer.carried_out("OP-1", "CHUNK-1")

    for tokens, token in sampled:
        tokens.append(token)
    for req in to_verify:
        steps = state.speculating[req]
        oldest_open = [step.completed for step in steps].index(False)
        done = steps[oldest_open]._replace(completed=True)
        state.speculating[req] = (*steps[:oldest_open], done, *steps[oldest_open + 1 :])
    del state.flights[op.launch]
    for row in [passage.row for passage in passages] if state.readers else ():
        _, *later = state.readers[row]
        state.readers[row] = tuple(later)
        if not later:
            del state.readers[row]
            if ownership.flush(state.rows[row], 0) == ownership.FREE:
                state.free_row(row)
    if not state.flights:
        state.may_keep.clear()


def _arriving(state: State, op: Complete, passages: list[Passage]) -> tuple[list[tuple[Tokens, int]], list[str]]:
    """The tokens that a launch has sampled, each with its request's, and the requests whose drafts it has computed."""
    sampled, to_verify, tokens = [], [], op.sampled
    for req, run, _, _, samples, drafts in passages:
        request = state.requests.get(req)
        if request is None or request.run != run or not request.running:
            continue
        if samples:
            token = tokens.get(req)
            if token is None:
                raise _miscounted(op, f"the launch covered the last position of {req}, but no token came")
            sampled.append((request.tokens, token))
        elif drafts and req in state.speculating:
            to_verify.append(req)
    if len(sampled) != len(tokens):
        due = {passage.req for passage in passages if passage.samples}
        stranger = next((req for req in tokens if req not in due), "a request that left")
        raise _miscounted(op, f"a token came for {stranger}, which this launch did not sample for")
    return sampled, to_verify


def _miscounted(op: Complete, what: str) -> Exception:
    """Tokens that are handed in are refused if they are not those due; an engine that has taken them has broken it."""
    if op.sampled is op.tokens:
        return Refusal("CHUNK-1", what)
    return Violation("CHUNK-1", what, expected="a token for each that it sampled for", observed=op.sampled)


def verify(state: State, op: Verify, answer: ObservedAnswer) -> None:
    """Commit what the oldest speculative step had accepted; the request keeps `tokens` of it (22862)."""
    request, record = state.running(op.req)
    step, *behind = state.speculating.get(op.req, (None,))
    if step is None or not step.completed:
        raise Refusal("SPEC-1", f"{op.req} has no completed speculative launch to verify")
    if op.req in state.prepared:
        raise Refusal("LAUNCH-1", f"the step of {op.req} that is ahead of this verify is not launched yet")
    if not 1 <= op.accepted <= step.positions:
        raise Refusal("SPEC-1", f"{op.accepted} accepted positions are not in 1..{step.positions}")
    if not 1 <= len(op.tokens) <= op.accepted:
        raise Refusal("SPEC-1", f"{len(op.tokens)} tokens for {op.accepted} accepted positions")
    answer.carried_out("SPEC-1")

    state.lengths[record] = lengths.verify(state.lengths[record], op.accepted, state.config.page_size)
    for token in op.tokens:
        request.tokens.append(token)
    if len(op.tokens) < op.accepted:
        behind = []  # the request has stopped: the tokens of its next step are not needed
    state.horizon[record] = len(request.tokens) + len(behind)
    state.written[record] = state.lengths[record].committed + sum(step.positions for step in behind)
    state.speculating[op.req] = tuple(behind)
    if not behind:
        del state.speculating[op.req]
