"""The token oracle of the drivers: each launch consumes, and each client gets, exactly the expected tokens.

The stub for a model samples a hash of the run's seed, the request and the position, so every token is known before the
engine samples it. `Tokens` compares two things with these: the tokens and positions in the engine's own input of a
launch, and the tokens that a client gets. A sampled token except the end token encodes its request and position, so a
wrong one shows where it comes from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from kvcheck import Finding, words
from kvspec.rules import Rule, rule_of

RULE = Rule(
    "DRIVE-TOKEN",
    "each-token-once-to-its-client",
    "A launch consumes the tokens that its requests have at its positions, and a client is answered each of its "
    "tokens, once, in order, and nothing else.",
    "A token that is lost, doubled or another request's is a wrong answer, and no rule of memory is broken by it.",
    "26815",
)
"""The drivers' own rule: a driver knows the expected tokens, a recording does not."""

CODES = {
    f"{RULE.id}/consumed": "a launch takes {0.found} where {0.holder} has {0.expected}, at position {0.slot}",
    f"{RULE.id}/no-token": "a launch takes position {0.slot} of {0.holder}, where it has no token: it has {0.expected}",
    f"{RULE.id}/position": "a launch begins at position {0.found} of {0.holder}, which goes on at {0.expected}",
    f"{RULE.id}/lost": "{0.holder} is answered {0.found} before {0.expected}, which it never gets",
    f"{RULE.id}/doubled": "{0.holder} is answered {0.found} again",
    f"{RULE.id}/swapped": "{0.holder} is answered {0.found} in the place of {0.expected}",
    f"{RULE.id}/other": "{0.holder} is answered {0.found} in the place of {0.expected}",
    f"{RULE.id}/late": "{0.holder} is answered {0.found} after its end",
}
"""Case of the rule -> the sentence about its finding."""

EOS = 0
FIRST = 1 << 10
"""Sampled tokens except the end token begin here; the tokens of prompts are smaller."""

Reason = Literal["", "done", "abort"]
"""How an answer ends a request, or a turn of a session: not at all, by itself, or by an abort."""


def describe(finding: Finding) -> str:
    """A finding of a drive in one sentence."""
    return CODES[finding.code].format(finding) if finding.rule == RULE.id else words.describe(finding)


def ignored(finding: Finding) -> None:
    """Ignore a finding."""


@dataclass
class _Turn:
    """A turn of a client."""

    prompt: Sequence[int]
    most: int
    ends: bool


@dataclass
class _Request:
    """The tokens for one client: `text` is the prompt and the sampled tokens; the client has it up to `answered`."""

    voice: object
    """Requests with the same voice and seed sample the same tokens."""
    text: list[int]
    first: int
    """The length of the prompt."""
    turn: _Turn
    answered: int
    ended: bool = False
    turns: list[_Turn] = field(default_factory=list)
    """Requested turns that have not begun."""


class Tokens:
    """The tokens of one run. `report` takes the findings."""

    def __init__(
        self,
        seed: object,
        report: Callable[[Finding], None] = ignored,
        *,
        ends: float = 0.05,
        size: int = 1 << 29,
        longest: int = 1 << 29,
    ) -> None:
        """`ends`: how often a token is the end token; `size`: of the vocabulary; `longest`: tokens of a context."""
        self.seed, self._report, self._ends, self._size = seed, report, ends, size
        self._longest = longest
        self._requests: dict[str, _Request] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self.texts: list[list[int]] = []
        """Prompts and answers of requests and turns that ended by themselves: chats continue them."""

    # Expected tokens

    def arrive(self, name: str, prompt: Sequence[int], most: int, *, ends: bool = True) -> None:
        """A client requests at most `most` tokens; `ends`: the end token ends the request.

        Half of the requests with the same prompt sample the same tokens, like greedy ones.
        """
        voice = tuple(prompt) if self._hash(name) & 1 else name
        text = list(prompt)
        self._requests[name] = _Request(voice, text, len(text), _Turn(prompt, most, ends), len(text))

    def turn(self, name: str, prompt: Sequence[int], most: int) -> None:
        """A client of a session sends a turn. Its prompt follows the text, and replaces the last token of that."""
        request = self._requests[name]
        request.turns.append(_Turn(prompt, most, request.turn.ends))
        if request.ended:
            self._next_turn(request)

    def _next_turn(self, request: _Request) -> None:
        request.turn = request.turns.pop(0)
        request.text = request.text[: request.answered - 1] + list(request.turn.prompt)
        request.first = request.answered = len(request.text)
        request.ended = False

    def text(self, name: str) -> list[int]:
        """The prompt of a request, and the tokens that its client got."""
        request = self._requests[name]
        return request.text[: request.answered]

    def due(self, name: str, position: int) -> int:
        """The token that the model samples for a request at a position."""
        number = self._hash(self._requests[name].voice, position)
        return EOS if number % 10_000 < self._ends * 10_000 else FIRST + (number >> 16) % (self._size - FIRST)

    def sample(self, name: str, position: int) -> int:
        """The same for a launch that samples it, and so consumes all tokens before."""
        text, token = self._requests[name].text, self.due(name, position)
        if position == len(text):
            text.append(token)
            self._owners.setdefault(token, (name, position))
        return token

    def _hash(self, *what: object) -> int:
        return int.from_bytes(blake2b(repr((self.seed, *what)).encode(), digest_size=8).digest())

    # Launches and answers

    def begin(self, name: str, expected: int, start: int, at: str) -> None:
        """A launch begins at position `start` of a request; `expected` is the end of its computed tokens."""
        if start != expected:
            self._find("position", name, at, start, expected=expected, found=start)

    def consume(self, name: str, start: int, tokens: Sequence[int], at: str) -> None:
        """A launch takes these tokens of a request, at `start` and the following positions."""
        text = self._requests[name].text
        if text[start : start + len(tokens)] == list(tokens):
            return
        for position, token in enumerate(tokens, start):
            if position >= len(text):
                self._find("no-token", name, at, position, expected=f"{len(text)} tokens", found=self._said(token))
                return
            if token != text[position]:
                due = self._said(text[position])
                self._find("consumed", name, at, position, expected=due, found=self._said(token))
                return

    def answer(
        self, name: str, tokens: Sequence[int], at: str, reason: Reason = "", *, most: int | None = None
    ) -> None:
        """A client gets these tokens. With a `reason` they are the last of its request or turn.

        `most`: the limit of an engine with less room than the client requested.
        """
        request = self._requests[name]
        if most is not None:
            request.turn.most = min(request.turn.most, most)
        for token in tokens:
            if request.ended or self._complete(request):
                self._find("late", name, at, request.answered, found=self._said(token))
                return
            self._one(name, request, token, at)
        if reason == "done" and not request.ended and not self._complete(request):
            self._find("lost", name, at, request.answered, expected=self._due(request), found="its end")
        if reason == "done" and not request.ended:
            self.texts.append(request.text[: request.answered])
        request.ended = request.ended or bool(reason)
        if request.ended and reason == "done" and request.turns:
            self._next_turn(request)

    def _complete(self, request: _Request) -> bool:
        """Whether the client has all requested tokens, or its context is full."""
        got = request.answered - request.first
        ends = request.turn.ends and request.text[request.answered - 1] == EOS
        return got > 0 and (got >= request.turn.most or ends or request.answered >= self._longest)

    def _one(self, name: str, request: _Request, token: int, at: str) -> None:
        """Check one token. After a finding continue as if the engine were right."""
        position = request.answered
        request.answered += 1
        if position < len(request.text) and token == request.text[position]:
            return
        own = [there for there in range(request.first, len(request.text)) if request.text[there] == token]
        owner = self._owners.get(token)
        case = "other"
        if any(there > position for there in own):
            case, request.answered = "lost", 1 + min(there for there in own if there > position)
        elif own:
            case, request.answered = "doubled", position
        elif owner is not None:
            case = "swapped"
        expected = self._due(request, position)
        self._find(case, name, at, position, expected=expected, found=self._said(token))
        if request.answered > len(request.text):
            request.text += [token] * (request.answered - len(request.text))

    def _due(self, request: _Request, position: int | None = None) -> str:
        position = request.answered if position is None else position
        return self._said(request.text[position]) if position < len(request.text) else "a token that no launch sampled"

    def _said(self, token: int) -> str:
        """A token in words: its request and position."""
        owner = self._owners.get(token) if token != EOS else None
        if owner is not None:
            return f"token {owner[1]} of {owner[0]}"
        return "the end token" if token == EOS else f"token {token}"

    def _find(
        self, case: str, name: str, at: str, position: int, *, found: str | int, expected: str | int | None = None
    ) -> None:
        code = f"{RULE.id}/{case}"
        assert code in CODES and rule_of(code) == RULE.id
        self._report(Finding(code, 0, at, holder=name, slot=position, expected=expected, found=found))
