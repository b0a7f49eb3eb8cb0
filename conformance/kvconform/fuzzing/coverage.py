"""Coverage by kind of run, so that the next runs are of kinds that miss events."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvconform.fuzzing.swarm import Swarm


class Kind(NamedTuple):
    """Properties of runs that can reach the same events."""

    pool: str
    """The hybrid pool besides the pages, if any."""
    one_token: bool
    """Whether a page has one token."""
    prefix_cache: bool
    sessions: bool
    depth: int
    """Launches that stay in flight."""


def kind_of(swarm: Swarm) -> Kind:
    """The kind of a drawn run."""
    config, style = swarm.config, swarm.style
    pool = "window" if config.sliding_window else "states" if config.num_states else ""
    return Kind(pool, config.page_size == 1, config.prefix_cache, style.sessions > 0, style.depth)


class Coverage:
    """Events that runs have reached, by kind of run. Coverage can be sent to other machines and merged there."""

    def __init__(self) -> None:
        """Begin without runs."""
        self.runs: Counter[Kind] = Counter()
        self.reached: dict[Kind, set[str]] = {}

    def note(self, kind: Kind, names: Iterable[str]) -> None:
        """Note the events that a run of a kind has reached."""
        self.runs[kind] += 1
        self.reached.setdefault(kind, set()).update(names)

    def add(self, other: "Coverage") -> None:
        """Merge the coverage of other runs."""
        self.runs.update(other.runs)
        for kind, names in other.reached.items():
            self.reached.setdefault(kind, set()).update(names)

    def copy(self) -> "Coverage":
        """A copy of the current coverage."""
        other = Coverage()
        other.add(self)
        return other

    def since(self, before: "Coverage") -> "Coverage":
        """The coverage added since `before`."""
        other = Coverage()
        other.runs = self.runs - before.runs
        other.reached = {kind: self.reached[kind] - before.reached.get(kind, set()) for kind in other.runs}
        return other

    def choose(self, drawn: Sequence[Swarm]) -> Swarm:
        """The drawn run whose kind misses the most events for the number of its runs."""
        known = set().union(*self.reached.values())

        def missing(swarm: Swarm) -> float:
            kind = kind_of(swarm)
            return (1 + len(known - self.reached.get(kind, set()))) / (1 + self.runs[kind])

        return max(drawn, key=missing)
