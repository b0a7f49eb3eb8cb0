"""Steps that repeat are shown twice, with how often they came between."""

from kvconform.findings.finding import Moment
from kvconform.findings.folding import LEAST, Fold, folded


def shown(*says: str, breaks: str = "") -> list[str]:
    moments = [Moment(step, 0, {}, one, breaks=breaks if one == says[-1] else "") for step, one in enumerate(says, 1)]
    return [str(one) if isinstance(one, Fold) else one.says for one in folded(moments)]


def test_the_first_and_the_last_time_stay() -> None:
    each = [f"r{number} {does} page {number}." for number in range(6) for does in ("takes", "frees")]
    assert shown("Begin.", *each, "End.") == [
        "Begin.",
        *each[:2],
        "... these 2 lines 4 more times, with other numbers ...",
        *each[-2:],
        "End.",
    ]


def test_little_is_not_folded() -> None:
    few = ["The same."] * (LEAST - 1)
    assert shown(*few) == few


def test_lists_of_pages_are_numbers_too() -> None:
    assert len(shown("Pages 1..3.", "Pages 1, 7..9.", "Pages 4.", "Pages 5, 6, 8.", "Pages 2.")) == 3


def test_an_event_that_breaks_a_rule_is_never_folded() -> None:
    same = [f"r takes page {number}." for number in range(8)]
    assert shown(*same, breaks="MEM-TAKE")[-1] == same[-1]
    assert len(shown(*same, breaks="MEM-TAKE")) == 4
