"""An engine's own scheduler driven with hooks, every event judged at once."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvconform.attach.hooks import Hooks, Trace
from kvconform.attach.patches import Patches
from kvconform.attach.planting import Defect, plant
from kvspec.memory import Finding, Law, Pool
from kvspec.memory.events import MemoryEvent


@dataclass
class Judge:
    """A trace that is judged while it is told."""

    events: int = 0
    found: list[tuple[int, Finding]] = field(default_factory=list)
    """Each finding, with the number of events until then, over all memories."""
    _law: Law | None = None

    def header(self, producer: str, pools: Mapping[str, Pool]) -> None:
        """Another memory, all of it free."""
        self._law = Law(pools)

    def tell(self, event: MemoryEvent) -> None:
        """Judge one event."""
        assert self._law is not None
        self.events += 1
        self.found += [(self.events, finding) for finding in self._law.step(event)]

    @property
    def first(self) -> tuple[int, Finding] | None:
        """The first finding."""
        return self.found[0] if self.found else None

    def kinds(self) -> Counter[tuple[str, str, str]]:
        """Rule, pool and place of what was found and is no consequence of something earlier."""
        own = [finding for _, finding in self.found if finding.cause is None]
        return Counter((finding.rule, finding.pool or "", finding.at or "") for finding in own)


@dataclass(frozen=True)
class Trial:
    """An engine that can be driven. `run` takes a seed; what the engine raises ends that run."""

    name: str
    attach: Callable[[Trace], Hooks]
    run: Callable[[int], None]
    defects: list[Defect]
    mend: Callable[[Patches], None] | None = None
    """Takes the engine's known defects away."""


def judged(trial: Trial, runs: int, *, defect: Defect | None = None, mended: bool = False) -> Judge:
    """Drive the engine up to `runs` times; with a defect, until something is found.

    Raises:
        NotPlanted: the defect is for another version of the engine.
        RuntimeError: a hook has failed.
    """
    patches, judge = Patches(), Judge()
    try:
        if defect is not None:
            plant(defect, patches)
        if mended and trial.mend is not None:
            trial.mend(patches)
        hooks = trial.attach(judge)
        try:
            for seed in range(runs):
                trial.run(seed)
                if defect is not None and judge.found:
                    break
                if hooks.problem is not None:
                    raise RuntimeError(hooks.problem)
        finally:
            hooks.detach()
    finally:
        patches.undo()
    return judge
