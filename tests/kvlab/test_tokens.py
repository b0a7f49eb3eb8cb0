"""The token oracle: each case of its rule, and what is none."""

from collections.abc import Callable

import pytest

from kvcheck import Finding
from kvlab.tokens import CODES, EOS, RULE, Tokens, describe

PROMPT = [3, 1, 4]


class Watched:
    """One run whose requests `a` and `b` have the same prompt, and whose launches are reported step by step."""

    def __init__(self, ends: float = 0.0) -> None:
        self.found: list[Finding] = []
        self.tokens = Tokens("a run", self.found.append, ends=ends, longest=40)
        for name in "ab":
            self.tokens.arrive(name, PROMPT, 4)

    @property
    def said(self) -> list[str]:
        return [describe(finding) for finding in self.found]

    def launched(self, name: str, count: int) -> list[int]:
        """The tokens of so many launches."""
        start = len(self.tokens._requests[name].text)
        return [self.tokens.sample(name, start + step) for step in range(count)]


def test_what_is_due_is_no_finding() -> None:
    run = Watched()
    tokens = run.launched("a", 5)  # one more launch was in flight at the end
    run.tokens.begin("a", 3, 3, "launch")
    run.tokens.consume("a", 0, PROMPT + tokens[:2], "launch")
    run.tokens.answer("a", tokens[:1], "stream")
    run.tokens.answer("a", tokens[1:4], "stream", "done")
    run.tokens.answer("b", [], "stream", "abort")
    assert run.said == []
    assert run.tokens.text("a") == PROMPT + tokens[:4]


def test_equal_seeds_sample_the_same_and_half_of_the_equal_prompts_do() -> None:
    one, other = Tokens(7), Tokens(7)
    for name in map(str, range(40)):
        one.arrive(name, PROMPT, 1)
        other.arrive(name, PROMPT, 1)
    sampled = [one.sample(str(name), 3) for name in range(40)]
    assert sampled == [other.sample(str(name), 3) for name in range(40)]
    assert 10 < len(set(sampled)) < 35


Wrong = Callable[[Watched], None]


def consumed(run: Watched) -> None:
    run.launched("a", 1)
    run.tokens.consume("a", 2, [4, run.launched("b", 1)[0]], "launch")


def no_token(run: Watched) -> None:
    run.tokens.consume("a", 2, [4, -1], "launch")


def position(run: Watched) -> None:
    run.tokens.begin("a", 3, 4, "launch")


def lost(run: Watched) -> None:
    run.tokens.answer("a", run.launched("a", 3)[::2], "stream")


def lost_at_the_end(run: Watched) -> None:
    run.tokens.answer("a", run.launched("a", 3), "stream", "done")


def doubled(run: Watched) -> None:
    tokens = run.launched("a", 4)
    run.tokens.answer("a", [tokens[0], *tokens], "stream", "done")


def swapped(run: Watched) -> None:
    run.launched("a", 1)
    run.tokens.answer("a", run.launched("b", 2)[1:], "stream")


def other(run: Watched) -> None:
    run.launched("a", 1)
    run.tokens.answer("a", [5], "stream")


def late(run: Watched) -> None:
    run.tokens.answer("a", run.launched("a", 5), "stream")


def after_an_abort(run: Watched) -> None:
    run.tokens.answer("a", [], "stream", "abort")
    run.tokens.answer("a", run.launched("a", 1), "stream")


SAID: dict[Wrong, tuple[str, str]] = {
    consumed: ("consumed", "a launch takes token 3 of b where a has token 3 of a, at position 3"),
    no_token: ("no-token", "a launch takes position 3 of a, where it has no token: it has 3 tokens"),
    position: ("position", "a launch begins at position 4 of a, which goes on at 3"),
    lost: ("lost", "a is answered token 5 of a before token 4 of a, which it never gets"),
    lost_at_the_end: ("lost", "a is answered its end before a token that no launch sampled, which it never gets"),
    doubled: ("doubled", "a is answered token 3 of a again"),
    swapped: ("swapped", "a is answered token 4 of b in the place of token 3 of a"),
    other: ("other", "a is answered token 5 in the place of token 3 of a"),
    late: ("late", "a is answered token 7 of a after its end"),
    after_an_abort: ("late", "a is answered token 3 of a after its end"),
}


@pytest.mark.parametrize("wrong", SAID, ids=lambda wrong: wrong.__name__)
def test_what_is_not_due_is_one_finding(wrong: Wrong) -> None:
    run = Watched()
    run.tokens._requests["a"].voice, run.tokens._requests["b"].voice = "a", "b"
    wrong(run)
    case, sentence = SAID[wrong]
    assert [(finding.code, finding.rule) for finding in run.found] == [(f"{RULE.id}/{case}", RULE.id)]
    assert run.said == [sentence]


def test_every_case_has_a_sentence_here() -> None:
    assert {f"{RULE.id}/{case}" for case, _ in SAID.values()} == CODES.keys()


def test_after_a_finding_the_oracle_goes_on_as_if_the_engine_were_right() -> None:
    run = Watched()
    tokens = run.launched("a", 4)
    run.tokens.answer("a", [tokens[1], tokens[1], 5, tokens[3]], "stream", "done")
    assert [finding.code.partition("/")[2] for finding in run.found] == ["lost", "doubled", "other"]


def test_the_end_token_ends_a_request_that_it_may_end() -> None:
    run = Watched(ends=1.0)
    run.tokens.answer("a", run.launched("a", 1), "stream", "done")
    run.tokens.arrive("c", PROMPT, 2, ends=False)
    run.tokens.answer("c", run.launched("c", 2), "stream", "done")
    assert run.said == []
    run.tokens.answer("c", [EOS], "stream")
    assert run.said == ["c is answered the end token after its end"]


def test_a_turn_goes_on_from_all_that_was_answered_but_for_the_last_token() -> None:
    run = Watched()
    tokens = run.launched("a", 5)
    run.tokens.turn("a", [9], 1)
    run.tokens.answer("a", tokens[:4], "stream", "done")
    run.tokens.consume("a", 5, [tokens[2], 9], "launch")
    run.tokens.answer("a", run.launched("a", 1), "stream", "done")
    run.tokens.turn("a", [8], 1)
    run.tokens.consume("a", 6, [9, 8], "launch")
    assert run.said == []


def test_an_engine_may_have_less_room_than_was_asked_for() -> None:
    run = Watched()
    run.tokens.answer("a", run.launched("a", 2), "stream", "done", most=2)
    run.tokens.arrive("c", range(1, 39), 9)
    run.tokens.answer("c", run.launched("c", 2), "stream", "done")
    assert run.said == []
