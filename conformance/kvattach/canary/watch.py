"""The common part of every engine's canary: the tokens of its requests, and the report of violations."""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from kvattach.canary.finding import finding_of, recorded
from kvattach.canary.switch import Setting
from kvattach.hooks import Hooks, RuleBroken
from kvconform.findings.text import show_finding
from kvcuda.canary import Canary, Known, Pass, Pool, Violation
from kvcuda.canary.chain import Prefix
from kvcuda.canary.perturb import Perturbation, PerturbedCanary
from kvspec.memory.events import MemoryEvent
from kvspec.memory.events import Pool as LawPool

_log = logging.getLogger("kvspec")

SHOWN_BESIDE = 3
"""The most violations that are described in full, with the recorded trace."""

KEPT = 1000
"""The most violations that are kept. Each place is logged once."""


class Silent:
    """A trace that drops its events: the canary's hooks report to the device, not to the memory checker."""

    def header(self, producer: str, pools: Mapping[str, LawPool], host: str | None = None) -> None:
        """Nothing."""

    def emit(self, *events: MemoryEvent) -> None:
        """Nothing."""


class CanaryHooks(Hooks):
    """Hooks of an engine that report to a canary. An error in a hook ends the canary, and never reaches the engine."""

    def __init__(self) -> None:
        """Nothing is hooked yet."""
        super().__init__(Silent())


class Prompts:
    """The tokens of requests that the host has, and that the canary can therefore expect."""

    def __init__(self) -> None:
        """No requests."""
        self._requests: dict[str, tuple[Sequence[int], Prefix]] = {}
        self._fresh: set[str] = set()

    def begin(self, name: str, tokens: Sequence[int]) -> None:
        """A request arrives or resumes. Its earlier writes no longer count."""
        self._requests[name] = tokens, Prefix()
        self._fresh.add(name)

    def end(self, name: str) -> None:
        """A request has ended."""
        self._requests.pop(name, None)
        self._fresh.discard(name)

    def known(self, names: Sequence[str], starts: Sequence[int]) -> dict[int, Known]:
        """The known tokens of a pass, by index of the request; the requests begin at `starts`."""
        return dict(self._known(names, starts))

    def _known(self, names: Sequence[str], starts: Sequence[int]) -> Iterator[tuple[int, Known]]:
        for index, (name, start) in enumerate(zip(names, starts, strict=True)):
            if name in self._requests:
                tokens, prefix = self._requests[name]
                fresh = name in self._fresh
                if fresh or start <= len(tokens):
                    self._fresh.discard(name)
                    yield index, Known(start - 1, prefix.grown(tokens, start), fresh)
                else:
                    # After the prompt the host knows no further tokens.
                    del self._requests[name]


class Watch:
    """One memory under the canary. Violations are logged once for each place, or stop the engine."""

    def __init__(self, engine: str, setting: Setting, pools: Sequence[Pool], *, requests: int, passes: int) -> None:
        """Watch a memory for passes of so many requests; the first `passes` pools are used by passes."""
        self.engine = engine
        self.setting = setting
        self.prompts = Prompts()
        made = PerturbedCanary if setting.perturb else Canary
        self.canary = made(pools, rows=2 * requests, max_requests=requests, share=setting.share, passes=passes)
        if isinstance(self.canary, PerturbedCanary):
            self.canary.perturbation = Perturbation(setting.perturb)
            self.canary.after = 10
        self.found: list[Violation] = []
        """The first violation of each place."""
        self._places: set[tuple[str, str, int, int]] = set()
        self._staged: object = None
        names = ", ".join(f"{pool.slots:,} slots of {pool.name}" for pool in pools)
        _log.info("kvspec: the canary watches %s: %s", engine, names)

    def before(self, batch: Pass) -> None:
        """Verify and stamp a pass that is about to run.

        Raises:
            RuleBroken: there is a violation, and the setting stops the engine.
        """
        self._staged = staged = self.canary.stage(batch)
        self.canary.enqueue(staged)
        self.look()

    def after(self) -> None:
        """The pass is queued: note its bytes after it."""
        staged, self._staged = self._staged, None
        if staged is not None and self.setting.real:
            self.canary.seal(staged)  # type: ignore[arg-type]

    def leave(self, name: str) -> None:
        """A request has ended."""
        self.prompts.end(name)
        self.canary.leave(name)

    def look(self) -> None:
        """Take the violations so far, without waiting for running passes.

        Raises:
            RuleBroken: there is a violation, and the setting stops the engine.
        """
        for one in self.canary.poll():
            place = (one.pool, one.request, one.position, one.slot)
            if place in self._places or len(self.found) >= KEPT:
                continue
            self._places.add(place)
            self.found.append(one)
            _log.error("kvspec canary: %s: %s", self.engine, one)
            self._show_beside(one)
            if self.setting.stops:
                raise RuleBroken(f"kvspec canary: {self.engine}: {one}")

    def _show_beside(self, one: Violation) -> None:
        """Log the events of the page in a recorded trace, for the first few violations."""
        trace = recorded() if len(self.found) <= SHOWN_BESIDE else None
        if trace is not None:
            pool = next((pool for pool in self.canary.pools if pool.name == one.pool), self.canary.pools[0])
            console = Console(width=120, file=io.StringIO(), color_system=None)
            show_finding(console, finding_of(one, self.engine, pool.page_size, trace))
            _log.error("%s", console.file.getvalue())  # type: ignore[attr-defined]
