"""The operations of requests that run together: prefixes with many locks, and batches and steps of all requests.

A scheduler that takes random operations ends requests as often as it adds them, so few ever share anything.
"""

from itertools import count
from typing import Any

from kvconform.fuzzing import generate
from kvconform.fuzzing.generate import Generator
from kvconform.fuzzing.style import USUAL, Draw, Style, prompt
from kvspec.events import Decode, MatchPrefix, Operation, Retract, Submit
from kvspec.model.state import State

LEAVE = 12
"""One in so many operations ends a request."""


def crowd(state: State, draw: Draw, style: Style = USUAL, /) -> Operation[Any] | None:
    """The next operation of a crowd: all requests arrive before the first one leaves."""
    urgent: Operation[Any] | None = generate.launch(state, draw, style) or (
        generate.complete(state, draw, style) if len(state.flights) > style.depth else None
    )
    if urgent is None and draw.integer(1, LEAVE) == 1:
        urgent = draw.choice(_LEAVING)(state, draw, style)
    return urgent or _come(state, draw, style) or _go_on(state, draw, style) or generate.complete(state, draw, style)


def _retract_a_chunk(state: State, draw: Draw, style: Style = USUAL, /) -> Retract | None:
    """Retract a request in the middle of its prefill."""
    return Retract(draw.choice(sorted(state.mid_prefill))) if state.mid_prefill else None


_LEAVING: tuple[Generator, ...] = (generate.finish, generate.retract, generate.evict, generate.abort, _retract_a_chunk)


def _come(state: State, draw: Draw, style: Style) -> Operation[Any] | None:
    """Another request, a match, or a prefill batch that fits."""
    if len(state.requests) < style.crowd and len(state.requests) < state.config.num_rows + 1:
        req = next(req for number in count() if (req := f"r{number}") not in state.requests)
        return Submit(req, prompt(draw, state.config, style))
    for req, request in state.requests.items():
        if not request.running and request.prefix_len is None:
            return MatchPrefix(req)
    batch = generate.extend(state, draw, style)
    return batch if batch is not None and generate.fits(state, batch) else None


def _go_on(state: State, draw: Draw, style: Style) -> Operation[Any] | None:
    """A publication, a verify, a decode step of all requests that can decode, the end of a window, or of a request."""
    due = generate.cache_unfinished(state, draw, style) if draw.integer(1, 4) > style.late else None
    side = generate.swa_evict(state, draw, style) if draw.integer(1, 3) == 1 else None
    usual = due or generate.verify(state, draw, style) or side or _step(state, draw, style)
    return usual or generate.evict(state, draw, style) or generate.finish(state, draw, style)


def _step(state: State, draw: Draw, style: Style) -> Decode | None:
    """A decode step of all requests that can decode, if there is room."""
    step = generate.decode(state, draw, style)
    if step is None:
        return None
    able = [req for req in generate.steppable(state) if step.n > 1 or req not in state.speculating]
    return Decode(able, step.n) if len(able) <= state.free_pages else None
