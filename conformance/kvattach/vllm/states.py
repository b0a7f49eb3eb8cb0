"""Recurrent states with draft tokens: a state for each token that is verified, and copies of the accepted states.

Workers keep a request's state in the last `1 + drafts` blocks of its table (`v1/worker/mamba_utils.py`, mode `align`).
A pass reads the state after the tokens that were accepted last, and writes one after each token that it verifies.
Before it, the state is copied where the window of these blocks has moved on. After it, the accepted state at a block's
border is copied to the block that ends there, whose name the scheduler publishes.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvattach.vllm.residency import Group, Run
from kvspec.memory.events import Use


class Move(NamedTuple):
    """One request's part of a pass, in tokens."""

    start: int
    """The number of tokens that its state has seen."""
    tokens: int
    """Tokens of the pass."""
    drafts: int
    """The last tokens of the pass, which it verifies."""
    accepted: int
    """The number of right drafts, plus one."""


class _Window(NamedTuple):
    """The blocks that a request's running states are in."""

    column: int
    """The index of the first of these blocks."""
    accepted: int
    """The number of right states in it. The next pass goes on from the last of them."""


class Moves:
    """The uses of states by one pass."""

    def __init__(self, windows: dict[str, _Window], id: str) -> None:
        """Nothing was moved. `windows` are kept from pass to pass: table -> window."""
        self._windows, self._id = windows, id
        self.before: list[tuple[Use, Use]] = []
        self.reads: list[Use] = []
        self.writes: list[Use] = []
        self.after: list[tuple[Use, Use]] = []

    def add(self, run: Run, group: Group, move: Move) -> None:
        """Add the uses of the states of a request's group."""
        start, size = move.start, group.size
        column = -(-(start + move.tokens) // size) - 1
        window = self._windows.get(run.table(group), _Window((start - 1) // size, 1))
        source = window.column + window.accepted - 1
        if start and window.column != column:
            self.before.append(self._copy(run, group, source, column, start))
            source = column
        if start:
            self.reads.append(self._use(run, group, source, run.state_label(group, start)))
        running = start + move.tokens - move.drafts
        for place in range(move.drafts + 1):
            right = place < move.accepted
            label = run.state_label(group, running + place) if right else f"{run.table(group)} draft {self._id} {place}"
            self.writes.append(self._use(run, group, column + place, label))
        accepted = move.accepted
        border = (running + accepted - 1) // size * size
        if border >= running:
            source, target = column + border - running, border // size - 1
            if source != target:
                self.after.append(self._copy(run, group, source, target, border))
            if target == column:
                accepted = 1
        self._windows[run.table(group)] = _Window(column, accepted)

    def _copy(self, run: Run, group: Group, source: int, target: int, tokens: int) -> tuple[Use, Use]:
        label = run.state_label(group, tokens)
        return self._use(run, group, source, label), self._use(run, group, target, label)

    def _use(self, run: Run, group: Group, column: int, label: str) -> Use:
        size = group.page_size
        return Use(run.table(group), start=column * size, stop=(column + 1) * size, labels=[label])


class States:
    """The states of one scheduler's requests."""

    def __init__(self) -> None:
        """No pass was launched."""
        self._windows: dict[str, _Window] = {}

    def clear(self) -> None:
        """Forget all states: there is a new scheduler."""
        self._windows.clear()

    def move(self, id: str, groups: list[Group], runs: Mapping[str, Run], moves: Mapping[str, Move]) -> Moves:
        """The uses of states by a pass of this name."""
        tables = {run.table(group) for run in runs.values() for group in groups if group.state}
        self._windows = {table: window for table, window in self._windows.items() if table in tables}
        made = Moves(self._windows, id)
        for name, move in moves.items():
            for group in groups:
                if group.state:
                    made.add(runs[name], group, move)
        return made
