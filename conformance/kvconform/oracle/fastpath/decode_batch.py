"""A steady decode batch: its steps are counted, and written into the state when it is read.

Most operations of an engine repeat the last step: the same requests decode one token each, are launched, and their
tokens arrive. The effect on each request is known, except when it starts a new page. So `Steady` keeps the steps of
such a batch as three numbers, and collects the tokens without splitting them into pages. Before the state is read,
`settle` writes all of it. A request that finishes is written alone, and a request that ends its prefill joins. Any
other operation goes to `running`, which has the full rules; `Steady` reaches the same state with less work. `Onward`
does the same for the batch's memory events.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvconform.oracle import NotedState, Observed, check_refusal
from kvconform.oracle.fastpath.effects import Onward, appends
from kvspec.events import (
    CacheUnfinished,
    Complete,
    Decode,
    Evict,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    Operation,
    Refusal,
    Report,
    Submit,
)
from kvspec.lengths import Lengths
from kvspec.model.records import Passage, Prepared
from kvspec.model.running import check_room
from kvspec.tokens import Tokens


class Member(NamedTuple):
    """A request of the batch, in its state at joining."""

    req: str
    record: int
    row: int
    before: Lengths
    tokens: Tokens
    since: int
    """The steps of the batch before it joined."""


class Steady:
    """The steady decode batch of a state, if there is one."""

    def __init__(self, state: NotedState) -> None:
        """Begin without a batch."""
        self._state = state
        self._decoded: list[str] = []
        """The requests of the last plain decode step, if only launches and completions followed it."""
        self._members: dict[str, Member] = {}
        """The requests of the batch; empty if there is no steady batch."""
        self._names: frozenset[str] = frozenset()
        self._rests: dict[str, list[int]] = {}
        """Request -> its tokens that are not yet split into pages."""
        self._passages: list[Passage] = []
        """A launch's passages for them. Launches in flight share the list, so it is never changed."""
        self._opening: dict[int, list[tuple[Member, int]]] = {}
        """Step, from 1 -> the members that write the first position of a page in it, and the page's index."""
        self._last = 0
        """The last step for which the rows have room."""
        self._decodes = self._launches = self._completions = 0
        """The numbers of steps so far."""
        self._in_flight: dict[int, frozenset[str] | None] = {}
        """Launch of these steps -> the requests that get tokens; `None`: one of them has left, and may get none."""
        self._onward: Onward | None = None
        """The batch's memory events, if there is a memory checker."""

    def step(self, op: Operation[Any]) -> bool:
        """Check and apply an operation if it is the next one of the batch. Returns whether it is.

        Raises:
            Violation: the answer is not allowed.
        """
        if not self._decoded or (op.obs is None and op.refused is None):
            return False
        if type(op) is Decode:
            return op.n == 1 and op.reqs[: len(self._decoded)] == self._decoded and self._decode(op)
        if op.refused is not None:
            return False
        if type(op) is Launch:
            return bool(self._members) and op.reqs == self._decoded and self._launch(op)
        return type(op) is Complete and op.launch in self._in_flight and self._complete(op)

    def make_way(self, op: Operation[Any]) -> None:
        """Make way for an operation that does not continue the batch. A launch or a completion may begin one."""
        if self._onward is not None:
            self._onward.catch_up()
        if not (self._members and self._beside(op)) and (self._members or type(op) not in (Launch, Complete)):
            self.settle()

    def _beside(self, op: Operation[Any]) -> bool:
        """Whether the batch continues beside an operation, which reads nothing that is not written yet."""
        state = self._state
        if type(op) is Complete:  # of a launch before the batch
            return op.launch not in self._in_flight
        chosen = type(op) is Extend and op.refused is None
        if state.config.sliding_window or (self._in_flight and (self._onward is not None or chosen)):
            return False
        if type(op) is Finish:
            if op.req not in self._members or len(self._members) == 1:
                return False
            self._part(op.req)
            return True
        if type(op) is MatchPrefix or type(op) is CacheUnfinished:
            return op.req not in self._members
        if type(op) is Launch:
            return self._members.keys().isdisjoint(op.reqs)
        if type(op) is Extend:
            return not any(req in self._members for req, _ in op.reqs)
        return type(op) in (Submit, Evict, Report)

    def _part(self, req: str) -> None:
        """A request leaves the batch."""
        member = self._members.pop(req)
        self._names -= {req}
        del self._rests[req]
        self._passages = [passage for passage in self._passages if passage.req != req]
        self._write([member])
        if self._onward is not None:
            self._onward.part(member.record)
        self._decoded = [*self._members]
        self._in_flight = dict.fromkeys(self._in_flight)

    def note(self, op: Operation[Any]) -> None:
        """Note that such an operation was carried out."""
        if type(op) is Decode:
            memory, config = self._state.memory, self._state.config
            if op.n == 1 and not config.num_states and (memory is None or appends(memory)):
                self._decoded = [*op.reqs]

    def _join(self, reqs: Sequence[str]) -> bool:
        """Let requests of a decode step join the batch, if nothing prevents it. Returns false if some cannot."""
        state, page_size, since = self._state, self._state.config.page_size, self._decodes
        passages = self._passages.copy()
        for req in reqs:
            request = state.requests.get(req)
            if request is None or (record := request.record) is None or not request.running or req in self._members:
                return False
            before = state.lengths[record]
            if req in state.prepared or req in state.mid_prefill or req in state.speculating:
                return False
            if before.committed >= state.horizon[record]:
                return False
            row = state.records[record].row
            member = self._members[req] = Member(req, record, row, before, request.tokens, since)
            self._rests[req] = request.tokens.rest
            passages.append(Passage(req, request.run, record, row, samples=True, drafts=0))
            last, index = since + state.config.max_context_len - before.committed, -(-before.committed // page_size)
            self._last = min(self._last, last) if len(self._members) > 1 else last
            step = since + index * page_size - before.committed + 1
            self._opening.setdefault(step, []).append((member, index))
            if self._onward is not None:
                self._onward.join(record, before.committed, since)
        self._decoded, self._names = [*self._members], frozenset(self._members)
        self._passages = passages
        return True

    def _decode(self, op: Decode) -> bool:
        state, step = self._state, self._decodes + 1
        if not self._members and state.memory is not None:
            self._onward = Onward(state.memory)
        new = op.reqs[len(self._members) :]
        if self._launches < self._decodes or (new and not self._join(new)):
            return False
        opening = self._opens(step)
        needs = [(member.req, 1) for member, index in opening if index == len(state.tables[member.record])]
        if step > self._last:
            return False
        try:
            check_room(state, len(needs), 0, 0)
        except Refusal as refusal:
            if op.refused is None:
                return False
            check_refusal(state, refusal.refused, op.refused)
            return True
        answer = Observed(state, op)
        answer.carried_out()
        pages = answer.given("pages", needs)
        sides = answer.given("window", needs) if state.config.sliding_window else {}
        if pages and self._onward is not None:
            self._onward.catch_up()
        for member, _ in opening if pages else ():
            state.take_pages(member.record, pages.get(member.req, []), sides.get(member.req, []))
        if pages and state.memory is not None:
            state.memory.check()
        self._decodes = step
        return True

    def _opens(self, step: int) -> list[tuple[Member, int]]:
        """The members that write the first position of a page in a step, and the index of that page."""
        return [(one, index) for one, index in self._opening.get(step, ()) if self._members.get(one.req) is one]

    def _launch(self, op: Launch) -> bool:
        state, step = self._state, self._launches + 1
        if step > self._decodes or op.launch in state.flights:
            return False
        opening = self._opens(step)
        self._opening.pop(step, None)
        for member, index in opening:
            self._opening.setdefault(step + state.config.page_size, []).append((member, index + 1))
        if state.flights:
            state.reached["launch overlapped"] += 1
        state.flights[op.launch] = self._passages
        self._in_flight[op.launch] = self._names
        self._launches = step
        if self._onward is not None:
            self._onward.launch(state, op.launch, step, [member.record for member, _ in opening])
        return True

    def _complete(self, op: Complete) -> bool:
        state = self._state
        tokens = op.sampled
        if next(iter(state.flights)) != op.launch or tokens.keys() != self._in_flight[op.launch]:
            return False
        if tokens is not op.tokens and tokens != op.tokens:
            state.chosen["tokens sampled by the engine"] += 1
        del state.flights[op.launch], self._in_flight[op.launch]
        if not state.flights:
            state.may_keep.clear()
        rests = self._rests
        for req, token in tokens.items():
            rests[req].append(token)
        self._completions += 1
        if self._onward is not None:
            self._onward.complete(op.launch)
        return True

    def settle(self) -> bool:
        """End the batch, and write its steps into the state. Returns whether there was one."""
        going_on = bool(self._members)
        if going_on:
            self._write(self._members.values())
            checked = self._state.checked
            checked["OP-1"] += self._launches + self._completions
            checked["LAUNCH-1"] += self._completions
            checked["CHUNK-1"] += self._completions
            if self._onward is not None:
                self._onward.settle()
            self._members, self._rests, self._passages = {}, {}, []
            self._opening, self._in_flight = {}, {}
            self._decodes = self._launches = self._completions = 0
        self._decoded, self._onward = [], None
        return going_on

    def _write(self, members: Iterable[Member]) -> None:
        state, withholds = self._state, self._state.config.withholds_rows
        lengths, written, horizon, readers = state.lengths, state.written, state.horizon, state.readers
        for req, record, row, (protected, committed, allocated), tokens, since in members:
            decoded, launched = committed + self._decodes - since, committed + self._launches - since
            lengths[record] = Lengths(protected, decoded, allocated if allocated > decoded else decoded)
            if decoded > launched:
                state.prepared[req] = Prepared(decoded - 1, decoded, samples=True, drafts=0)
            if launched > committed:
                written[record] = launched
                horizon[record] += launched - committed
            if withholds:
                completed = max(0, self._completions - since)
                reads = (*readers.pop(row, ()), *range(committed + 1, launched + 1)[completed:])
                if reads:
                    readers[row] = reads
            tokens.part()
