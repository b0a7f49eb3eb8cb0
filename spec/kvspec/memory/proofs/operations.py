"""Operations of `kvspec.model` as lists of steps, pool by pool.

A step's preconditions hold before the operation, or earlier steps establish them. The latter are `given`, and proved.
Further preconditions of the operation are in `grants`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_type_hints

from z3 import And, Not, Or  # type: ignore[import-untyped]

from kvspec.memory.proofs.steps import STEPS, Run
from kvspec.memory.proofs.terms import NONE, Formula, every, everything


def arguments_of(step: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a step or event besides its subject, by name, with their sorts as annotations."""
    _, *hints, _ = get_type_hints(step, include_extras=True).items()
    return dict(hints)


@dataclass(frozen=True)
class Way:
    """One way in which an operation changes a pool."""

    steps: str
    """Names of steps with their arguments; `everything` is every index."""
    given: Sequence[str] = ()
    grants: Mapping[str, Callable[..., Sequence[Callable[..., Formula]]]] = field(default_factory=dict)
    """Further preconditions: conditions for `every`, as a function of the pool and the arguments."""

    def parsed(self) -> list[tuple[Callable[..., Run], list[str]]]:
        """Each step, and the names of its arguments."""
        return [(STEPS[step], names) for step, *names in map(str.split, self.steps.split(";"))]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of all steps, by name, with their annotations."""
        steps = [zip(names, arguments_of(step).values(), strict=True) for step, names in self.parsed()]
        return {name: hint for step in steps for name, hint in step if name != "everything"}

    def __call__(self, run: Run, **arguments: Any) -> Run:
        """Take the steps."""
        at = SimpleNamespace(everything=everything, **arguments)
        steps = [(step, [getattr(at, name) for name in names]) for step, names in self.parsed()]
        run.granted.extend((what, every(*conditions(run.memory, at))) for what, conditions in self.grants.items())
        for step, values in steps:
            run.granted.extend(asked for asked in step(Run(run.memory), *values).asked if asked[0] not in self.given)
        for step, values in steps:
            run = step(run, *values)
        return run


_INSERT = "let_go holder known; lock holder known path where; publish holder new path back"
_END = "let_go holder everything; end_holder holder"
_GIVE = "publish holder given path back; let_go holder given"
_THERE, _GONE = "no page there yet", "all is let go"

WAYS = {
    # A record begins: it shares the match, or takes over what its request held while waiting, and takes the rest.
    "begin": Way(
        "lock holder found path where; take holder own new place",
        grants={"matched before its own": lambda _, at: (at.found, lambda index: Not(at.own(index)))},
    ),
    "bring": Way(
        "hand_on waiting holder; end_holder waiting; take holder own new place",
        (_GONE,),
        {"beside what it has": lambda pool, at: (at.own, lambda index: pool.entry(at.waiting, index).page == NONE)},
    ),
    # Take room; then a launch writes into the holder's own pages.
    "grow": Way(
        "take holder own new place; compute holder labels",
        ("its own pages",),
        {
            "behind what is published": lambda pool, at: (
                lambda index, slot: at.labels(index, slot) != NONE,
                lambda index, _: Or(pool.entry(at.holder, index).private, at.own(index)),
            )
        },
    ),
    # Publish: the store's pages replace duplicates of them, and the rest becomes the store's. Then let go of nothing,
    # of the pages outside the moved lock, or of all.
    "insert": Way(_INSERT, (_THERE,)),
    "insert_and_leave_window": Way(f"{_INSERT}; let_go holder behind", (_THERE,)),
    "insert_and_end": Way(f"{_INSERT}; {_END}", (_THERE, _GONE)),
    "end": Way(_END, (_GONE,)),
    # A turn's record goes to its session's slot, cut to the tokens that count; or from the slot to a turn.
    "rest": Way("let_go request tail; trim request stays; hand_on request slot; end_holder request", (_GONE,)),
    # The store takes over a holder's own page; the holder may take another in its place; or the store gets a copy.
    "give": Way(_GIVE),
    "give_and_replace": Way(f"{_GIVE}; take holder given new place", (_THERE,)),
    "give_copy": Way(
        "take holder made new place; compute holder labels; publish holder made path back; let_go holder made",
        ("its own pages", "its own to publish", "whole and of these tokens"),
        {
            "into the copy": lambda _, at: (
                lambda index, slot: at.labels(index, slot) != NONE,
                lambda index, _: at.made(index),
            ),
            "whole and the same": lambda pool, at: (
                lambda index, slot: And(at.made(index), pool.promised(at.path(index), slot) != NONE),
                lambda index, slot: at.labels(index, slot) == pool.promised(at.path(index), slot),
            ),
        },
    ),
}
"""Ways of several steps; every step alone is a way, too."""

_ENDS = {"pages": "end", "window": "end", "states": "let_read end", "rows": "keep_for end"}
"""A record is released; its row stays while a launch reads it."""
_RESTS = {pool: f"{ways} rest" for pool, ways in _ENDS.items()}
"""The same, or a turn's record goes to the slot, or from there to the next turn."""

OPERATIONS = {
    "extend": {"pages": "begin grow", "window": "begin grow", "states": "bring take keep_for", "rows": "take"},
    "decode": {"pages": "grow", "window": "grow"},
    "complete": {"rows": "let_read"},
    "cache_unfinished": {
        "pages": "insert",
        "window": "insert_and_leave_window",
        "states": "give_copy give_and_replace keep_for let_read",
    },
    "finish": {
        "pages": f"insert_and_end {_RESTS['pages']}",
        "window": f"insert_and_end {_RESTS['window']}",
        "states": f"give keep_for {_RESTS['states']}",
        "rows": _RESTS["rows"],
    },
    **dict.fromkeys(("retract", "match_prefix"), _RESTS),
    **dict.fromkeys(("abort", "close_session", "preempt"), _ENDS),
    "evict": {"pages": "drop", "window": "drop", "states": "drop"},
    "swa_evict": {"window": "let_go"},
    "take_state": {"states": "take"},
    "free_state": {"states": "end"},
}
"""Operation and pool -> the ways in which the operation changes the pool; others change none."""
