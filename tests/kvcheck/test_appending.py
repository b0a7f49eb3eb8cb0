"""Operations that only add a slot are counted; what would find something new is not."""

from collections.abc import Callable

import pytest

from kvcheck import Checker
from kvcheck.appending import Appending
from kvspec.memory import Pool
from kvspec.memory.events import Begin, Event, Map, Release, Take, Unmap, Use

STREAM = "forward"
FILL = Begin(4, STREAM, [], [Use("table", start=7, stop=8)])
UNREAD: list[Event] = [Release("a", "kv", [1]), Begin(4, STREAM, [], [Use("table", start=5, stop=6)])]


def checker_after(*more: Event, start: int = 0, written: int = 5) -> Checker:
    """A holder of two pages of four slots, and of a row; the first slots are written."""
    checker = Checker({"kv": Pool(4, 8), "rows": Pool(8, 2, label_size=4)})
    for event in (
        Take("a", "kv", [1, 2]),
        Map("table", "a", "kv", 0, [1, 2], ["x", "y"]),
        Take("a", "rows", [1]),
        Map("row", "a", "rows", 0, [1]),
        Begin(1, STREAM, [], [Use("row", stop=8, labels=["1", "2"])]),
        Begin(2, STREAM, [], [Use("table", start=start, stop=2)]),
        Begin(
            3,
            STREAM,
            [Use("row", stop=8), Use("table", None, [], start, written)],
            [Use("table", None, [], 2, written)],
        ),
        *more,
    ):
        assert checker.step(event) == []
    return checker


def test_what_is_counted_is_what_the_operations_do_one_by_one() -> None:
    counted, alone = checker_after(), checker_after()
    appending = Appending(counted.state, STREAM)
    assert appending.admit("table", "row", 5)
    for number, at in ((4, 5), (5, 6)):
        counted.step(Begin(number, STREAM))
        appending.count()
        reads = [Use("row", stop=8), Use("table", stop=at + 1)]
        alone.step(Begin(number, STREAM, reads, [Use("table", start=at, stop=at + 1)]))
    assert counted.checked == alone.checked
    assert counted.state.pools["kv"].pages != alone.state.pools["kv"].pages
    appending.leave("table")
    assert counted.state.pools["kv"].pages == alone.state.pools["kv"].pages
    assert counted.state.tables["table"].views[STREAM].high == alone.state.tables["table"].views[STREAM].high == 7


@pytest.mark.parametrize(
    ("why", "checker", "stream", "at"),
    [
        ("it leaves a slot out", checker_after, STREAM, 6),
        ("it writes a slot again", checker_after, STREAM, 4),
        ("another stream has not looked", checker_after, "other", 5),
        ("the page is full", lambda: checker_after(FILL, written=7), STREAM, 8),
        ("a page has changed", lambda: checker_after(Release("a", "kv", [1])), STREAM, 5),
        ("a page has changed, and was not read since", lambda: checker_after(*UNREAD), STREAM, 6),
        ("the beginning was never read", lambda: checker_after(start=1), STREAM, 5),
        ("there is no row", lambda: checker_after(Unmap("row")), STREAM, 5),
        ("the row has changed", lambda: checker_after(Release("a", "rows", [1])), STREAM, 5),
        ("the table is unknown", lambda: Checker({"kv": Pool(4, 8)}), STREAM, 5),
    ],
)
def test_what_may_find_something_new_is_not_counted(
    why: str, checker: Callable[[], Checker], stream: str, at: int
) -> None:
    assert not Appending(checker().state, stream).admit("table", "row", at), why
