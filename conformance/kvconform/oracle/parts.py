"""Compares one length, one set of numbers, or the content of one state slot with the expected one."""

from kvconform.oracle.notes import NotedState
from kvconform.oracle.runs import merged, without
from kvspec.model.recurrent import slot_keeping
from kvspec.pages import Runs, count, expand
from kvspec.rules import Violation, Wrong

WORDS = {
    "store_pages": "the store's pages",
    "free_pages": "the free pages",
    "locks": "locks on page",
    "window_sides": "window side of page",
    "window_locks": "locks on window page",
    "state_locks": "locks on state slot",
    "store_states": "the store's states",
    "free_states": "the free state slots",
    "free_rows": "the free rows",
    "withheld_rows": "the withheld rows",
}
"""The subjects of a snapshot's fields, in words."""

POOLS = {
    "window_locks": "window pages",
    "state_locks": "state slots",
    "store_states": "state slots",
    "free_states": "state slots",
    "states": "state slots",
    "free_rows": "rows",
    "withheld_rows": "rows",
}
"""Field -> the pool of its numbers, if these are no pages."""


def not_reported(state: NotedState, rule: str, field: str, times: int = 1) -> None:
    """A rule is not checked, because an answer leaves a field out."""
    if times:
        state.unchecked[rule] += times
        state.unreported.add((rule, field))


def check_length(
    state: NotedState,
    rule: str,
    field: str,
    expected: int,
    observed: int | None,
    wrong: Wrong | None = None,
    who: str = "",
) -> None:
    """Compare one length, in tokens. `wrong` are the numbers that have it, `who` is the holder in a snapshot."""
    if observed is None:
        not_reported(state, rule, field)
    elif observed != expected:
        what, part = (f"{field} of {who}", f"{who.partition(' ')[0]}.{field}") if who else (field, field)
        raise Violation(rule, f"{what} is wrong", expected=expected, observed=observed, part=part, wrong=wrong)
    else:
        state.checked[rule] += 1


def check_set(
    state: NotedState, rule: str, field: str, expected: Runs | None, observed: Runs | None, name: str = ""
) -> None:
    """Compare a set of numbers of a pool. `field` is its field in a snapshot, `name` its name in a finding."""
    name, expected = name or WORDS[field], expected or ()
    if observed is None or state.virtual_page:
        not_reported(state, rule, field if observed is None else "pages")
        return
    state.checked[rule] += 1
    if observed == expected:
        return
    lacking, strange = without(expected, observed), without(observed, expected)
    if lacking or strange:
        due, found = (f"also {other}" if other else "no others" for other in (lacking, strange))
        wrong = {POOLS.get(field, "pages"): [*expand(lacking), *expand(strange)]}
        raise Violation(rule, f"{name} differ", expected=due, observed=found, part=field, wrong=wrong)
    if count(observed) != sum(length for _, length in merged(observed)):
        in_order = sorted(observed, key=lambda run: run if isinstance(run, int) else run[0])
        raise Violation(rule, f"{name}: some are there twice", observed=in_order, part=field)


def has_state(state: NotedState, record: int, slot: int, length: int) -> bool | None:
    """Whether a slot of a record has its state after `length` tokens; `None` if no answer reported which slot has."""
    content = state.state_content.get(slot)
    if content is None and slot_keeping(state, record, length) is None:
        return None
    return content == (record, length)


def check_content(state: NotedState, record: int, slot: int, length: int, what: str) -> None:
    """Check DATA-2: a slot of a record is used as its state after `length` tokens. `what` names the use."""
    has = has_state(state, record, slot, length)
    if has is False:
        held = state.state_content.get(slot)
        observed = "no state" if held is None else f"the state after {held[1]} tokens"
        raise other_state(what, slot, length, slot_keeping(state, record, length), observed)
    if has is None:
        not_reported(state, "DATA-2", "states_from")
    else:
        state.checked["DATA-2"] += 1


def other_state(what: str, slot: int, length: int, expected: int | None, observed: object) -> Violation:
    """The violation of DATA-2 by a slot that does not have the state that it is used for."""
    what = f"{what} state slot {slot}, which does not have the state after {length} tokens"
    return Violation("DATA-2", what, expected=expected, observed=observed, part="states_from")
