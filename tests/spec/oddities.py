"""Odd verdicts of the model, whatever `verdicts` says: the model is checked here, not compared.

- An answer that was changed is allowed although no implementation may choose it.
- A finding or a refusal is not reported whole: its rule, a sentence, what was expected against what was observed.
- A finding expects a value that is not in the right answer, or observed one that is not in the reported answer.
- An answer that the model makes itself leaves something out.
- One operation on one request is counted more than once.
"""

import ast
import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import asdict

from kvconform.oracle import CHOICES
from kvspec.events import Answer, Config, PublishAnswer, Refusal, ReleaseAnswer
from kvspec.pages import expand
from kvspec.rules import RULES, Violation
from tests.spec.findings import Outcome

ALLOWED = re.compile(
    # A value that is not reported is not checked; runs, and the order of freed pages, say the same.
    r"on the way|nothing reported|(.* )?not reported|(.*: )?(as runs|backwards)|.* of a stranger: none"
    # An operation that must be refused may be refused for a reason of its own, or for more than is reported.
    r"|refused, (as it should be|without a reason|for another rule(, a page and a row short)?|\w+_short one less)"
    # The implementation chooses which of the free rows, pages and states a request gets.
    r"|row of .*: another free row|(rows|pages|window pages|state slots) of two requests: swapped"
    # So is withholding a row as long as any launch is in flight,
    r"|one row too few free and one too many withheld|refused, rows_short one more"
    # evicting more than asked, as long as no request needs it,
    r"|(window_)?evicted: a (cached (window )?page|page below a cached one) as well"
    # publishing a page or a state later, which of its slots it gives the store, and how a tombstone comes back.
    r"|protected_len a page less|no state for the store|a copy in a free state slot"
    r"|state slot number \d+ of its own for the store|the tombstone freed in place of the page that revives it"
    # A slot may give back what is past its committed tokens now, or with the next match.
    r"|freed: a page of a request, past what is committed as well"
    # An engine that samples itself may have sampled anything.
    r"|tokens of its own: (as they were handed in|others)"
    # A step ahead of a verify may be refused for that verify, so whatever is short.
    r"|refused, a (page|row|state slot|window page) short"
    # The end of a row, within its last page, and rows without a holder, are of no consequence.
    r"|rows, row -?\d+: (a slot (less|more)|there)|sessions, .*: allocated_len one (less|more)"
)
"""Changes of a right answer that may be allowed."""

NOTHING_EXPECTED = re.compile(
    r"page \d+ (was evicted|of the prefix store was freed)|.* was evicted|pages were given to|rows were given to"
    r"|.* should hold no row|row \d+ is reported, but|rows are free that a launch .* reads|.*: some are there twice"
    r"|the store took|page \d+ is published, but does not hold its tokens|.* the state after 0 tokens"
    r"|the operation was carried out, but must be refused: .*; page \d+ was freed, but"
)
"""Sentences that say all: this should not be there."""
NOTHING_OBSERVED = re.compile(
    r".* should hold a row|row \d+ is held, but not reported|the store did not take the state|.* was evicted"
)
"""Sentences that say all: this should be there, or not be done."""

ONE_OF_SEVERAL = re.compile(
    r".* was given (to|row|out)|.* keeps a state in slot|the window of .* was evicted up to"
    r"|the store (took state slot|did not take the state)|the window pages of evicted pages|too few .* were evicted"
    r"|page \d+ was freed, but it still holds|a token came for|the launch covered the last position"
    r"|(state slot|window page) \d+ was freed, but it (belongs to request|is behind)"
)
"""Sentences that expect a choice, or what is due besides a choice that was made otherwise."""
CHOICE = re.compile(
    r"a free (page|window page|state slot|row)|a page border in \d+\.\.\d+|[][\d, -]+|at least \d+"
    r"|a token for each that it sampled for"
)
OFTEN_CHECKED = {
    "snapshot": {
        *("DATA-2", "LEN-1", "MAMBA-1", "ROW-1", "ROW-2", "ROW-4", "SESS-2", "SPEC-2", "STORE-2", "SWA-2", "TAIL-1"),
    },
    "cache_unfinished": {"DATA-1", "STORE-5"},
    "close_session": {"SESS-4"},
    "extend": {"ROW-1"},
    "finish": {"DATA-1"},
    "match_prefix": {"MAMBA-3", "SESS-2", "STORE-4", "SWA-4"},
}
"""Rules that check one operation several times, where it is on one request."""
OF_A_STATE = re.compile(r"no state|the state after \d+ tokens")

OFTEN = {("reached", "tombstone left"), ("chosen", "some of several evicted")}
"""Counters that an operation on one request may raise several times: it has several pages, or evicts from two pools."""
NOTHING_REPORTED = {
    "ACC-1",
    "ACC-2",
    "ACC-3",
    "LEN-1",
    "MAMBA-3",
    "ROW-1",
    "SESS-2",
    "SESS-4",
    "STORE-4",
    "STORE-5",
    "SWA-4",
}
"""Rules that may be unchecked several times where nothing is reported."""


NEVER_DUE = {"state_cached", "state_taken", "tokens"}
"""Values that an answer reports where there is something to report, and only then."""


def oddities(outcome: Outcome, config: Config) -> Iterator[str]:
    """The oddities of `outcome`, each in a sentence."""
    if outcome.answer is not None:
        for name, value in asdict(outcome.answer).items():
            hybrid = ("window" in name and not config.sliding_window) or ("state" in name and not config.num_states)
            never = name in NEVER_DUE or (name == "evicted_len" and isinstance(outcome.answer, PublishAnswer))
            if value is None and not hybrid and not never:
                yield f"{outcome.op}: the answer does not report {name}"
            if value is not None and hybrid:
                yield f"{outcome.op}: the answer reports {name}, and there is none"
    # An allocator that estimates may refuse what fits.
    estimated = config.room == "estimated" and outcome.change == "refused, for CAP-1"
    if outcome.sort == "allowed" and not estimated and not ALLOWED.fullmatch(outcome.change):
        yield f"{outcome.op}: allowed, though {outcome.change}"
    match outcome.raised:
        case Refusal(refused=refused):
            if refused.rule not in RULES:
                yield f"a refusal names the rule {refused.rule}"
            if not is_sentence(refused.reason):
                yield f"a refusal says {refused.reason!r}"
        case Violation():
            yield from half_said(outcome.raised)
            if outcome.reported is not None and outcome.right is not None:
                yield from _misquoted(outcome.raised, outcome.reported, outcome.right, config)
    many = {
        "checked": OFTEN_CHECKED.get(outcome.op.partition("(")[0], ()),
        "unchecked": NOTHING_REPORTED if outcome.change == "nothing reported" else (),
    }
    of_several_requests = re.search(r"[\[{].*'.*'.*'", outcome.op)
    for (counter, what), times in outcome.counted.items():
        if what not in {"checked": RULES, "unchecked": RULES, "chosen": CHOICES}.get(counter, (what,)):
            yield f"{outcome.op}: {counter} {what} is counted, and unknown"
        once = not (of_several_requests or (counter, what) in OFTEN or what in many.get(counter, ()))
        if times < 0 or (times > 1 and once):
            yield f"{outcome.op}: {counter} {what} is counted {times} times"


def half_said(finding: Violation) -> Iterator[str]:
    """The parts that a finding lacks."""
    what, of_the_checker = finding.what, finding.rule.id.startswith("MEM")
    if not (of_the_checker or is_sentence(what)):
        yield f"a finding says {what!r}"
    if finding.expected is None and not of_the_checker and not NOTHING_EXPECTED.match(what):
        yield f"{what}: nothing is said to be expected"
    if finding.observed is None and not NOTHING_OBSERVED.match(what):
        yield f"{what}: nothing is said to be observed"


def _misquoted(finding: Violation, reported: Answer, right: Answer, config: Config) -> Iterator[str]:
    """The parts of a finding on two answers that neither of them has."""
    expected, observed = finding.expected, finding.observed
    also = [re.match(r"also (.*)", str(one)) for one in (expected, observed)]
    if any(also):
        differ = [set(expand(ast.literal_eval(match[1]))) if match else set() for match in also]
        if differ not in [[one - other, other - one] for one, other in _lists(right, reported)]:
            yield f"{finding}: expected {expected}, observed {observed}, which is not how the answers differ"
        return
    if str(expected) == str(observed) and expected is not None:
        yield f"{finding}: just that is expected: {expected}"
    later = isinstance(right, ReleaseAnswer) and not right.freed  # what a slot has over its tokens goes now or then
    choice = (later or ONE_OF_SEVERAL.match(finding.what)) and CHOICE.fullmatch(str(expected))
    if expected not in (None, f"0..{config.num_rows - 1}") and not choice and not _says(right, expected):
        yield f"{finding}: expected {expected}, but the right answer is {right}"
    part_of_it = OF_A_STATE.fullmatch(str(observed)) or finding.what.startswith("the page borders whose states")
    if observed is not None and not _says(reported, observed) and not part_of_it:
        yield f"{finding}: observed {observed}, but the answer was {reported}"


def _lists(one: object, other: object) -> Iterator[tuple[set[int], set[int]]]:
    """The numbers in lists that two answers have in the same place."""
    match one, other:
        case msgspec.Struct(), msgspec.Struct():
            for part, its in zip(asdict(one).values(), asdict(other).values(), strict=True):
                yield from _lists(part, its)
        case list(), list():
            yield set(expand(one)), set(expand(other))
        case dict(), dict():
            for name in one.keys() & other.keys():
                yield from _lists(one[name], other[name])


def _says(answer: Answer, value: object) -> bool:
    """Whether an answer has a value in it, or a list of so many numbers; a holder without an entry is given nothing."""
    said = _plain(value)
    return value in (0, []) or any(said == _plain(part) for part in _parts(answer))


def _plain(value: object) -> object:
    """A list in order, and the number that stands alone in one."""
    if isinstance(value, set | list) and all(isinstance(one, int) for one in value):
        return sorted(value) if len(value) != 1 else next(iter(value))
    return value


def _parts(part: object) -> Iterator[object]:
    """All that is reported, from the whole to each number."""
    yield part
    match part:
        case msgspec.Struct():
            yield from (inner for value in asdict(part).values() for inner in _parts(value))
        case list():
            numbers = expand(part)
            yield from (numbers, len(numbers), *numbers)
        case dict():
            yield from (set(part), len(part), *part)
            yield from (inner for value in part.values() for inner in _parts(value))


def is_sentence(text: object) -> bool:
    """Whether it begins as what follows a colon does, does not shout, and has no word in large and small letters."""
    odd = r"[A-Z]{2} [A-Z]{2}|[A-Z]{2}[a-z]|[a-z][A-Z]{2}"
    return isinstance(text, str) and bool(re.match(r"-?[a-z0-9]", text)) and not re.search(odd, text)
