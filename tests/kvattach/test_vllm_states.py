"""Recurrent states under drafts, as vLLM's workers keep them: one for each token that is verified, and copies."""

from types import SimpleNamespace

from kvattach.vllm.residency import Group, Run
from kvattach.vllm.states import Move, Moves, States
from kvspec.memory.events import Use

STATE = Group(0, 4, 0, True, 4)


def run_of(tokens: int) -> Run:
    return Run("r0.1", SimpleNamespace(_all_token_ids=list(range(tokens)), mm_features=()), [STATE])


def column(use: Use) -> int:
    assert use.stop == use.start + STATE.page_size
    return use.start // STATE.page_size


def moved(states: States, run: Run, *moves: Move) -> list[Moves]:
    return [states.move(f"step {at}", [STATE], {"r0": run}, {"r0": move}) for at, move in enumerate(moves)]


def test_a_pass_with_drafts_writes_a_state_for_each_token_and_the_rejected_ones_are_their_own() -> None:
    run = run_of(4)
    (_, made) = moved(States(), run, Move(0, 3, 0, 1), Move(3, 3, 2, 2))
    # The prompt's state is in block 0; with two drafts the window begins where the last token is.
    assert [(column(old), column(new)) for old, new in made.before] == [(0, 1)]
    assert [column(use) for use in made.reads] == [1]
    assert [column(use) for use in made.writes] == [1, 2, 3]
    labels = [use.labels for use in made.writes]
    assert labels[:2] == [[run.state_label(STATE, 4)], [run.state_label(STATE, 5)]]
    assert labels[2] == ["r0.1/0 draft step 1 2"], "its draft was rejected"


def test_the_state_at_a_blocks_border_is_copied_to_the_block_that_ends_there() -> None:
    run = run_of(9)
    (_, made) = moved(States(), run, Move(0, 3, 0, 1), Move(3, 3, 2, 3))
    # Four tokens are behind it: the window's first state, for block 0.
    assert [(column(old), column(new)) for old, new in made.after] == [(1, 0)]
    assert made.after[0][0].labels == [run.state_label(STATE, 4)]


def test_the_next_pass_goes_on_from_the_state_that_was_accepted_last() -> None:
    run = run_of(9)
    (_, _, same, moves) = moved(States(), run, Move(0, 4, 0, 1), Move(4, 2, 1, 2), Move(6, 1, 0, 1), Move(7, 3, 2, 1))
    assert not same.before and [column(use) for use in same.reads] == [2], "it is the second of the window"
    assert [(column(old), column(new)) for old, new in moves.before] == [(1, 2)]


def test_a_state_that_ends_the_windows_own_block_is_moved_to_its_front() -> None:
    run = run_of(12)
    (_, made, then) = moved(States(), run, Move(0, 4, 0, 1), Move(5, 3, 2, 3), Move(8, 1, 0, 1))
    assert [(column(old), column(new)) for old, new in made.after] == [(3, 1)]
    assert [(column(old), column(new)) for old, new in then.before] == [(1, 2)]
