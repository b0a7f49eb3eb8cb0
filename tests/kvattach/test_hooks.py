"""Hooks never disturb the engine, and defects are injected where they are said to be."""

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kvattach.hooks import Hooks, RuleBroken, Trace
from kvattach.patches import Patches
from kvattach.residency import Run
from kvcheck.words import describe
from kvlab.drives import CheckedTrace, Trial, drive_trial
from kvlab.injection import Defect, NotInjected, inject_fault
from kvlab.trial import drive, inject
from kvspec.memory import Pool
from kvspec.memory.events import Begin, Idle, MemoryEvent, Take, Unify, Use


class Engine:
    def free(self, page: int) -> int:
        return page + 1

    def fail(self) -> None:
        raise ValueError("no pages")

    def hand_out(self, page: int) -> int:
        if not page:
            raise AssertionError
        return page


@pytest.fixture
def trace() -> CheckedTrace:
    made = CheckedTrace()
    made.header("test", {"kv": Pool(num_pages=4)})
    return made


def test_an_error_in_a_hook_ends_the_trace_and_not_the_engine(trace: CheckedTrace) -> None:
    hooks = Hooks(trace)

    def broken(engine: Engine, page: int) -> None:
        raise KeyError(page)

    hooks.hook(Engine, "free", before=broken)
    assert Engine().free(1) == 2
    assert hooks.problem is not None
    assert "KeyError" in hooks.problem
    hooks.emit(Idle())
    assert trace.events == 0
    hooks.detach()
    assert Engine().free(1) == 2


def test_an_impossible_event_is_a_problem_of_the_hooks_wherever_it_is_emitted(trace: CheckedTrace) -> None:
    hooks = Hooks(trace)
    labels = Begin("f", writes=[Use(pool="kv", pages=[1, 2], labels=["a"])], at="forward")

    class Driven(Engine):
        def fail(self) -> None:
            hooks.emit(labels)

    hooks.watch(Driven, "fail")
    Driven().fail()
    assert hooks.problem == "begin (forward) cannot be emitted: Malformed: 1 labels for slots 0 to 2, 1 each"
    hooks.emit(Take("a", "kv", [9]))
    hooks.detach()
    assert trace.first is None
    hooks = Hooks(trace)
    hooks.emit(Take("a", "kv", [1]), labels, Idle(), labels)
    assert hooks.problem is not None and hooks.problem.startswith("take, begin (forward), idle cannot be emitted: ")


def test_an_engine_that_is_to_be_stopped_is_stopped(trace: CheckedTrace) -> None:
    hooks = Hooks(trace)

    def found(engine: Engine, page: int) -> None:
        raise RuleBroken("MEM-TAKE")

    hooks.hook(Engine, "free", before=found)
    with pytest.raises(RuleBroken):
        Engine().free(1)
    hooks.detach()


def test_an_engine_that_gives_up_is_a_finding(trace: CheckedTrace) -> None:
    hooks = Hooks(trace)
    hooks.watch(Engine, "fail")
    with pytest.raises(ValueError, match="no pages"):
        Engine().fail()
    hooks.detach()
    assert trace.first is not None
    assert (trace.first[1].rule, trace.first[1].at) == ("MEM-FAILED", "fail")


def test_an_error_with_which_an_engine_ends_on_purpose_is_no_finding(trace: CheckedTrace) -> None:
    hooks = Hooks(trace)
    hooks.watch(Engine, "fail", expected=lambda error: str(error) == "no pages")
    with pytest.raises(ValueError, match="no pages"):
        Engine().fail()
    hooks.detach()
    assert trace.first is None


def test_an_assertion_without_words_is_reported_by_its_line(trace: CheckedTrace) -> None:
    hooks = Hooks(trace)
    hooks.watch(Engine, "hand_out")
    with pytest.raises(AssertionError):
        Engine().hand_out(0)
    hooks.detach()
    assert trace.first is not None
    assert describe(trace.first[1]).endswith("hand_out: AssertionError: raise AssertionError")


def test_a_checked_trace_counts_events_until_a_finding(trace: CheckedTrace) -> None:
    trace.emit(Take("a", "kv", [1]))
    assert trace.first is None
    trace.emit(Take("b", "kv", [1]))
    assert trace.first is not None
    assert (trace.first[0], trace.first[1].rule) == (2, "MEM-TAKE")
    assert sum(trace.kinds().values()) == 1


def test_an_injected_defect_that_makes_the_engine_go_round_is_stuck() -> None:
    def attach(trace: Trace) -> Hooks:
        trace.header("test", {"kv": Pool(num_pages=4)})
        return Hooks(trace)

    def run(_: int) -> None:
        while Engine().free(1) == 3:
            pass

    defect = Defect("off by one", "", ((Engine, "free", "page + 1", "page + 2"),))
    first = drive_trial(Trial("test", attach, run, [defect]), range(5), defect=defect, seconds=0.1).first
    assert first is not None
    assert (first[1].rule, describe(first[1])) == (
        "MEM-FAILED",
        "stuck: the run of seed 0 has not ended in 0.1 s",
    )
    assert Engine().free(1) == 2 and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_run_that_sleeps_is_ended_and_one_on_a_busy_machine_is_not() -> None:
    def attach(trace: Trace) -> Hooks:
        trace.header("test", {"kv": Pool(num_pages=4)})
        return Hooks(trace)

    defect = Defect("off by one", "", ((Engine, "free", "page + 1", "page + 2"),))
    ends = Trial("test", attach, lambda _: time.sleep(0.3), [defect])
    assert not drive_trial(ends, [0], defect=defect, seconds=0.1).found
    sleeps = Trial("test", attach, lambda _: time.sleep(30), [defect])
    assert drive_trial(sleeps, [0], defect=defect, seconds=0.02).found


def test_an_injected_defect_can_be_taken_out_again() -> None:
    patches = Patches()
    inject_fault(Defect("off by one", "", ((Engine, "free", "page + 1", "page + 2"),)), patches)
    assert Engine().free(1) == 3
    patches.undo()
    assert Engine().free(1) == 2


def test_two_defects_in_one_function_are_both_there() -> None:
    """The fix of a known defect in the same function does not remove an injected one."""
    patches = Patches()
    inject_fault(Defect("off by one", "", ((Engine, "hand_out", "return page", "return page + 1"),)), patches)
    inject_fault(Defect("page 0 is handed out", "", ((Engine, "hand_out", "if not page", "if page < 0"),)), patches)
    assert Engine().hand_out(0) == 1
    patches.undo()
    assert Engine().hand_out(2) == 2


def test_an_error_names_the_line_of_the_file_where_a_defect_was_injected() -> None:
    patches = Patches()
    with pytest.raises(AssertionError) as raised:
        Engine().hand_out(0)
    inject_fault(Defect("off by one", "", ((Engine, "hand_out", "return page", "return page + 1"),)), patches)
    with pytest.raises(AssertionError) as injected:
        Engine().hand_out(0)
    patches.undo()
    assert injected.traceback[-1].lineno == raised.traceback[-1].lineno


def test_a_defect_for_other_code_is_not_injected() -> None:
    with pytest.raises(NotInjected, match=r"free has 0 places like 'page \+ 7'$"):
        inject_fault(Defect("gone", "", ((Engine, "free", "page + 7", "page"),)), Patches())


def test_the_error_on_a_defect_with_another_indentation_quotes_the_lines_there() -> None:
    complaint = "0 places like {}; its lines, without the function's own indentation, are {}"
    old, there = "if not page:\n    raise AssertionError", "    if not page:\n        raise AssertionError"
    with pytest.raises(NotInjected, match=re.escape(complaint.format(repr(old), repr(there)))):
        inject_fault(Defect("indented", "", ((Engine, "hand_out", old, "pass"),)), Patches())


class Base:
    def count(self) -> int:
        return 1


class Derived(Base):
    def count(self) -> int:
        """A function that needs what its class knows."""
        return super().count() + self.__more() + 1

    def __more(self) -> int:
        return 10

    @property
    def doubled(self) -> int:
        return 2 * self.count()


def adder(number: int) -> Callable[[int], int]:
    def add(other: int) -> int:
        return other + number

    return add


def test_a_defect_sees_what_its_function_sees() -> None:
    """`super()`, private names and variables around it: else each such defect were found by its own error."""
    patches, closed = Patches(), SimpleNamespace(add=adder(5))
    places = (
        (Derived, "count", "+ 1", "+ 2"),
        (Derived, "_Derived__more", "return 10", "return 20"),
        (closed, "add", "other + number", "other - number"),
    )
    uncalled = inject_fault(Defect("off by one", "", places), patches)
    assert uncalled == {"count", "_Derived__more", "add"}
    assert Derived().count() == 1 + 20 + 2
    assert uncalled == {"add"}
    assert closed.add(8) == 3
    assert not uncalled
    patches.undo()
    assert Derived().count() == 12 and closed.add(8) == 13


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    [
        (Derived, "doubled", "is a property"),
        (math, "sqrt", "has no source"),
        (Derived, "absent", "has no absent of its own"),
    ],
)
def test_a_defect_in_no_function_with_a_source_is_not_injected(owner: Any, name: str, reason: str) -> None:
    with pytest.raises(NotInjected, match=f"^nowhere: .*{reason}"):
        inject_fault(Defect("nowhere", "", ((owner, name, "1", "2"),)), Patches())


def test_a_defect_whose_function_is_never_called_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def attach(trace: Trace) -> Hooks:
        trace.header("test", {"kv": Pool(num_pages=4)})
        return Hooks(trace)

    def fix(patches: Patches) -> None:
        inject_fault(Defect("fixed", "", ((Engine, "hand_out", "return page", "return page + 1"),)), patches)

    never = Defect("never", "", ((Engine, "free", "page + 1", "page + 2"),))
    called = Defect("called", "", ((Engine, "hand_out", "if not page", "if page < 0"),))

    def run(_: int) -> None:
        Engine().hand_out(3)

    trial = Trial("test", attach, run, [never, called], fix)
    assert inject(Console(), trial, 2, without_known=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines[:2]] == ["never: not found: no run has called free", "called: not found"]


def test_the_run_that_found_a_defect_is_the_first_for_the_next_and_seeds_go_round() -> None:
    def attach(trace: Trace) -> Hooks:
        trace.header("test", {"kv": Pool(num_pages=4)})
        return Hooks(trace)

    seeds: list[int] = []

    def run(seed: int) -> None:
        seeds.append(seed)
        assert seed != 2 or Engine().free(1) == 2

    found = Defect("off by one", "", ((Engine, "free", "page + 1", "page + 2"),))
    missed = Defect("nothing", "", ((Engine, "free", "page + 1", "1 + page"),))
    trial = Trial("test", attach, run, [found, found, missed])
    assert inject(Console(), trial, 4, without_known=True) == 1
    assert seeds == [0, 1, 2, 2, 2, 3, 0, 1]


def test_one_fault_is_injected_alone_and_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def attach(trace: Trace) -> Hooks:
        trace.header("test", {"kv": Pool(num_pages=4)})
        return Hooks(trace)

    def run(_: int) -> None:
        assert Engine().free(1) == 2

    place = (Engine, "free", "page + 1", "page + 2")
    trial = Trial("test", attach, run, [Defect("other", "", (place,)), Defect("off by one", "", (place,))])
    assert inject(Console(), trial, 1, without_known=False, fault="off by one") == 0
    printed = capsys.readouterr().out
    assert "off by one: MEM-FAILED" in printed and "other" not in printed and "1 of 1 injected faults" in printed
    with pytest.raises(NotInjected, match="no fault is called 'off'"):
        inject(Console(), trial, 1, without_known=False, fault="off")


def test_a_drive_counts_a_finding_apart_from_those_that_follow_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    def attach(trace: Trace) -> Hooks:
        trace.header("test", {"kv": Pool(num_pages=4)})
        hooks = Hooks(trace)

        def taken(*_: Any) -> None:
            for _again in range(3):
                hooks.emit(Take("a", "kv", [1]))

        hooks.hook(Engine, "free", after=taken)
        return hooks

    def run(_: int) -> None:
        Engine().free(1)

    assert drive(Console(), Trial("test", attach, run, []), 1, without_known=False) == 1
    assert "1 finding and 1 that follow from them" in capsys.readouterr().out


class PanicException(BaseException):
    """Rust code raises it through pyo3 when it panics."""


PanicException.__module__ = "pyo3_runtime"


def test_a_panic_is_an_error_of_the_engine(trace: CheckedTrace) -> None:
    class Panics:
        def step(self) -> None:
            raise PanicException("index out of bounds")

    hooks = Hooks(trace)
    hooks.watch(Panics, "step")
    with pytest.raises(PanicException):
        Panics().step()
    hooks.detach()
    assert trace.first is not None and "PanicException: index out of bounds" in describe(trace.first[1])
    hooks = Hooks(trace)
    assert hooks.guarded(Panics().step) is None
    assert hooks.problem is not None and "PanicException" in hooks.problem


def test_events_emitted_together_reach_the_trace_in_one_call_in_order_and_after_an_error_too() -> None:
    class Calls:
        def __init__(self) -> None:
            self.all: list[tuple[MemoryEvent, ...]] = []

        def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None: ...

        def emit(self, *events: MemoryEvent) -> None:
            self.all.append(events)

    trace = Calls()
    hooks = Hooks(trace)
    one, two, three, four = (Take("a", "kv", [page]) for page in range(4))
    with pytest.raises(KeyError), hooks.together():
        hooks.emit(one)
        hooks.emit(two, three)
        assert not trace.all
        raise KeyError
    hooks.emit(four)
    assert (trace.all, hooks.events) == ([(one, two, three), (four,)], 4)


def test_events_of_several_threads_are_emitted_one_at_a_time() -> None:
    class OneAtATime:
        inside = most = emitted = 0

        def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None: ...

        def emit(self, *events: MemoryEvent) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0)
            self.emitted += 1
            self.inside -= 1

    trace = OneAtATime()
    hooks = Hooks(trace)

    def emit() -> None:
        for page in range(1000):
            hooks.emit(Take("a", "kv", [page]))

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (trace.most, trace.emitted, hooks.events) == (1, 4000, 4000)


def test_a_page_that_is_not_full_is_a_promise_until_its_tokens_are_known() -> None:
    one, other = Run("a", 2), Run("b", 2)
    first = one.labels([1, 2, 3], 0, 2)
    assert first[1] == "a#1"
    known = other.labels([1, 2, 3, 4], 0, 2)
    assert known[0] == first[0]
    assert one.grown([1, 2, 3, 4]) == [Unify("a#1", known[1])]
    assert Run("c", 2).labels([9, 2, 3, 4], 0, 2)[1] != known[1]


def test_only_a_label_that_was_given_is_learnt() -> None:
    run = Run("a", 2)
    assert run.grown([1, 2, 3, 4]) == []
    assert run.labels([1, 2, 3, 4, 5], 0, 3)[2:] == ["a#2"]
    assert [learnt.label for learnt in run.grown([1, 2, 3, 4, 5, 6, 7, 8])] == ["a#2"]
