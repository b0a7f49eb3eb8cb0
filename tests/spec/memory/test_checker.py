"""Each rule of the memory model on the fewest events that break it, beside the same events done right; for both."""

import pytest

from kvconform.oracle.meaning import MakeChecker
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    Deliver,
    End,
    Event,
    Idle,
    Map,
    Publish,
    Release,
    Reserve,
    Send,
    Share,
    Take,
    Transfer,
    Unmap,
    Use,
)
from kvspec.rules import CODES
from tests.spec.memory.scenarios import BROKEN, POOLS, RIGHT, Found, copy, mapped, of, read, table, take, write


@pytest.mark.parametrize("name", BROKEN)
def test_a_scenario_breaks_a_rule_once(checker: MakeChecker, name: str) -> None:
    events, due = BROKEN[name]
    watching = checker(POOLS)
    assert [(finding.code, finding.event) for event in events for finding in watching.step(event)] == [due]


def test_each_code_has_a_scenario(checker: MakeChecker) -> None:
    """A free page that is published breaks two promises at once, so it is no scenario of one finding."""
    published = {finding.code for finding in checker(POOLS).step(Publish("kv", [1], ["k"]))}
    assert published == {"MEM-NAME/free", "MEM-NAME/unwritten"}
    assert {code for _, (code, _) in BROKEN.values()} | published == CODES.keys()


WITHOUT_A_REQUEST = (
    "MEM-COUNT",
    "MEM-NAME",
    "MEM-OVERWRITE",
    "MEM-ORDER",
    "MEM-AGREE",
    "MEM-ANNOUNCE",
    "MEM-RESERVE",
    "MEM-FAILED",
)
"""Rules that are about a page, or an operation, whatever holder has it."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_has_the_holder_that_it_speaks_of(checker: MakeChecker, name: str) -> None:
    watching, tables = checker(POOLS), dict[str | None, str]()

    def holder_of(event: Event) -> str | None:
        """For whom an event is, or what it uses first."""
        if isinstance(event, Begin):
            use = [*event.reads, *event.writes, *(to for _, to in event.copies)][0]
            return tables.get(use.table, use.holder)
        return "b" if isinstance(event, Transfer) else getattr(event, "holder", None)

    for event in BROKEN[name][0]:
        if isinstance(event, Map):
            tables[event.table] = event.holder
        for finding in watching.step(event):
            due = "a" if isinstance(event, Idle | End) else holder_of(event)
            assert finding.holder == (None if finding.rule in WITHOUT_A_REQUEST else due)


def test_a_finding_says_where_it_was_and_what_was_found(checker: MakeChecker) -> None:
    (finding,) = checker(POOLS).step(Release("a", "kv", [3], at="pool.py:7"))
    assert finding.at == "pool.py:7"
    assert (finding.code, finding.page, finding.holder) == ("MEM-RELEASE/not-held", 3, "a")


def test_a_complete_reader_is_not_checked_again_when_a_write_fails(found: Found) -> None:
    """It raced with the write; what it computed has left it already."""
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1)], [of("a", 2)])
    assert found(take("a", 1, 2), load, step, End(2), End(1, unwritten=[of("a", 1)]), Deliver(2, "a")) == [
        ("MEM-RACE", 3)
    ]


def test_a_slot_that_was_written_again_stays_whatever_was_written_beside_it(found: Found) -> None:
    one, other = of("a", 1, stop=1), of("a", 1, start=1, stop=2)
    again = [Begin(id, "s", writes=[use]) for id, use in ((1, one), (2, one), (3, other))]
    assert found(take("a", 1), *again, End(1, unwritten=[one]), Begin(4, "s", [one])) == []


def test_a_write_that_fails_late_takes_nothing_from_a_page_that_was_handed_out_since(found: Found) -> None:
    """Its new owner has not written it yet, but plans to, and lets it go unwritten."""
    late = [take("a", 1), Begin(1, "t", writes=[of("a", 1)]), Release("a", "kv", [1]), take("b", 1)]
    plan = [Share("c", "kv", [1]), Publish("kv", [1], ["k"], ["x"], planned=True, writer="b")]
    assert found(*late, *plan, End(1, unwritten=[of("a", 1)]), Release("b", "kv", [1])) == [("MEM-NAME", 8)]


def test_who_is_to_write_a_page_passes_that_on_with_it_and_not_with_a_pin(found: Found) -> None:
    planned = [
        take("a", 1),
        Share("a", "kv", [1], pin=True),
        Publish("kv", [1], ["k"], ["x"], planned=True, writer="a"),
    ]
    passed_on = [Transfer("a", "b", "kv", [1]), Release("b", "kv", [1]), Release("a", "kv", [1])]
    assert found(*planned, *passed_on) == [("MEM-NAME", 5)]


def test_padding_is_not_copied_and_is_read_without_a_request_alone(found: Found) -> None:
    assert found(take("a", 1), Begin(1, "s", copies=[(of(None, 8), of("a", 1))])) == [("MEM-USE", 2)]
    assert found(Begin(1, "s", [of(None, 8)])) == []
    assert found(Begin(1, "s", [of(None, 8, label="x")])) == [("MEM-USE", 1)], "a use that names a label has a holder"


def test_a_copy_of_what_is_meant_to_be_there_finds_it(found: Found) -> None:
    """From a page that says what it holds, and from a storage, which has whole pages or none."""
    filled_in_part: list[Event] = [take("a", 1, 2), Begin(1, "s", writes=[of("a", 1, label="x", stop=3)])]
    assert found(*filled_in_part, copy(2, of("a", 1, label="x"), of("a", 2))) == [("MEM-WRITTEN", 3)]
    assert found(take("a", 1), copy(1, Use(None, "disk", ["k"]), of("a", 1, stop=1))) == [("MEM-WRITTEN", 2)]


def test_tainted_results_are_delivered(found: Found) -> None:
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1])
    failed: list[Event] = [take("a", 1, 2), load, step, End(1, unwritten=[of("a", 1)])]
    assert found(*failed, Deliver(2, "a")) == [("MEM-DELIVER", 5)]
    assert found(*failed, Deliver(2, "b")) == []
    assert found(*failed, read(3, "a", 2), Deliver(3, "a")) == [("MEM-DELIVER", 6)]
    assert found(*failed[:3], read(3, "a", 2), failed[3], Deliver(3, "a")) == [("MEM-DELIVER", 6)]
    through = [Begin(3, "s", [Use("t")]), Deliver(3, "a"), Begin(4, "s", [Use("t")]), Deliver(4, "a")]
    assert found(*failed, table("t", "a", 2), *through) == [("MEM-DELIVER", 7), ("MEM-DELIVER", 9)]
    assert found(take("a", 1, 2), load, step, End(1), Deliver(2, "a")) == []


def test_a_copy_that_fails_taints_its_readers_even_where_nothing_is_known_of_its_source(checker: MakeChecker) -> None:
    """The pool reports no writes, so the slots of the source may hold anything: the target does not hold it."""
    watching = checker({"kv": Pool(4, 8, writes_reported=False)})
    both = [take("a", 1, 2), Begin(1, "s", copies=[(of("a", 1), of("a", 2))]), Begin(2, "s", [of("a", 2)])]
    events = (*both, End(2), End(1, unwritten=[of("a", 2)]), Deliver(2, "a"))
    assert [finding.code for event in events for finding in watching.step(event)] == []
    watching = checker({"kv": Pool(4, 8, writes_reported=False)})
    events = (*both, End(1, unwritten=[of("a", 2)]), End(2), Deliver(2, "a"))
    assert [finding.code for event in events for finding in watching.step(event)] == ["MEM-DELIVER/tainted"]


def test_a_result_is_tainted_as_long_as_a_host_takes_it_to_be_in_flight(found: Found) -> None:
    """One host sees the load end behind the step, then that it failed; of the step another host knows nothing."""
    load, step = Begin(1, "s", writes=[of("a", 1)]), Begin(2, "s", [of("a", 1)])
    seen: list[Event] = [take("a", 1), load, step, End(2), End(1, unwritten=[of("a", 1)]), Deliver(2, "a")]
    assert found(*seen) == []
    assert found(Send("m", host="p"), *seen) == [("MEM-DELIVER", 7)]


def test_padding_is_a_page_and_no_slot(checker: MakeChecker) -> None:
    """Page 0 is padding, and slot 0 of page 1 is none."""
    watching = checker({"kv": Pool(4, 8, padding=[0])})
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1), of(None, 1)], [of("a", 2), of(None, 0)], after=[1])
    events = (take("a", 1, 2), load, step, End(1, unwritten=[of("a", 1)]), read(3, "a", 2), Deliver(3, "a"))
    assert [finding.rule for event in events for finding in watching.step(event)] == ["MEM-DELIVER"]


@pytest.mark.parametrize("over", [write(3, "b", 2), copy(3, of("b", 3), of("b", 2))])
def test_a_write_over_tainted_results_is_not_tainted(found: Found, over: Begin) -> None:
    """The run that was to read the load is thrown out, and another one has its page, when it fails."""
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1])
    again = [Release("a", "kv", [2]), take("b", 2, 3), write(7, "b", 3), over, read(4, "b", 2)]
    failed = [take("a", 1, 2), load, step, *again, End(1, unwritten=[of("a", 1)])]
    assert found(*failed, Deliver(4, "b"), read(5, "b", 2), Deliver(5, "b")) == []
    assert found(*failed, Deliver(2, "a")) == [("MEM-DELIVER", 10)]
    part = [*failed[:3], Begin(3, "s", writes=[of("a", 2, stop=1)]), failed[-1]]
    assert found(*part, Begin(4, "s", [of("a", 2, stop=1)]), Deliver(4, "a")) == []
    assert found(*part, Begin(4, "s", [of("a", 2, start=1)]), Deliver(4, "a")) == [("MEM-DELIVER", 7)]


def test_what_was_written_since_stays_when_an_earlier_write_turns_out_to_have_failed(found: Found) -> None:
    """The page has gone to another run, which has written it in flight; or the same run has written a part again."""
    passed_on = [take("a", 1), write(1, "a", 1, "x"), Release("a", "kv", [1]), take("b", 1), write(2, "b", 1, "y")]
    named = [Publish("kv", [1], ["k"], ["y"]), End(1, unwritten=[of(None, 1)]), Release("b", "kv", [1])]
    assert found(*passed_on, *named, Share("b", "kv", [1], ["k"]), read(3, "b", 1, "y"), End(3), Deliver(3, "b")) == []
    part = Begin(2, "s", writes=[of("a", 1, stop=2)])
    again: list[Event] = [take("a", 1), write(1, "a", 1), part, End(1, unwritten=[of("a", 1)])]
    assert found(*again, Begin(3, "s", [of("a", 1, stop=2)]), End(3), Deliver(3, "a")) == []
    assert found(*again, Begin(3, "s", [of("a", 1, start=1)])) == [("MEM-WRITTEN", 5)]


def test_a_slot_after_content_of_another_place_has_its_own(found: Found) -> None:
    """A copy brought slot 1 of x to slot 0; slot 1 is then written through the table, and holds slot 1 of x."""
    events = [
        take("a", 1, 2),
        write(1, "a", 1, "x"),
        Begin(2, "s", copies=[(of("a", 1, start=1, stop=2), of("a", 2, stop=1))]),
        table("t", "a", 2, labels=["x"]),
        Begin(3, "s", writes=[Use("t", start=1, stop=2)]),
    ]
    assert found(*events, Begin(4, "u", [Use("t", start=1, stop=2)], after=[3])) == []
    assert found(*events, Begin(4, "u", [Use("t", stop=1)], after=[3])) == [("MEM-CONTENT", 6)]


def test_a_slot_after_tainted_content_is_none(found: Found) -> None:
    events: list[Event] = [
        take("a", 1, 2),
        table("t", "a", 2),
        Begin(1, "t", writes=[of("a", 1)]),
        Begin(2, "s", [of("a", 1)], [Use("t", stop=1)], after=[1]),
        End(1, unwritten=[of("a", 1)]),
        Begin(3, "s", writes=[Use("t", start=1, stop=2)]),
    ]
    assert found(*events, Begin(4, "s", [Use("t", start=1, stop=2)]), Deliver(4, "a")) == []
    assert found(*events, Begin(4, "s", [Use("t", stop=1)]), Deliver(4, "a")) == [("MEM-DELIVER", 8)]


@pytest.mark.parametrize("name", RIGHT)
def test_right(found: Found, name: str) -> None:
    assert found(*RIGHT[name]) == []


def test_a_finding_on_a_page_is_reported_once(found: Found) -> None:
    """A wrong read of a table is not reported again at each step."""
    steps = [Begin(id, "s", [Use(table="t")]) for id in range(2, 6)]
    broken: list[Event] = [take("a", 1), write(1, "a", 1, "x"), table("t", "a", 1, labels=["y"]), *steps]
    assert found(*broken) == [("MEM-CONTENT", 4)]


@pytest.mark.parametrize("parts", [[(0, 4), (4, 8)], [(4, 8), (0, 4)], [(0, 8), (4, 8)], [(4, 8), (0, 8)]])
def test_what_a_stream_has_looked_at_in_parts_it_does_not_look_at_again(
    checker: MakeChecker, parts: list[tuple[int, int]]
) -> None:
    """Nor when a page behind is exchanged."""
    wrong = [take("a", 1, 2, 3), write(1, "a", 1, "x"), write(2, "a", 2, "x"), write(3, "a", 3, "z")]
    watching = checker(POOLS)
    for event in (*wrong, table("t", "a", 1, 2, 3, labels=["y", "y", "z"])):
        assert watching.step(event) == []
    pages = [
        finding.page
        for id, (start, stop) in enumerate(parts, 4)
        for finding in watching.step(Begin(id, "s", [Use("t", start=start, stop=stop)]))
    ]
    assert sorted(map(str, pages)) == ["1", "2"]
    for event in (
        Begin(6, "s", [Use("t", stop=12)]),
        Map("t", "a", "kv", 2, [3], ["z"]),
        Begin(7, "s", [Use("t", stop=12)]),
    ):
        assert watching.step(event) == []


def test_a_use_of_nothing_is_well_formed(found: Found) -> None:
    for nothing in (Use("t", start=2, stop=2), Use("t", start=2, stop=2, labels=[])):
        assert found(take("a", 1), table("t", "a", 1), Begin(1, "s", [nothing], [nothing])) == []
    assert found(Reserve("a", "kv", 0)) == []


@pytest.mark.parametrize("reads_own_writes", [True, False])
def test_one_pass_sees_its_own_writes_in_one_pool_and_not_in_the_other(
    checker: MakeChecker, reads_own_writes: bool
) -> None:
    """Attention and a recurrent state in one operation: what was never written in the state spoils what leaves."""
    watching = checker({"kv": Pool(4), "states": Pool(reads_own_writes=reads_own_writes)})
    state = Use(pool="states", pages=[1], holder="a")
    both = Begin(1, "s", [of("a", 1), Use("t"), state], [of("a", 1), state])
    events = [take("a", 1), Take("a", "states", [1, 2]), Map("t", "a", "states", 0, [2]), both, Deliver(1, "a")]
    events.insert(3, Begin(0, "s", writes=[Use("t")]))
    found = [finding.rule for event in events for finding in watching.step(event)]
    assert found == ([] if reads_own_writes else ["MEM-WRITTEN", "MEM-DELIVER"])
    after = Begin(2, "s", [Use("t"), state], [Use("t", labels=["x"])])
    assert watching.step(after) == []
    through = [Map("u", "a", "states", 0, [3]), Begin(3, "s", [Use("u")], [Use("u")])]
    events = [Take("a", "states", [3]), *through]
    assert [one.rule for event in events for one in watching.step(event)] == (
        [] if reads_own_writes else ["MEM-WRITTEN"]
    )


def test_tainted_content_is_tainted_where_it_is_copied_to_another_slot(found: Found) -> None:
    failed: list[Event] = [
        take("a", 1, 2),
        Begin(1, "t", writes=[of("a", 1)]),
        Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1]),
        End(1, unwritten=[of("a", 1)]),
        take("b", 3),
        copy(3, of("a", 2, stop=2), of("b", 3, start=2)),
        Begin(4, "s", [of("b", 3, start=2)]),
        End(4),
    ]
    assert found(*failed, Deliver(4, "b")) == [("MEM-DELIVER", 9)]


def test_a_copy_that_names_its_content_is_not_tainted_where_its_operation_wrote_before(found: Found) -> None:
    """One operation writes a page for `b` of what it did not find, and copies something else there, for `a`."""
    both: list[Event] = [take("b", 1, 2), Share("a", "kv", [2]), take("a", 3), write(1, "a", 3, "x")]
    step = Begin(2, "s", [of("b", 1)], [of("b", 2)], [(of("a", 3), of("a", 2, label="x"))], reads_own_writes=False)
    assert found(*both, step, read(3, "a", 2, "x"), Deliver(3, "a"), Deliver(2, "b")) == [
        ("MEM-WRITTEN", 5),
        ("MEM-DELIVER", 8),
    ]


def test_a_copy_through_a_hole_is_a_finding_and_so_is_nothing_copied_over_what_a_name_finds(found: Found) -> None:
    through = [*mapped("a", 1, 2), take("b", 3, 4), Unmap("t", 0, 1), copy(2, Use("t"), of("b", 3, 4))]
    assert found(*through) == [("MEM-USE", 6)]
    nowhere: list[Event] = [take("a", 1), copy(1, Use("t"), of("a", 1, label="x")), read(2, "a", 1)]
    assert found(*nowhere) == [("MEM-USE", 2), ("MEM-WRITTEN", 3)]
    named: list[Event] = [take("a", 1, 2), write(1, "a", 2, "x"), Publish("kv", [2], ["k"], ["x"])]
    assert found(*named, copy(2, of("a", 1), of("a", 2))) == [("MEM-OVERWRITE", 4)]


def test_a_copy_of_nothing_is_no_write_of_the_same(found: Found) -> None:
    unordered: list[Event] = [take("a", 1, 2), write(1, "a", 2, "x", stream="t"), copy(2, of("a", 1), of("a", 2))]
    assert found(*unordered) == [("MEM-RACE", 3)]
    part = Begin(3, "t", writes=[of("a", 1, label="x", stop=2)])
    assert found(*unordered[:2], part, End(3), Begin(1, "t", writes=[of("a", 2, label="x")]), unordered[2]) == [
        ("MEM-RACE", 6)
    ]


def test_a_labelled_write_counts_beside_one_without_a_label(found: Found) -> None:
    """Of two copies over them the second brings something else."""
    targets, source = [of("a", 1, label="x"), of("a", 1)], of("a", 2)
    copies = [(source, of("a", 1, label="x")), (source, of("a", 1, label="y"))]
    both = [take("a", 1, 2), write(1, "a", 2), Begin(2, "s", writes=targets, copies=copies)]
    assert found(*both) == [("MEM-RACE", 3)]
