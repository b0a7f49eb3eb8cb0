"""The decisions of the scheduler."""

import pytest
from msgspec.structs import replace

from kvref.scheduler import policy
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Config

MEMORY = Config(page_size=4, num_pages=10, num_rows=2, max_context_len=100)


def test_a_request_fits_up_to_the_last_page_and_not_beyond() -> None:
    assert policy.never_fits(30, 10, 0, MEMORY) is None
    assert policy.never_fits(30, 11, 0, MEMORY) == "11 pages are more than all 10"
    assert policy.never_fits(30, 8, 3, MEMORY) == "11 pages are more than all 10"


def test_a_request_fits_up_to_the_last_position_of_the_context_and_not_beyond() -> None:
    wide = Config(page_size=4, num_pages=1000, num_rows=2, max_context_len=100)
    assert policy.never_fits(90, 10, 0, wide) is None
    assert policy.never_fits(90, 11, 0, wide) == "101 positions exceed the context of 100"


@pytest.mark.parametrize(
    ("remaining", "budget", "may_chunk", "count"),
    [
        (8, 20, False, 8),  # it fits
        (9, 20, True, 8),  # longer than a chunk
        (9, 20, False, 0),  # and another is in the middle of its prefill
        (5, 5, False, 5),
        (5, 4, True, 4),  # longer than what is left of the budget
        (5, 4, False, 0),
    ],
)
def test_a_prompt_is_cut_only_if_no_other_is_mid_prefill(
    remaining: int, budget: int, may_chunk: bool, count: int
) -> None:
    config = SchedulerConfig(chunked_prefill_size=8)
    assert policy.prefill_len(remaining, budget, config, may_chunk=may_chunk) == count


def test_the_next_decode_step_takes_a_page_for_each_border_that_is_crossed() -> None:
    assert policy.next_decode_pages([3, 4, 5, 8], 1, 4) == 2
    assert policy.next_decode_pages([3, 4, 5, 8], 6, 4) == 2 + 2 + 1 + 2


def test_the_reserved_share_decays_to_its_minimum_and_stays_there() -> None:
    config = SchedulerConfig()
    ratio = config.init_new_token_ratio
    for _ in range(policy.NEW_TOKEN_RATIO_DECAY_STEPS - 1):
        ratio = policy.decayed(ratio, config)
    assert ratio > config.min_new_token_ratio
    ratio = policy.decayed(policy.decayed(ratio, config), config)
    assert ratio == config.min_new_token_ratio


def test_never_more_is_reserved_than_will_come() -> None:
    assert SchedulerConfig(schedule_conservativeness=9).init_new_token_ratio == 1


def test_the_draft_oracle_yields_every_count_and_no_other() -> None:
    assert {policy.accepted(position, 3) for position in range(200)} == {1, 2, 3, 4}
    assert {policy.accepted(position, 0) for position in range(200)} == {1}


def test_an_interval_of_0_is_never() -> None:
    assert not policy.is_due(100, 0, 0)
    assert policy.is_due(3, 0, 3)
    assert not policy.is_due(5, 3, 3)


@pytest.mark.parametrize("wrong", [{"max_prefill_tokens": 0}, {"chunked_prefill_size": 0}, {"drafts": -1}])
def test_budgets_with_which_nothing_could_run_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="less than"):
        SchedulerConfig(**wrong)  # type: ignore[arg-type]


WINDOWED = Config(4, 100, 4, 1000, sliding_window=9, num_window_pages=20)


def test_a_chunk_leaves_room_for_the_window_before_it() -> None:
    """Of 20 window pages, three are locked at the end of the prefix and four are before the chunk."""
    assert policy.fitted(SchedulerConfig(), WINDOWED).chunked_prefill_size == 13 * 4
    assert policy.fitted(SchedulerConfig(chunked_prefill_size=7), WINDOWED).chunked_prefill_size == 7
    assert policy.fitted(SchedulerConfig(), replace(WINDOWED, num_window_pages=3)).chunked_prefill_size == 4
    assert policy.fitted(SchedulerConfig(), replace(WINDOWED, sliding_window=0)) == SchedulerConfig()


def test_recurrent_states_bound_what_can_be_switched_on() -> None:
    memory = Config(4, 100, 4, 1000, num_states=3)
    assert policy.fitted(SchedulerConfig(), memory) == SchedulerConfig()
    assert policy.fitted(SchedulerConfig(), Config(4, 100, 4, 1000, False, num_states=1)) == SchedulerConfig()
    with pytest.raises(ValueError, match="cannot take drafts back"):
        policy.fitted(SchedulerConfig(drafts=1), memory)
    with pytest.raises(ValueError, match="2 state slots are fewer than the 3"):
        policy.fitted(SchedulerConfig(), replace(memory, num_states=2))


def test_a_request_that_needs_more_windows_than_there_are_never_fits() -> None:
    assert policy.window_pages_alone(0, WINDOWED) == 3 + 1 + 4
    assert policy.window_pages_alone(7, WINDOWED) == 3 + 1 + 5
    few = replace(WINDOWED, num_window_pages=7)
    assert policy.never_fits(28, 0, 0, few) is None, "its pages are not more than all window pages"
    assert policy.never_fits(28, 1, 0, few) == "8 window pages are more than all 7"
    assert policy.never_fits(300, 50, 0, WINDOWED) is None
