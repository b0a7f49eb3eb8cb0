"""A decode batch that goes on unchanged: its steps are counted, and written into the state when somebody looks.

Most of what an engine does is the same once more: the same requests decode one token each, are launched, and their
tokens arrive. What that means for each of them is known beforehand, but where one comes to a new page. So `Steady`
keeps the steps of such a batch as three numbers, and the tokens that came. Before somebody looks at what its requests
have, they are written into the state (`settle`); for one that finishes, they are written for it alone. What is not
exactly such a step is left to `running`, which says what the operations mean; `Steady` comes to the same state with
less work. What the batch means to the law below is kept in the same way, by `Onward`.
"""

from typing import Any, NamedTuple

from kvspec.events import (
    Complete,
    Decode,
    DecodeAnswer,
    Evict,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    Operation,
    Report,
    Submit,
)
from kvspec.lengths import Lengths
from kvspec.model.judging import carried_out, judge_new, pages_of, window_pages_of
from kvspec.model.onward import Onward
from kvspec.model.state import Passage, Prepared, State
from kvspec.pages import beginning
from kvspec.tokens import Tokens


class Member(NamedTuple):
    """A request of the batch, as it was when the batch first went on."""

    req: str
    record: int
    row: int
    before: Lengths
    tokens: Tokens


class Steady:
    """The decode batch of a state that goes on unchanged, if there is one."""

    def __init__(self, state: State) -> None:
        """None yet."""
        self._state = state
        self._decoded: list[str] = []
        """The requests of the last plain decode step, if nothing but its launch and completions came after it."""
        self._passages: list[Passage] | None = None
        """What its launch does for them; `None` if it is not launched."""
        self._members: list[Member] = []
        """Those that go on; none: nobody does."""
        self._names: frozenset[str] = frozenset()
        self._opening: dict[int, list[tuple[Member, int]]] = {}
        """Step, from 1 -> who then writes the first position of a page, and the index of that page."""
        self._last = 0
        """The last step for which the rows have room."""
        self._decodes = self._launches = self._completions = 0
        """Steps that went on so far; of those that were in flight before, some may have been completed."""
        self._tokens: list[dict[str, int]] = []
        """What came out of each completed step."""
        self._onward: Onward | None = None
        """The batch as the law sees it, if there is a law."""

    def step(self, op: Operation[Any]) -> bool:
        """Whether an operation is the next one of the batch; if so it is judged and done.

        Raises:
            Violation: the answer is not allowed.
        """
        if not self._decoded or op.obs is None or op.refused is not None:
            return False
        if isinstance(op, Decode):
            return op.n == 1 and op.reqs == self._decoded and self._decode(op)
        if isinstance(op, Launch):
            return bool(self._members) and op.reqs == self._decoded and self._launch(op)
        return isinstance(op, Complete) and bool(self._members) and self._complete(op)

    def make_way(self, op: Operation[Any]) -> None:
        """An operation comes that is not one of a batch that goes on; a launch or a completion may begin one."""
        if not (self._members and self._beside(op)) and (self._members or not isinstance(op, (Launch, Complete))):
            self.settle()

    def _beside(self, op: Operation[Any]) -> bool:
        """Whether the batch goes on beside an operation, which looks at nothing that is not written yet."""
        state = self._state
        if state.config.sliding_window or (self._onward is not None and state.flights):
            return False
        if isinstance(op, Finish) and op.req in self._names and len(self._members) > 1:
            record = state.requests[op.req].record
            freed = beginning(op.obs.freed or (), len(state.owner)) if op.obs else []
            if any(state.owner.get(page) != record for page in freed):
                return False
            self._part(op.req)
            return True
        return (
            isinstance(op, (Submit, Evict, Report))
            or (isinstance(op, MatchPrefix) and not (op.obs and op.obs.freed))
            or (isinstance(op, Extend) and op.refused is not None)
        )

    def _part(self, req: str) -> None:
        """A request leaves the batch."""
        left = [member for member in self._members if member.req == req]
        self._write(left)
        if self._onward is not None:
            self._onward.part(left[0].record)
        self._members = [member for member in self._members if member.req != req]
        self._names -= {req}
        self._decoded = [other for other in self._decoded if other != req]
        self._passages = [passage for passage in self._passages or () if passage.req != req]
        self._opening = {
            step: [(member, index) for member, index in opening if member.req != req]
            for step, opening in self._opening.items()
        }

    def note(self, op: Operation[Any]) -> None:
        """Such an operation was carried out."""
        if isinstance(op, Decode):
            memory, config = self._state.memory, self._state.config
            if op.n == 1 and not config.num_states and (memory is None or memory.appends()):
                self._decoded = [*op.reqs]
        elif isinstance(op, Launch):
            if op.reqs == self._decoded:
                self._passages = self._state.flights[op.launch]
            else:
                self.settle()

    def _begin(self, passages: list[Passage]) -> None:
        """The batch of a launch goes on. None of it is in the middle of anything, since it was decoded and launched."""
        state, page_size = self._state, self._state.config.page_size
        self._members = [
            Member(req, record, row, state.lengths[record], state.requests[req].tokens)
            for req, _, record, row, _, _ in passages
        ]
        self._names = frozenset(self._decoded)
        self._last = state.config.max_context_len - max(member.before.committed for member in self._members)
        for member in self._members:
            index = -(-member.before.committed // page_size)
            self._opening.setdefault(index * page_size - member.before.committed + 1, []).append((member, index))
        if state.memory is not None:
            self._onward = Onward(state.memory, {member.record: member.before.committed for member in self._members})

    def _decode(self, op: Decode) -> bool:
        if not self._members:
            if self._passages is None:
                return False
            self._begin(self._passages)
        state, step = self._state, self._decodes + 1
        opening = self._opening.get(step, ())
        needs = [(member.req, 1) for member, index in opening if index == len(state.tables[member.record])]
        short = len(needs) > state.free_pages or (state.config.sliding_window and len(needs) > state.free_window_pages)
        if self._launches < self._decodes or step > self._last or short:
            return False
        carried_out(state, op)
        obs = op.obs or DecodeAnswer()
        pages = judge_new(state, pages_of(state), needs, obs.pages)
        sides = judge_new(state, window_pages_of(state), needs, obs.window_pages)
        for member, _ in opening if pages else ():
            state.take_pages(member.record, pages.get(member.req, []), sides.get(member.req, []))
        if pages and state.memory is not None:
            state.memory.judge()
        self._decodes = step
        return True

    def _launch(self, op: Launch) -> bool:
        state, step = self._state, self._launches + 1
        if step > self._decodes or op.launch in state.flights or self._passages is None:
            return False
        carried_out(state, op)
        opening = self._opening.pop(step, ())
        for member, index in opening:
            state.content[state.tables[member.record][index]] = (member.record, index)
            self._opening.setdefault(step + state.config.page_size, []).append((member, index + 1))
        if state.flights:
            state.reached["launch overlapped"] += 1
        state.flights[op.launch] = self._passages
        self._launches = step
        if self._onward is not None:
            self._onward.launch(state, op.launch, step, [member.record for member, _ in opening])
        return True

    def _complete(self, op: Complete) -> bool:
        state = self._state
        passages, tokens = state.flights.get(op.launch), op.sampled
        if passages is not self._passages or next(iter(state.flights)) != op.launch or tokens.keys() != self._names:
            return False
        carried_out(state, op)
        state.chosen["tokens sampled by the engine"] += tokens is not op.tokens and tokens != op.tokens
        state.judged["LAUNCH-1"] += 1
        state.judged["CHUNK-1"] += 1
        del state.flights[op.launch]
        self._tokens.append(tokens.copy())
        self._completions += 1
        if self._onward is not None:
            self._onward.complete(op.launch)
        return True

    def settle(self) -> None:
        """Write what the batch has done into the state; it goes on no more."""
        if self._members:
            self._write(self._members)
            if self._onward is not None:
                self._onward.settle()
                self._onward = None
            self._members, self._tokens, self._opening = [], [], {}
            self._decodes = self._launches = self._completions = 0
        self._decoded, self._passages = [], None

    def _write(self, members: list[Member]) -> None:
        decodes, launches, completions, came = self._decodes, self._launches, self._completions, self._tokens
        state, withholds = self._state, self._state.config.withholds_rows
        lengths, written, horizon, readers = state.lengths, state.written, state.horizon, state.readers
        for req, record, row, (protected, committed, allocated), tokens in members:
            decoded, launched = committed + decodes, committed + launches
            lengths[record] = Lengths(protected, decoded, allocated if allocated > decoded else decoded)
            if decodes > launches:
                state.prepared[req] = Prepared(decoded - 1, decoded, samples=True, drafts=0)
            if launches:
                written[record] = launched
                horizon[record] += launches
            if withholds:
                reads = (*readers.pop(row, ()), *range(committed + 1, launched + 1))[completions:]
                if reads:
                    readers[row] = reads
            tokens.extend([tokens_of[req] for tokens_of in came])
