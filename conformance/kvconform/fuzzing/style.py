"""The style of one run: the depth of its launches, the branches of its prompts, and the frequency of operations."""

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from kvspec.events import Config
from kvspec.tokens import Element

T = TypeVar("T")


class Draw(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """A number in `low..high`."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """One of `options`, which is not empty. The first ones are the simplest."""
        ...


class Chance:
    """Choices by a random number generator."""

    def __init__(self, seed: int) -> None:
        """The same seed makes the same choices."""
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """A number in `low..high`."""
        return self.random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return self.random.choice(options)


DRAFTS = 3
"""The number of drafts of a speculative step."""


class Style(NamedTuple):
    """The style of one run. Runs of unusual styles reach states that an average run does not."""

    depth: int = 0
    """The launches that stay in flight while there is other work; 0 completes each at once."""
    families: int = 2
    """The number of first tokens of prompts: prompts of one family share the tokens before they branch."""
    branches: int = 0
    """The most places at which a prompt leaves its family's common text."""
    alphabet: int = 2
    """The number of tokens that may be sampled. Prompts continue with the first, so that outputs match prompts."""
    chunked: int = 4
    """How many of four prefills of a request may end before its prompt."""
    drafted: int = 1
    """How many of three decode steps are speculative. If all are, they run ahead of their verify."""
    late: int = 0
    """How many of four occasions to publish a prefill the scheduler skips."""
    prompt_pages: int = 4
    """The longest prompt, in pages."""
    crowd: int = 5
    """The most requests in the system at a time."""
    sessions: int = 3
    """The most open sessions at a time."""


USUAL = Style()
"""The style of a run that completes each launch at once, with two families of prompts that do not branch."""


def length(draw: Draw, low: int, high: int, page_size: int) -> int:
    """A length in `low..high`: a limit, a page border, or one token off."""
    borders = range(-(-low // page_size) * page_size, high + 1, page_size)
    near = [length for border in borders for length in (border, border + 1, border - 1) if low <= length <= high]
    return draw.choice((high, *near, low))


def prompt(draw: Draw, config: Config, style: Style) -> list[Element]:
    """A prompt of one family, cut at an interesting length. It may leave its family at such places."""
    longest = min(config.max_context_len, style.prompt_pages * config.page_size + 2)
    tokens: list[Element] = [draw.integer(0, style.families - 1)]
    tokens += [0] * (length(draw, 1, longest, config.page_size) - 1)
    branch(draw, tokens, 1, config.page_size, style)
    return tokens


def branch(draw: Draw, tokens: list[Element], start: int, page_size: int, style: Style) -> None:
    """Let `tokens` differ from the common text at a few places, from `start` on."""
    if len(tokens) <= start or not style.branches:
        return
    for _ in range(draw.integer(0, style.branches)):
        tokens[length(draw, start, len(tokens) - 1, page_size)] = draw.integer(1, 2)


def sampled(draw: Draw, style: Style) -> int:
    """A token that a launch samples."""
    return draw.integer(0, style.alphabet - 1)
