"""Runs that differ from each other: each draws its sizes, its style, and the likelihoods of operations.

An average run reaches little: three launches in flight need a run in which launches rarely complete; a lock that three
requests share needs prompts that do not branch and enough pages for all of them.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from kvconform.fuzzing import generate
from kvconform.fuzzing.converse import converse
from kvconform.fuzzing.crowd import crowd
from kvconform.fuzzing.generate import GENERATORS, Generator
from kvconform.fuzzing.style import Draw, Style
from kvspec.events import Config

PROGRESS = (3, 1, 9)
"""Factors for the likelihood of the scheduler's next operation."""
TALK = (800, 800, 800, 800, 0)
"""How often a run with sessions proposes their next common operation."""
GATHER = (800, 100, 0)
"""How often a run without sessions proposes the next operation of a crowd of requests."""
FACTORS = (1, 0, 0, 3)
"""Factors for the likelihood of other kinds of proposals; 0 leaves a kind out."""


class Sizes(NamedTuple):
    """The options from which the sizes of a memory are drawn."""

    page_sizes: Sequence[int] = (2, 1, 4, 16)
    pages: Sequence[int] = (12, 6, 20, 3)
    rows: Sequence[int] = (3, 2, 4, 1)
    context_pages: Sequence[int] = (8, 5)
    states: Sequence[int] = (7, 3, 4, 10)
    window_pages: Sequence[int] = (1, 0, 2)
    """The whole pages that a window covers; 0 is one token, and several pages are one token more."""


SMALL = Sizes()
"""Memories so small that the pool is nearly full most of the time."""
WIDE = Sizes(
    page_sizes=(2, 1, 4, 2, 1, 4, 8, 16, 3, 32, 64),  # small ones more often: so many operations pass more borders
    pages=(12, 6, 20, 3, 30, 50),
    rows=(3, 4, 2, 1, 6, 8),
    context_pages=(8, 5, 14),
    states=(7, 3, 4, 10, 24),
    window_pages=(1, 0, 2, 4, 6),
)
"""Memories with room, and with pages as large as engines have."""


class Swarm(NamedTuple):
    """The random choices of one run before it begins."""

    config: Config
    style: Style
    bag: list[Generator]
    """The kinds of proposals, each repeated by its likelihood."""


def swarm(draw: Draw, lacks: Collection[str] = (), config: Config | None = None) -> Swarm:
    """A run with random sizes, without the hybrid pools named in `lacks`; with those of `config`, if given."""
    if config is None:
        config = memory(draw, lacks, WIDE)
    bag = [
        generator
        for generator, weight in GENERATORS.items()
        for _ in range(weight * draw.choice(PROGRESS if generator is generate.advance else FACTORS))
    ]
    chosen = style(draw)
    if chosen.sessions and "sessions" not in lacks and (talk := draw.choice(TALK)):
        bag += [converse] * talk
    else:
        bag += [crowd] * draw.choice(GATHER)
    return Swarm(config, chosen, bag)


def style(draw: Draw) -> Style:
    """The style of a run."""
    return Style(
        depth=draw.choice((0, 1, 2, 3, 4)),
        families=draw.choice((1, 2, 4)),
        branches=draw.choice((1, 0, 2)),
        alphabet=draw.choice((2, 1, 5)),
        chunked=draw.choice((2, 1, 4)),
        drafted=draw.choice((1, 0, 3)),
        late=draw.choice((0, 0, 3)),
        prompt_pages=draw.choice((4, 2, 7)),
        crowd=draw.choice((5, 3, 8)),
        sessions=draw.choice((3, 1, 0, 5, 5, 4)),
    )


def _window(pages: int, page_size: int) -> int:
    """A window of so many pages, in tokens."""
    return max(1, pages * page_size) + (pages > 1)


def memory(draw: Draw, lacks: Collection[str] = (), sizes: Sizes = SMALL) -> Config:
    """A memory with one hybrid pool that is not named in `lacks`, or with none."""
    page_size = 1 if "larger_pages" in lacks else draw.choice(sizes.page_sizes)
    plain = Config(
        page_size=page_size,
        num_pages=draw.choice(sizes.pages) + draw.integer(0, 4),
        num_rows=draw.choice(sizes.rows),
        max_context_len=draw.choice(sizes.context_pages) * page_size + draw.integer(0, 1),
        prefix_cache=draw.choice((True, True, True, False)),
    )
    hybrid = [feature for feature in ("sliding_window", "recurrent_states") if feature not in lacks]
    match draw.choice(("", *hybrid)):
        case "sliding_window":
            return msgspec.structs.replace(
                plain,
                sliding_window=_window(draw.choice(sizes.window_pages), page_size),
                num_window_pages=max(1, plain.num_pages - draw.choice((0, 2, 4))),
            )
        case "recurrent_states":
            return msgspec.structs.replace(plain, num_states=draw.choice(sizes.states))
    return plain
