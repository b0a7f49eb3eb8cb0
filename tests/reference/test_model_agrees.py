"""The reference and the model are independent: in any traffic, both must answer the same."""

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvconform.oracle import Model
from kvref import Manager
from kvspec.events import Config, Event, Refusal
from tests.marks import one_in
from tests.reference.helpers import Pair, Traffic, carry_out
from tests.spec import tries
from tests.spec.findings import STRIDE, names, source
from tests.spec.oddities import is_sentence

pytestmark = pytest.mark.slow

CONFIGS = {
    "pages of 4": Config(page_size=4, num_pages=24, num_rows=5, max_context_len=64),
    "few pages and rows": Config(page_size=2, num_pages=10, num_rows=3, max_context_len=64),
    "pages of one token": Config(page_size=1, num_pages=40, num_rows=5, max_context_len=64),
    "short rows": Config(page_size=4, num_pages=24, num_rows=5, max_context_len=14),
    "no prefix cache": Config(page_size=4, num_pages=24, num_rows=5, max_context_len=64, prefix_cache=False),
    "a window within a page": Config(4, 24, 5, 64, sliding_window=3, num_window_pages=24),
    "a window of pages, few of them": Config(2, 24, 5, 64, sliding_window=5, num_window_pages=10),
    "a window over pages of one token": Config(1, 40, 5, 64, sliding_window=4, num_window_pages=20),
    "a window, no prefix cache": Config(4, 24, 5, 64, prefix_cache=False, sliding_window=6, num_window_pages=12),
    "states for one request": Config(2, 24, 5, 64, num_states=3),
    "states for two and a few cached": Config(2, 24, 5, 64, num_states=8),
    "states, pages of one token": Config(1, 40, 5, 64, num_states=10),
    "states, no prefix cache": Config(4, 24, 5, 64, prefix_cache=False, num_states=3),
}


def check_traffic(config: Config, random: Random, steps: int) -> None:
    pair = Pair(config)
    traffic = Traffic(random, pair.manager)
    for _ in range(steps):
        pair.step(traffic.op())
        pair.compare()
        anything = random.choice([*tries.operations(pair.model.state)])
        if pair.refuses(anything):
            pair.step(anything)


@pytest.mark.parametrize("config", one_in(3, CONFIGS.values()), ids=CONFIGS)
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 60))
@settings(max_examples=30)
def test_reference_and_model_agree_on_any_traffic(config: Config, random: Random, steps: int) -> None:
    check_traffic(config, random, steps)


@pytest.mark.thorough
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=6)
def test_reference_and_model_agree_over_long_traffic(config: Config, seed: int) -> None:
    """Longer than what Hypothesis can shrink: a failure is named by its seed."""
    check_traffic(config, Random(seed), steps=150)


@pytest.mark.parametrize("name", one_in(2, [name for name in names() if "blind" not in name]))
def test_reference_and_model_refuse_the_same_for_the_same_rule(name: str) -> None:
    """Operations of every kind, tried now and then on the way through a vector or a walk."""
    recorded = source(name)
    manager = Manager(recorded.model.state.config)
    for step, op in enumerate(recorded.operations):
        if step % STRIDE == STRIDE - 1:
            for attempt in tries.operations(recorded.model.state):
                due = _refusal(recorded.model, attempt)
                if due is not None:
                    carry_out(manager, attempt)
                    assert attempt.refused is not None, attempt
                    assert is_sentence(attempt.refused.reason), attempt
                    assert replace(attempt.refused, reason="") == replace(due, reason=""), attempt
        following: Any = replace(op, obs=None, refused=None)
        carry_out(manager, following)
        recorded.model.step(following)


def _refusal(model: Model, op: Event) -> Any:
    other = copy.copy(model)
    other.state = model.state.copy()
    try:
        other.step(replace(op))
    except Refusal as refusal:
        return refusal.refused
    return None
