"""The shortest list of operations that still shows a finding."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from kvconform.levels.minimising import Effort, minimize
from kvconform.proxy import RuleBroken
from kvconform.signals import Interrupted, caught
from kvconform.traces.bounds import search_seconds
from kvconform.traces.codec import TraceReader, Vector
from kvconform.vectors.runner import (
    Counterexample,
    ExpectationFailed,
    Factory,
    Outcome,
    check_again,
    names_in,
    try_out,
)
from kvspec.events import (
    Complete,
    CompleteAnswer,
    Decode,
    DecodeAnswer,
    Extend,
    ExtendAnswer,
    Launch,
    Operation,
    Report,
    Snapshot,
)

LONGEST = 20_000
"""A list of more operations than this is not shortened, because each attempt carries all of them out again."""

UNITS = 20_000
"""The most operations that the search carries out again for one finding."""
SECONDS = 20.0
"""The time limit of the search, for a slow machine or a slow implementation."""
BYTES = 5
"""Bytes of a trace for each operation that the searches of its findings may use."""
MACHINE = 4
"""A machine may be so many times slower than usual before the time limit ends the searches of a trace."""

Operations = Sequence[Operation[Any]]
Attempt = Callable[[Operations], Counterexample | None]
"""Tries operations out and returns the counterexample that they show."""
Essence = Callable[[Counterexample], object]
"""The part that all counterexamples of one finding have in common."""
T = TypeVar("T")


class Shortest(NamedTuple):
    """The shortest counterexample for a finding, as far as one was found."""

    counterexample: Counterexample | None
    """`None` if none can be shown; `note` says why."""
    note: str


def shortest_of_run(vector: Vector, outcome: Outcome, factory: Factory) -> Shortest:
    """The shortest part of a vector with the same finding; each candidate runs on a fresh implementation."""
    if outcome.finding is None or isinstance(outcome.finding, ExpectationFailed):
        return Shortest(None, "A vector's expectations hold for it as it is: no part of it can be left out.")
    if not outcome.operations:
        return Shortest(None, "No operation was carried out.")
    operations = [step.op for step in vector.steps[: outcome.operations]]
    attempt = partial(try_out, config=vector.header.config, factory=factory)
    return shortest_by(operations, attempt, kind, effort_for_one(), keep=False)


def effort_for_one(seconds: float = SECONDS) -> Effort:
    """The effort for a single finding."""
    return Effort(UNITS, seconds)


def effort_for(path: Path) -> Effort:
    """The effort for all findings of a trace; each gets a `part` of it."""
    size = path.stat().st_size if path.is_file() else 0
    return Effort(UNITS + size // BYTES, MACHINE * search_seconds(size))


def shortest_of_trace(
    path: Path, count: int, effort: Effort, check: Callable[..., Counterexample | None] = check_again
) -> Shortest:
    """The shortest part of a trace's first `count` operations with the finding of the last of them.

    `check(operations, config=...)` returns the counterexample in a list of operations. It is called until the effort
    is spent.
    """
    if caught():
        return Shortest(None, "It was interrupted before a shorter list of operations was looked for.")
    if count > LONGEST:
        return _too_long(count)
    if not path.is_file():
        return Shortest(None, "The input cannot be read a second time to look for a shorter list of operations.")
    if effort.is_spent:
        return Shortest(
            None, "The effort to look for a shorter list of operations was spent on the findings before it."
        )
    with TraceReader(path) as trace:
        operations = [op for _, op in islice(trace, count)]
        config = trace.header.config
    return shortest_by(operations, partial(check, config=config), words, effort)


def shortest_by(
    operations: Operations,
    attempt: Attempt,
    essence: Essence,
    effort: Effort,
    unrepeated: str = "It did not show again when the same operations were tried again.",
    *,
    keep: bool = True,
) -> Shortest:
    """The fewest operations that `shrink` finds, and the sentence about them; `unrepeated` is that about none."""
    if len(operations) > LONGEST:
        return _too_long(len(operations))
    shrunk = shrink(operations, attempt, essence, effort, keep=keep)
    if shrunk is None:
        return Shortest(None, unrepeated)
    if shrunk.complete:
        note = f"The shortest operations that still show it ({shrunk.size})."
    else:
        note = f"Fewer operations that still show it ({shrunk.size}); the search was stopped."
    return Shortest(shrunk.counterexample, note)


def _too_long(operations: int) -> Shortest:
    return Shortest(
        None, f"{operations:,} operations are too many to look for fewer that show it ({LONGEST:,} at most)."
    )


class Shrunk(NamedTuple):
    """The shortest counterexample that was found."""

    counterexample: Counterexample
    complete: bool
    """Whether the finding is lost if any one further operation is left out. If not, the effort was spent."""
    total: int
    """The number of operations at first. A final snapshot or report that shows the finding is counted too."""

    @property
    def size(self) -> str:
        """The number of operations left, and their number at first."""
        return f"{len(self.counterexample.operations):,} of {self.total:,}"


def shrink(
    operations: Operations, attempt: Attempt, essence: Essence, effort: Effort, *, keep: bool = False
) -> Shrunk | None:
    """Leave out what is not needed: whole requests and sessions, then single operations.

    `attempt` tries operations out; the counterexample must keep its `essence`. The search stops after the attempt in
    which the effort is spent. The result is `None` if all operations together show nothing when they are tried again.
    With `keep`, an interruption ends the search as if the effort were spent.
    """
    first = attempt(operations)
    if first is None:
        return None
    effort.spend(len(operations))
    search = _Search(first, attempt, essence, effort)
    try:
        # Snapshots and reports change nothing, and would no longer be right without one of the requests.
        search.shows([op for op in operations[:-1] if not isinstance(op, (Report, Snapshot))] + [*operations[-1:]])
        operations = search.best.operations
        minimize(_names(operations), lambda names: search.shows(about(operations, set(names))))
        minimize(list(search.best.operations), search.shows)
    except (TimeoutError, Interrupted) as stopped:
        if isinstance(stopped, Interrupted) and not keep:
            raise
        return Shrunk(search.best, complete=False, total=len(first.operations))
    return Shrunk(search.best, complete=True, total=len(first.operations))


def kind(shown: Counterexample) -> object:
    """The essence when operations are carried out again: the rule, or the exception, and the kind of operation.

    Numbers may differ: with fewer operations before it, other pages are free.
    """
    finding = shown.finding
    cause = finding.rule if isinstance(finding, RuleBroken) else type(finding.original)
    return cause, type(finding.op), shown.must_refuse


def words(shown: Counterexample) -> object:
    """The essence of recorded answers, which were given to the whole list of operations: the last number.

    Almost any recorded answer is wrong once enough is left out before it. The remaining operations explain the finding
    only while the model expects the same answer as for the whole list.
    """
    finding = shown.finding
    return str(finding), getattr(finding, "expected", None), getattr(finding, "observed", None)


class _Search:
    """The best counterexample so far."""

    def __init__(self, first: Counterexample, attempt: Attempt, essence: Essence, effort: Effort) -> None:
        self.best = first
        self._attempt = attempt
        self._essence = essence
        self._wanted = essence(first)
        self._effort = effort

    def shows(self, operations: Operations) -> bool:
        """Whether these operations still show it; if so they are the best so far, since only shorter ones are tried.

        Raises:
            TimeoutError: the effort was spent before.
        """
        if self._effort.is_spent:
            raise TimeoutError
        self._effort.spend(len(operations))
        shown = self._attempt(operations)
        if shown is None or self._essence(shown) != self._wanted:
            return False
        self.best = shown
        return True


def _names(operations: Operations) -> list[str]:
    """The requests and sessions, in order of appearance."""
    seen: dict[str, None] = {}
    for op in operations:
        seen.update(dict.fromkeys(names_in(op)))
    return list(seen)


def about(operations: Operations, names: set[str]) -> Operations:
    """The operations of some requests and sessions; batches and their answers are narrowed to them."""
    kept: list[Operation[Any]] = []
    emptied: set[int] = set()
    for op in operations:
        match op:
            case Extend():
                reqs = [(req, seq_len) for req, seq_len in op.reqs if req in names]
                obs = op.obs and ExtendAnswer(_only(op.obs.rows, names), _only(op.obs.pages, names))
                kept += [msgspec.structs.replace(op, reqs=reqs, obs=obs)] if reqs else []
            case Decode():
                batch = [req for req in op.reqs if req in names]
                given = op.obs and DecodeAnswer(_only(op.obs.pages, names))
                kept += [msgspec.structs.replace(op, reqs=batch, obs=given)] if batch else []
            case Launch():
                batch = [req for req in op.reqs if req in names]
                (emptied.discard if batch else emptied.add)(op.launch)
                kept += [msgspec.structs.replace(op, reqs=batch)] if batch else []
            case Complete():
                if op.launch not in emptied:
                    own = op.obs and CompleteAnswer(_only(op.obs.tokens, names))
                    kept.append(msgspec.structs.replace(op, tokens=_only(op.tokens, names), obs=own))
            case _:
                if names.issuperset(names_in(op)):
                    kept.append(op)
    return kept


def _only(parts: dict[str, T] | None, names: set[str]) -> dict[str, T] | None:
    return parts and {name: value for name, value in parts.items() if name in names}
