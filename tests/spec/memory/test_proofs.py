"""The proofs are about the memory checker, and see what is broken: each event, step and operation once."""

import contextlib
import inspect
import random
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import product
from typing import Any

import pytest
import z3  # type: ignore[import-untyped]

from kvconform.fuzzing.swarm import memory
from kvconform.oracle import Model
from kvconform.proving import memory as prover
from kvspec.events import Refusal
from kvspec.memory import Pool, events
from kvspec.memory.checker import Checker
from kvspec.memory.events import Use
from kvspec.memory.pages import Meant
from kvspec.memory.proofs import operations, page
from kvspec.memory.proofs.page import CACHED, FREE, HELD, PLANNED, THERE, Page
from kvspec.memory.proofs.pool import Memory
from kvspec.memory.proofs.steps import STEPS, Run
from kvspec.memory.proofs.terms import NONE, every
from tests.walk import RandomDraw, proposals

pytestmark = pytest.mark.slow

NUMBERS = range(3)
"""Holders, keys, slots and labels."""


@pytest.fixture
def few(plain: None) -> None:
    """The proofs' text is about plain numbers, few of them."""
    every.domain = NUMBERS


def seen(checker: Checker) -> Page:
    """The checker's state of page 1."""
    state = checker.pools["kv"].page(1)
    content = {slot: number(written.meant) for slot, written in state.content.items()}
    promise = {
        (int(key), slot): number(meant)
        for key, promised in state.keys.items()
        for slot, meant in enumerate(promised.meant)
    }
    return Page(
        lambda holder: state.references[str(holder), False],
        lambda holder: state.references[str(holder), True],
        state.references.total(),
        lambda key: (PLANNED if state.keys[str(key)].planned else THERE) if str(key) in state.keys else 0,
        len(state.keys),
        lambda key, slot: promise.get((key, slot), NONE),
        lambda slot: content.get(slot, NONE),
        {"free": FREE, "cached": CACHED, "held": HELD}[state.kind],
    )


def number(meant: Meant) -> int:
    """The label of a slot."""
    label, past = meant
    assert label is not None and not past
    return int(label)


def state_of(one: Page) -> list[object]:
    """All that two pages can differ in. The content of a free page, and the promise of a lost key, may be forgotten."""
    keys = [(key, one.named(key)) for key in NUMBERS]
    promises = [one.promise(key, slot) for key, named in keys if named for slot in NUMBERS]
    holders = [(one.holds(holder), one.pins(holder)) for holder in NUMBERS]
    content = [one.content(slot) for slot in NUMBERS if one.kind != FREE]
    return [holders, one.references, keys, one.names, promises, content, one.kind]


class Both:
    """The checker over one page, and the page of the proofs beside it."""

    def __init__(self, seed: int) -> None:
        self.random, self.checker = random.Random(seed), Checker({"kv": Pool(3, 1, label_size=1)})
        self.begun = 0

    def step(self) -> tuple[str, bool, Page, bool, Page]:
        """One event: its name, and the verdicts of the checker and of the proofs."""
        name = self.random.choice(list(prover.EVENTS))
        holder, other, key = (self.random.choice(NUMBERS) for _ in range(3))
        start, stop = sorted(self.random.sample(range(4), 2))
        labels = [self.random.choice(NUMBERS[1:]) for _ in NUMBERS]
        part = [str(label) for label in labels[start:stop]]
        before, use = seen(self.checker), Use(None, "kv", [1], start, stop, part, str(holder))
        planned, pin = self.random.random() < 0.5, self.random.random() < 0.3
        under = self.random.choice((NONE, key))
        self.begun += name in ("write", "read", "unwritten")
        slots = range(start, stop)
        labelled = [label if slot in slots else NONE for slot, label in enumerate(labels)].__getitem__
        event: events.Event
        if name == "take":
            event, checked = events.Take(str(holder), "kv", [1]), page.take(before, holder)
        elif name == "share":
            keys = None if under == NONE else [str(under)]
            event, checked = events.Share(str(holder), "kv", [1], keys, pin), page.share(before, holder, under, pin)
        elif name == "release":
            event, checked = events.Release(str(holder), "kv", [1]), page.release(before, holder)
        elif name == "transfer":
            event, checked = events.Transfer(str(holder), str(other), "kv", [1]), page.transfer(before, holder, other)
        elif name == "publish":
            event = events.Publish("kv", [1], [str(key)], [str(label) for label in labels[:stop]], stop, planned)
            checked = page.publish(before, key, planned, lambda slot: labels[slot] if slot < stop else NONE)
        elif name == "drop":
            event, checked = events.Drop("kv", [1], [str(key)]), page.drop(before, key)
        elif name == "end_holder":
            event, checked = events.EndHolder(str(holder)), page.end_holder(before, holder)
        elif name == "write":
            event = events.Begin(self.begun, "s", writes=[use])
            checked = page.write(before, holder, labelled)
        elif name == "read":
            event = events.Begin(self.begun, "s", reads=[use])
            checked = page.read(before, holder, labelled)
        else:
            self.checker.step(events.Begin(self.begun, "s", writes=[use]))
            before = seen(self.checker)
            event, checked = events.End(self.begun, unwritten=[use]), page.unwritten(before, slots.__contains__)
        found = self.checker.step(event)
        return name, not found, seen(self.checker), *checked


def test_an_event_of_the_proofs_is_the_checkers(few: None) -> None:
    reached: set[tuple[str, bool]] = set()
    for seed in range(400):
        both = Both(seed)
        for _ in range(25):
            name, allowed, after, due, expected = both.step()
            assert (name, seed, allowed, state_of(after)) == (name, seed, due, state_of(expected))
            reached.add((name, allowed))
    assert reached == set(product(prover.EVENTS, (True, False)))


def test_operations_mean_what_is_proved_of_them() -> None:
    """Which kinds of events each operation of random walks has in each pool."""
    due: dict[tuple[str, str], set[str]] = {}
    every_way: dict[str, Callable[..., Run]] = {**STEPS, **operations.WAYS}
    for tag, pools in operations.OPERATIONS.items():
        for pool, names in pools.items():
            ways = [every_way[name] for name in names.split()]
            unknown = prover.Unknowns()
            runs = [way(Run(unknown.state(Memory)), **unknown.arguments(way)) for way in ways]
            due[tag, pool] = {what.partition(",")[0] for run in runs for what, _, _ in run.emitted} - {
                "begin",
                "end_holder",
            }
    seen: dict[tuple[str, str], set[str]] = {}
    for seed in range(60):
        draw = RandomDraw(seed)
        model = Model(memory(draw), checker=Checker)
        assert model.state.memory is not None
        below, emitted = model.state.memory.checker, list[events.Event]()
        check = below.step
        below.step = lambda event, check=check, emitted=emitted: emitted.append(event) or check(event)  # type: ignore[method-assign, misc]
        op: Any
        for op in proposals(model.state, draw, 120):
            emitted.clear()
            with contextlib.suppress(Refusal):
                model.step(op)
            for event in emitted:
                kind, where = str(event.__struct_config__.tag), getattr(event, "pool", None)
                if kind in HOLDING and where not in (None, "sides"):
                    seen.setdefault((op.__struct_config__.tag, where), set()).add(kind)
    unproved = {place: kinds - due.get(place, set()) for place, kinds in seen.items()}
    assert not any(unproved.values()), unproved
    assert {tag for tag, _ in due} == {tag for tag, _ in seen}


HOLDING = ("take", "share", "release", "publish", "drop", "transfer")

MISTAKES = {
    "event": {
        "take": ("names=0", "names=1"),
        "share": ("page.referred(holder, If(pin, 0, 1), If(pin, 1, 0))", "page.counted(references=1)"),
        "release": ("page.named(key) == PLANNED", "page.named(key) == NONE"),
        "transfer": ("referred(new, share, pin)", "referred(new, 1, 0)"),
        "publish": ("Or(And(planned, held), after.kept(key))", "Or(planned, after.kept(key))"),
        "drop": ("names=page.names - If(named, 1, 0)", "names=page.names - 1"),
        "write": ("And(page.refers(holder), kept)", "page.refers(holder)"),
        "unwritten": ("If(page.named(key) == THERE, PLANNED, page.named(key))", "page.named(key)"),
    },
    "step": {
        "lock": ("memory.at(path(index)) != NONE", "memory.at(path(index)) != 0"),
        "take": ("memory.is_free(new(index))", "memory.exists(new(index))"),
        "compute": ("was.meaning)", "lambda slot: slot)"),
        "trim": ("lambda _: NONE)", "lambda slot: slot)"),
        "let_go": ("And(own(page), Not(memory.withheld(page)))", "own(page)"),
        "publish": ("memory.at(path(index)) == NONE)", "memory.at(path(index)) != 0)"),
        "hand_on": ("replace(memory.entry(old, index), page=NONE)", "memory.entry(old, index)"),
        "end_holder": ("run.memory.entry(holder, index).page == NONE", "True"),
        "drop": ("Not(keys(memory.entry(holder, index).key))", "True"),
        "keep_for": ("Not(memory.is_free(page))", "True"),
        "let_read": ("Not(had(page)), Not(read(page))", "Not(had(page))"),
    },
}
"""For each proof one mistake: what is right, and what is wrong."""


WRONG_WAYS = {
    "begin": {"grants": {}},
    "bring": {"grants": {}},
    "grow": {"grants": {}},
    "insert": {"steps": operations.WAYS["insert"].steps.replace("let_go holder known; ", "")},
    "insert_and_leave_window": {
        "steps": operations.WAYS["insert_and_leave_window"].steps.replace("let_go holder known; ", "")
    },
    "insert_and_end": {"steps": operations.WAYS["insert_and_end"].steps.replace("let_go holder everything; ", "")},
    "end": {"steps": "end_holder holder"},
    "rest": {"steps": operations.WAYS["rest"].steps.replace("end_holder request", "end_holder slot")},
    "give": {"steps": "let_go holder given; publish holder given path back"},
    "give_and_replace": {"steps": "publish holder given path back; take holder given new place"},
    "give_copy": {"grants": {"into the copy": operations.WAYS["give_copy"].grants["into the copy"]}},
}
"""For each operation what is wrong with it."""

CLOSED = ("behind shorter ones", "longer ones too")
"""Requirements of steps that keep shorter prefixes cached."""


def mistaken(kind: str, name: str, right: str, wrong: str) -> Callable[..., Any]:
    """The function with a mistake in it."""
    function = prover.KINDS[kind][0][name]
    source, namespace = inspect.getsource(function), dict(inspect.getmodule(function).__dict__)
    assert source.count(right) == 1
    exec(source.replace(right, wrong), namespace)
    broken: Callable[..., Any] = namespace[name]
    return broken


@pytest.mark.parametrize("name", WRONG_WAYS)
def test_a_wrong_operation_has_a_counterexample(name: str) -> None:
    wrong = replace(operations.WAYS[name], **WRONG_WAYS[name])  # type: ignore[arg-type]
    assert wrong != operations.WAYS[name]
    assert ": not so" in prover.counterexample("operation", name, wrong)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in MISTAKES.items() for name in names])
def test_a_mistake_has_a_counterexample(kind: str, name: str) -> None:
    assert ": not so" in prover.counterexample(kind, name, mistaken(kind, name, *MISTAKES[kind][name]))


def asked(step: Callable[..., Run]) -> list[str]:
    """The requirement of a step."""
    unknown = prover.Unknowns()
    return [what for what, _ in step(Run(unknown.state(Memory)), **unknown.arguments(step)).asked]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "what"), [(name, what) for name, step in STEPS.items() for what in asked(step)])
def test_what_a_step_asks_for_is_needed(name: str, what: str) -> None:
    @wraps(STEPS[name])
    def careless(run: Run, **arguments: Any) -> Run:
        after = STEPS[name](run, **arguments)
        return replace(after, asked=[asked for asked in after.asked if asked[0] != what])

    found = prover.counterexample("step", name, careless)
    assert ": not so" in found
    assert found.startswith("with a prefix all shorter ones are cached") == (what in CLOSED)


def test_a_mistake_is_refuted() -> None:
    wrong = mistaken("event", "take", *MISTAKES["event"]["take"])
    assert "refuted" in [verdict.outcome for verdict in prover.prove("event", "take", wrong)]


def test_each_proof_has_its_mistake() -> None:
    """An event that only reads changes nothing, and is allowed or not: there is nothing to get wrong."""
    assert WRONG_WAYS.keys() == operations.WAYS.keys()
    for kind, names in MISTAKES.items():
        assert prover.KINDS[kind][0].keys() - {"read", "end_holder" if kind == "event" else ""} == names.keys()


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (names, _) in prover.KINDS.items() for name in names]
)
def test_what_is_assumed_can_be_so(kind: str, name: str) -> None:
    """A proof from assumptions that contradict each other would show nothing."""
    every.domain = range(NONE, 2 if kind == "move" else 1)
    try:
        for goal in prover.KINDS[kind][1](name, None):
            solver = z3.Solver()
            solver.add(*goal.hypotheses)
            assert solver.check() == z3.sat
    finally:
        every.domain = None
