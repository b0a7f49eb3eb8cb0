"""The proofs about requests, sessions and rows are about the model, and see what is broken."""

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import pytest

from kvconform.fuzzing.swarm import memory
from kvconform.oracle import Model
from kvconform.proving import memory as prover
from kvconform.site import CHAPTERS
from kvspec import events
from kvspec.events import Config, Operation, Refusal
from kvspec.memory.proofs import books, moves
from kvspec.memory.proofs.books import Books, Record, Request, Session
from kvspec.memory.proofs.moves import MOVES, Move
from kvspec.memory.proofs.terms import NONE, every
from kvspec.model import recurrent
from kvspec.model.state import State
from kvspec.ownership import FREE
from kvspec.pages import ceil_pages
from tests.spec.memory.mistaken_moves import MISTAKES, RARER
from tests.walk import RandomDraw, proposals

WRITTEN = -2
"""Stands for what an operation writes to a row."""


class Names(dict[Any, int]):
    """Small numbers for names, those of one operation."""

    def __missing__(self, name: Any) -> int:
        return self.setdefault(name, NONE if name is None else len(self))


@dataclass
class Seen:
    """The books of a model: requests, sessions, records and rows, in numbers."""

    request: dict[int, Request]
    session: dict[int, Session]
    record: dict[int, Record]
    owner: dict[int, int]
    reads: dict[tuple[int, int], tuple[int, int]]
    """Row, launch -> positions that are read, and for which record."""
    entry: dict[tuple[int, int], int]

    def books(self) -> Books:
        """The same as the proofs have it."""
        return Books(
            lambda req: self.request.get(req, Request()),
            lambda session: self.session.get(session, Session()),
            lambda record: self.record.get(record, Record()),
            lambda _: True,
            lambda row: self.owner.get(row, FREE),
            lambda *at: self.entry.get(at, NONE),
            lambda *at: self.reads.get(at, (0, 0))[0],
            lambda *at: self.reads.get(at, (0, 0))[1],
            lambda *_: NONE,
        )


def seen(state: State, names: Names) -> Seen:
    """A model's state, before it changes."""
    requests = {
        names[req]: Request(
            len(one.tokens),
            names[one.session],
            NONE if one.record is None else one.record,
            one.running,
            one.run > 0,
            NONE if one.prefix_len is None else one.prefix_len,
            one.seq_len,
            req in state.mid_prefill,
            state.prepared[req].end if req in state.prepared else 0,
        )
        for req, one in state.requests.items()
    }
    sessions = {
        names[name]: Session(
            True, len(one.history), NONE if one.record is None else one.record, names[one.turn], one.closing
        )
        for name, one in state.sessions.items()
    }
    turns = {request.record: req for req, request in requests.items()}
    slots = {session.record: name for name, session in sessions.items()}
    records = {
        number: Record(
            turns.get(number, NONE),
            slots.get(number, NONE),
            names["row", one.row],
            *state.lengths[number],
            state.written[number],
        )
        for number, one in state.records.items()
    }
    reads, left = {}, {row: iter(ends) for row, ends in state.readers.items()}
    for launch, passages in state.flights.items():
        for passage in passages:
            at = names["row", passage.row], names["launch", launch]
            reads[at] = (next(left[passage.row]), passage.record)
    size = state.config.page_size
    entry = {
        (names["row", state.records[number].row], position): table[position // size] * size + position % size
        for number, table in state.tables.items()
        for position in range(state.lengths[number].allocated)
    }
    return Seen(requests, sessions, records, {names["row", row]: it for row, it in state.rows.items()}, reads, entry)


def taken(
    before: Seen, after: Seen, op: Any, names: Names, back: int, behind: Mapping[str, Sequence[int]]
) -> list[Any]:
    """The moves that an operation is, each of the books after the one before it, with its arguments."""
    req = names[getattr(op, "req", None)]
    session = names[getattr(op, "session", None)]
    was, now = before.request.get(req, Request()), after.request.get(req, Request())
    record = before.record.get(was.record, Record())
    cut = after.record.get(was.record, record).allocated < record.allocated
    match op:
        case events.OpenSession() | events.CloseSession() | events.Preempt():
            return [(session,)]
        case events.Submit():
            return [(req, session, len(op.tokens))]
        case events.MatchPrefix():
            return [(req, back, max(0, now.begins) if now.record == NONE else 0)]
        case events.Extend():
            ends = {names[one]: end for one, end in op.reqs}
            new = {
                one: after.request[one].record
                for one in ends
                if before.request.get(one, Request()).record == NONE and one in after.request
            }
            rows = {one: after.record[number].row for one, number in new.items() if number in after.record}
            lead = [{number: one for one, number in numbers.items()} for numbers in (new, rows)]
            maps = ends, new, lead[0], rows, lead[1]
            return [(ends.__contains__, *(lambda at, of=of: of.get(at, NONE) for of in maps), lambda *_: WRITTEN)]
        case events.Decode():
            return [(names[one], op.n, sum(behind.get(one, ())), lambda _: WRITTEN) for one in op.reqs]
        case events.Launch():
            return [(names[one], names["launch", op.launch]) for one in op.reqs]
        case events.Complete():
            more = {one for one, it in before.request.items() if it.tokens < after.request[one].tokens}
            return [(names["launch", op.launch], more.__contains__)]
        case events.Verify():
            return [
                (
                    req,
                    op.accepted,
                    len(op.tokens),
                    sum(behind.get(op.req, ())[1:]) if len(op.tokens) == op.accepted else 0,
                )
            ]
        case events.CacheUnfinished():
            return [(req, after.record.get(was.record, record).protected)]
        case events.Finish() | events.Retract():
            return [(req, cut)]
        case events.Abort():
            return [(req,)]
    return []


REFUSED = ("SESS-1", "RACE-1", "BATCH-2", "LAUNCH-1")
"""Rules by which the moves refuse what the model refuses by them; but for the order of launches, which they lack."""


def answered(state: State, op: Any, reports: bool) -> Any:
    """The operation, or with what an engine says that frees past its tokens what a turn leaves to its slot."""
    request = state.requests.get(getattr(op, "req", ""))
    if not isinstance(op, events.Finish | events.Retract) or not reports or request is None or request.record is None:
        return op
    pages = state.tables[request.record][ceil_pages(len(request.tokens), state.config.page_size) :]
    saved = request.session is not None and not state.sessions[request.session].closing
    return msgspec.structs.replace(op, obs=events.ReleaseAnswer(freed=pages)) if saved and pages else op


def resumes_at(state: State, op: Any) -> int:
    """The length up to which the record of a turn that matches can be taken up."""
    request = state.requests.get(getattr(op, "req", ""))
    if request is None:
        return 0
    slot = None if request.session is None else state.sessions[request.session].record
    record, last = request.record if request.record is not None else slot, len(request.tokens) - 1
    return last if record is None else recurrent.resumable(state, record, last)


def moved(before: Books, op: Operation[Any], arguments: list[Any]) -> tuple[list[tuple[str, bool]], Books]:
    """The conditions of an operation's moves, and the books after them."""
    asked, now = list[tuple[str, bool]](), before
    for given in arguments:
        move = MOVES[op.__struct_config__.tag](now, *given)  # type: ignore[index]
        asked += move.asked
        now = move.after
    return asked, now


def compare(due: Seen, is_so: Books, before: Seen, names: Names) -> None:
    """The books are the model's."""
    numbers = range(len(names))
    assert [is_so.request(number) for number in numbers] == [due.books().request(number) for number in numbers]
    assert [is_so.session(number) for number in numbers] == [due.books().session(number) for number in numbers]
    records = due.record.keys() | before.record.keys()
    assert [is_so.record(number) for number in records] == [due.books().record(number) for number in records]
    assert [is_so.owner(row) for row in numbers] == [due.books().owner(row) for row in numbers]
    for at in product(numbers, numbers):
        assert is_so.reads(*at) == due.books().reads(*at)
        assert not is_so.reads(*at) or is_so.runs_for(*at) == due.books().runs_for(*at)


def checked(model: Model, op: Any) -> str:
    """Carry an operation out and compare it with its moves; the rule by which it was refused, if the moves say so."""
    names, tag = Names(), str(op.__struct_config__.tag)
    back = resumes_at(model.state, op)
    behind = {req: [step.positions for step in steps] for req, steps in model.state.speculating.items()}
    before, rule = seen(model.state, names), ""
    try:
        model.step(op)
    except Refusal as refusal:
        rule = str(refusal.refused.rule)
    after = seen(model.state, names)
    every.domain = range(NONE, len(names))
    if tag not in MOVES:
        compare(after, before.books(), before, names)
    elif rule in REFUSED and tag != "complete":
        asked, _ = moved(before.books(), op, taken(before, after, op, names, back, behind))
        assert not all(so for by, so in asked if by == rule), op
        return rule
    elif not rule:
        asked, now = moved(before.books(), op, taken(before, after, op, names, back, behind))
        assert all(so for _, so in asked), (op, asked)
        compare(after, now, before, names)
        moves_slots = {at for at, slot in after.entry.items() if before.entry.get(at) != slot}
        written = {at for at in after.entry if now.entry(*at) == WRITTEN}
        assert written == (set() if tag == "cache_unfinished" else moves_slots), op
        return tag
    return ""


FIRST_TURN: list[Operation[Any]] = [
    events.OpenSession("s"),
    events.Submit("r", [1, 2, 3, 4], "s"),
    events.MatchPrefix("r"),
    events.Extend([("r", 4)]),
    events.Launch(1, ["r"]),
]
SECOND_TURN: list[Operation[Any]] = [
    *(*FIRST_TURN, events.Complete(1, {"r": 5}), events.Finish("r"), events.Submit("t", [1, 2, 3, 4, 5, 6], "s")),
    *(events.MatchPrefix("t"), events.MatchPrefix("t")),
]
SCENARIOS: dict[str, list[Operation[Any]]] = {
    "written under a launch": [*FIRST_TURN, events.Retract("r"), events.MatchPrefix("r"), events.Extend([("r", 4)])],
    "lent, and aborted": [*SECOND_TURN, events.Abort("t")],
    "withheld for two launches": [
        *(*FIRST_TURN, events.Decode(["r"], 1), events.Launch(2, ["r"]), events.Abort("r")),
        *(events.Complete(1), events.Complete(2)),
    ],
    "cut to its tokens": [
        *(*FIRST_TURN, events.Complete(1, {"r": 5}), events.Decode(["r"], 3), events.Launch(2, ["r"])),
        *(events.Complete(2), events.Verify("r", 1, [6]), events.Finish("r")),
    ],
}
"""Cases that walks rarely come to."""

WAYS = {
    "slot lent",
    "lend repeated",
    "slot given up",
    "lend ended by abort",
    "close deferred",
    "deferred close done",
    "idle session closed",
    "slot preempted",
    "row withheld",
    "turn retracted",
    "request retracted",
    "running request aborted",
    "last chunk beside a first chunk",
    "overshoot",
}
"""Cases that scenarios and walks have to come to, as the model counts them."""


def hold(state: State) -> None:
    """The invariants hold of a model's state; what a launch has found in a row, a model does not remember."""
    names = Names()
    now = seen(state, names)
    numbers = range(NONE, len(names))
    records = [*numbers, *now.record]
    for clause in books.INVARIANTS:
        kinds = [*inspect.signature(clause.body).parameters][1:]
        if kinds[-1] != "position":
            for at in product(*(records if kind == "number" else numbers for kind in kinds)):
                assert clause.body(now.books(), *at), (clause.what, at)


@pytest.mark.slow
def test_a_move_is_the_models(plain: None) -> None:
    outcomes, ways = set[str](), Counter[str]()
    for scenario in SCENARIOS.values():
        model = Model(Config(page_size=2, num_pages=8, num_rows=2, max_context_len=16))
        outcomes.update(checked(model, answered(model.state, op, reports=True)) for op in scenario)
        hold(model.state)
        ways.update(model.state.reached)
    for seed in range(16):
        draw = RandomDraw(seed)
        model = Model(memory(draw))
        for op in proposals(model.state, draw, 120):
            outcomes.add(checked(model, answered(model.state, op, draw.integer(0, 1) > 0)))
        hold(model.state)
        ways.update(model.state.reached)
    assert outcomes == {"", *REFUSED, *MOVES}
    assert not WAYS - (+ways).keys(), WAYS - (+ways).keys()


LOOKED_FOR = [*MISTAKES, *RARER] if os.environ.get("KVSPEC_PROVE") else MISTAKES


def mistaken(name: str, right: str, wrong: str) -> Callable[..., Move]:
    """The move with a mistake in it, or in what it is made of."""
    source, namespace = inspect.getsource(moves), vars(moves).copy()
    assert source.count(right) == 1
    exec(source.replace(right, wrong), namespace)
    broken: Callable[..., Move] = namespace["MOVES"][name]
    return broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "wrong", "clause"), [*MISTAKES, *RARER] if os.environ.get("KVSPEC_PROVE") else MISTAKES
)
def test_a_mistake_has_a_counterexample(name: str, right: str, wrong: str, clause: str) -> None:
    broken = mistaken(name, right, wrong)
    (goal,) = (
        at for at, goal in enumerate(prover.move_goals(name, broken)) if clause in [it.what for it in goal.clauses]
    )
    assert prover.counterexample("move", name, broken, (goal, clause)).startswith(f"{clause}: not so")


def test_each_move_and_each_rule_has_its_mistake() -> None:
    goals = [goal for name in MOVES for goal in prover.move_goals(name)]
    rule_of = {clause.what: clause.rule for goal in goals for clause in goal.clauses}
    assert {name for name, *_ in (*MISTAKES, *RARER)} == MOVES.keys()
    assert {rule_of[clause] for *_, clause in (*MISTAKES, *RARER)} == set(rule_of.values())
    chapter = (CHAPTERS / "behaviours.md").read_text(encoding="utf-8")
    section = chapter.partition("## Proofs for any size\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| ([A-Z]+-\d) \|", section, re.MULTILINE)) == set(rule_of.values())
