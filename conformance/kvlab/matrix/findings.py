"""Findings of one release: explained by known issues, described, and written as traces."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from kvconform.findings.finding import Finding
from kvconform.findings.text import show_finding
from kvconform.levels.requests.minimise import Shortest
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.traces.codec import TraceWriter
from kvconform.vectors.runner import Counterexample
from kvlab.issues import issues_of
from kvlab.matrix.report import Found
from kvspec.events import Config, Operation
from kvspec.rules import Violation
from kvtrace.operations import Header

RAISES = "raises"
"""Takes the place of a rule if the engine raised its own exception."""


def describe(shown: Counterexample, config: Config, source: str, findings: "Findings") -> Found:
    """Name the rule of a finding, and look for a known issue that explains it."""
    finding = shown.finding
    last = finding.op or shown.operations[-1]
    trace = [_tag(op) for op in shown.operations]
    part = finding.part if isinstance(finding, RuleBroken) else ""
    found = Found(_rule(finding), _tag(last), str(finding), source, trace, _second_pool(config), part)
    found.explanation = explanation(found, findings.release, findings.engine, findings.repaired)
    return found


def explanation(found: Found, release: str, engine: str, repaired: frozenset[str] = frozenset()) -> str | None:
    """The id of the first known issue that a finding shows. `repaired`: pull requests that the release has."""
    for issue in issues_of(engine).at("requests"):
        raised = found.what if found.rule == RAISES else ""
        shows = any(
            symptom.fits(found.rule, found.operation, found.trace, found.pool, found.part, raised)
            for symptom in issue.when
        )
        if shows and issue.covers(release, repaired):
            return issue.id
    return None


def _second_pool(config: Config) -> Literal["window", "states"] | None:
    if config.sliding_window:
        return "window"
    return "states" if config.num_states else None


def _rule(finding: RuleBroken | ImplementationFailed) -> str:
    if isinstance(finding, RuleBroken):
        return finding.rule.id
    # An adapter raises a violation for state of the engine's objects that the model cannot see.
    return finding.original.rule.id if isinstance(finding.original, Violation) else RAISES


def _tag(op: Operation[Any]) -> str:
    return str(op.__struct_config__.tag)


class Findings:
    """The shortest counterexample of each finding of one release."""

    def __init__(self, release: str, engine: str = "sglang", repaired: frozenset[str] = frozenset()) -> None:
        """Begin without findings. `repaired`: pull requests that the release is known to have."""
        self.release, self.engine, self.repaired = release, engine, repaired
        self._best: dict[tuple[str, str], tuple[Found, Counterexample, Config]] = {}

    def add(self, shown: Counterexample, config: Config, source: str) -> None:
        """Add a counterexample, unless a shorter one shows the same finding."""
        found = describe(shown, config, source, self)
        key = found.rule, found.explanation or f"{found.operation}: {found.part or found.what}"
        known = self._best.get(key)
        if known is None or len(shown.operations) < len(known[1].operations):
            self._best[key] = found, shown, config

    def write(self, folder: Path) -> list[Found]:
        """Write a trace and a description of each finding, in order of rule."""
        folder.mkdir(parents=True, exist_ok=True)
        names = Counter[str]()
        all_found = []
        for found, shown, config in sorted(self._best.values(), key=lambda best: (best[0].rule, best[0].what)):
            name = f"{found.rule}-{found.explanation or 'unexplained'}"
            names[name] += 1
            path = folder / (f"{name}-{names[name]}.jsonl" if names[name] > 1 else f"{name}.jsonl")
            _write_trace(path, shown.operations, config, f"{self.engine} {self.release}")
            found.file, found.finding = str(path), _finding(path, found, shown, config)
            path.with_suffix(".txt").write_text(_description(found, found.finding, self.engine), encoding="utf-8")
            all_found.append(found)
        return all_found


def _write_trace(path: Path, operations: Sequence[Operation[Any]], config: Config, producer: str) -> None:
    with TraceWriter(path, Header(1, producer, config)) as writer:
        for op in operations:
            # An operation at which the engine raised has no answer, and a trace has no place for it.
            if op.obs is not None or op.refused is not None:
                writer.write(op)


def _finding(path: Path, found: Found, shown: Counterexample, config: Config) -> Finding:
    note = f"The shortest operations that show it, found by {found.source}, with the engine's answers."
    place = place_of(shown.finding, path, len(shown.operations) + 1)
    return finding_of(shown.finding, config, place, Shortest(shown, note))


def _description(found: Found, finding: Finding, engine: str) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        for line in described(found, engine):
            console.print(Text(line))
        console.print()
        show_finding(console, finding)
    return capture.get()


def described(found: Found, engine: str) -> Iterable[str]:
    """The known issue of a finding, in a few lines."""
    known = next((one for one in issues_of(engine).at("requests") if one.id == found.explanation), None)
    if known is None:
        yield f"{found.rule}: not explained. Suspect the adapter, then the specification, then the engine."
        return
    yield f"{known.title} ({known.id})"
    yield " ".join(known.description.split())
    yield f"In {engine} {known.since}: {', '.join(known.lines)}"
    if known.pull:
        yield f"Fixed by {'SGLang' if engine == 'sglang' else engine} pull request {known.pull}."
