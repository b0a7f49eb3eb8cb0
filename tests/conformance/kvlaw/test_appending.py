"""Operations that only add a slot are counted; what would find something new is not."""

from collections.abc import Callable

import pytest

from kvlaw import Law
from kvlaw.appending import Appending
from kvspec.memory import Pool
from kvspec.memory.events import Begin, End, Event, Map, Release, Take, Unmap, Use

STREAM = "forward"
FILL = Begin(4, STREAM, [], [Use("table", start=7, stop=8)])
IN_IT = Begin(4, STREAM, [], [Use(None, "kv", [2], 0, 1, ["y"], "a")])
UNREAD: list[Event] = [Release("a", "kv", [1]), Begin(4, STREAM, [], [Use("table", start=5, stop=6)])]


def law_after(*more: Event, start: int = 0, written: int = 5, row: int = 8) -> Law:
    """A holder of two pages of four slots, and of a row; the first slots are written."""
    law = Law({"kv": Pool(4, 8), "rows": Pool(16, 2, label_size=4)})
    for event in (
        Take("a", "kv", [1, 2]),
        Map("table", "a", "kv", 0, [1, 2], ["x", "y"]),
        Take("a", "rows", [1]),
        Map("row", "a", "rows", 0, [1]),
        Begin(1, STREAM, [], [Use("row", stop=row, labels=["1", "2", "3"][: row // 4])]),
        Begin(2, STREAM, [], [Use("table", start=start, stop=2)]),
        Begin(
            3,
            STREAM,
            [Use("row", stop=row), Use("table", None, [], start, written)],
            [Use("table", None, [], 2, written)],
        ),
        *more,
    ):
        assert law.step(event) == []
    return law


def read_beyond() -> Law:
    """The same, and more was read than is written: that is found once."""
    law = law_after(written=4)
    assert [found.rule for found in law.step(Begin(4, STREAM, [Use("table", stop=6)]))] == ["MEM-WRITTEN"]
    return law


def test_what_is_counted_is_what_the_operations_do_one_by_one() -> None:
    counted, alone = law_after(), law_after()
    appending = Appending(counted.state, STREAM)
    assert appending.admit("table", "row", 5)
    for number, at in ((4, 5), (5, 6)):
        counted.step(Begin(number, STREAM))
        appending.count()
        reads = [Use("row", stop=8), Use("table", stop=at + 1)]
        alone.step(Begin(number, STREAM, reads, [Use("table", start=at, stop=at + 1)]))
    assert counted.judged == alone.judged
    assert counted.state.pools["kv"].pages != alone.state.pools["kv"].pages
    appending.leave("table")
    assert counted.state.pools["kv"].pages == alone.state.pools["kv"].pages
    assert counted.state.tables["table"].views[STREAM].high == alone.state.tables["table"].views[STREAM].high == 7


@pytest.mark.parametrize(
    ("why", "law", "stream", "at"),
    [
        ("it leaves a slot out", law_after, STREAM, 6),
        ("it writes a slot again", law_after, STREAM, 4),
        ("another stream has not looked", law_after, "other", 5),
        ("the page is full", lambda: law_after(FILL, written=7, row=12), STREAM, 8),
        ("a page has changed", lambda: law_after(Release("a", "kv", [1])), STREAM, 5),
        ("a page has changed, and nobody has read it since", lambda: law_after(*UNREAD), STREAM, 6),
        ("nobody has read the beginning", lambda: law_after(start=1), STREAM, 5),
        ("there is no row", lambda: law_after(Unmap("row")), STREAM, 5),
        ("the row has changed", lambda: law_after(Release("a", "rows", [1])), STREAM, 5),
        ("nobody knows the table", lambda: Law({"kv": Pool(4, 8)}), STREAM, 5),
    ],
)
def test_what_may_find_something_new_is_not_counted(why: str, law: Callable[[], Law], stream: str, at: int) -> None:
    assert not Appending(law().state, stream).admit("table", "row", at), why


def test_what_opens_a_page_and_is_passed_by_is_what_the_operation_does() -> None:
    counted, alone = law_after(written=4), law_after(written=4)
    appending = Appending(counted.state, STREAM)
    assert appending.opens("table", "row", 4) and appending.pass_by(4, [("table", 4)])
    reads = [Use("row", stop=8), Use("table", stop=5)]
    for event in (Begin(4, STREAM, reads, [Use("table", start=4, stop=5)]), End(4)):
        assert alone.step(event) == []
    assert appending.admit("table", "row", 5)
    one, other = counted.state, alone.state
    assert (one.judged, one.event, one.pools["kv"].pages) == (other.judged, other.event, other.pools["kv"].pages)
    assert one.tables["table"].views[STREAM].high == other.tables["table"].views[STREAM].high == 5
    assert (one.clocks.host, one.clocks.oldest) == (other.clocks.host, other.clocks.oldest)
    assert one.clocks.flights == other.clocks.flights == {}


@pytest.mark.parametrize(
    ("why", "law", "stream", "at"),
    [
        ("it begins no page", law_after, STREAM, 5),
        ("it begins no page, and nothing is in that", read_beyond, STREAM, 6),
        ("it writes a page again", lambda: law_after(written=8), STREAM, 4),
        ("it leaves slots out", lambda: law_after(written=3), STREAM, 4),
        ("there is no page", lambda: law_after(written=8, row=12), STREAM, 8),
        ("another stream has not looked", lambda: law_after(written=4), "other", 4),
        ("something is in it", lambda: law_after(IN_IT, written=4), STREAM, 4),
        ("it is nobody's", lambda: law_after(Release("a", "kv", [2]), written=4), STREAM, 4),
        ("nobody has read the beginning", lambda: law_after(start=1, written=4), STREAM, 4),
        ("the row ends before it", lambda: law_after(written=4, row=4), STREAM, 4),
        ("there is no row", lambda: law_after(Unmap("row"), written=4), STREAM, 4),
        ("nobody knows the table", lambda: Law({"kv": Pool(4, 8)}), STREAM, 4),
    ],
)
def test_what_may_find_something_new_is_not_passed_by(why: str, law: Callable[[], Law], stream: str, at: int) -> None:
    assert not Appending(law().state, stream).opens("table", "row", at), why


def test_nothing_is_passed_by_while_another_stream_has_an_operation_in_flight() -> None:
    assert not Appending(law_after(Begin(4, "other"), written=4).state, STREAM).pass_by(5, [])
