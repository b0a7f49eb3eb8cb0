"""One length, or what one state slot has, held against what is due."""

from kvspec.model.recurrent import has_state, slot_keeping
from kvspec.model.state import State
from kvspec.rules import Violation, Wrong


def not_reported(state: State, rule: str, field: str, times: int = 1) -> None:
    """A rule is not checked, because an answer leaves a field out."""
    if times:
        state.unjudged[rule] += times
        state.unreported.add((rule, field))


def judge_length(
    state: State, rule: str, name: str, expected: int, observed: int | None, wrong: Wrong | None = None
) -> None:
    """Compare one length, in tokens; `wrong` is what it is the length of."""
    if observed is None:
        not_reported(state, rule, name.partition(" ")[0])
    elif observed != expected:
        raise Violation(rule, f"{name} is wrong", expected=expected, observed=observed, wrong=wrong)
    else:
        state.judged[rule] += 1


def judge_content(state: State, record: int, slot: int, length: int, what: str) -> None:
    """Rule DATA-2 for a slot of a record that is used for its state after `length` tokens; `what` is what for."""
    has = has_state(state, record, slot, length)
    if has is False:
        held = state.state_content.get(slot)
        observed = "no state" if held is None else f"the state after {held[1]} tokens"
        raise other_state(what, slot, length, slot_keeping(state, record, length), observed)
    if has is None:
        not_reported(state, "DATA-2", "states_from")
    else:
        state.judged["DATA-2"] += 1


def other_state(what: str, slot: int, length: int, expected: int | None, observed: object) -> Violation:
    """Rule DATA-2 is broken: a slot has another state than it is used for."""
    what = f"{what} state slot {slot}, which does not have the state after {length} tokens"
    return Violation("DATA-2", what, expected=expected, observed=observed)
