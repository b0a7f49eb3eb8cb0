"""Findings of one release: explained, told as stories, and written as traces."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.text import Text

from kvconform.findings.finding import Finding
from kvconform.findings.text import show_finding
from kvconform.levels.requests.minimise import Shortest
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.traces.codec import TraceWriter
from kvconform.vectors.runner import Counterexample
from kvlab.matrix.report import Found
from kvlab.releases import version_key
from kvspec.events import Config, Operation
from kvspec.rules import Violation
from kvtrace.operations import Header

CHECKOUTS = ("sglang-jax",)
"""Engines whose releases are checkouts, which say nothing of what comes before what."""

RAISES = "raises"
"""Stands for a rule where the engine raised an exception of its own."""


class Symptom(msgspec.Struct, forbid_unknown_fields=True, rename={"with_": "with"}):
    """One way in which it shows."""

    rules: list[str]
    operations: list[str] = []
    with_: list[str] = []
    says: str = ""
    pool: Literal["window", "states"] | None = None

    def fits(self, found: Found) -> bool:
        """Whether a finding shows it."""
        if found.rule not in self.rules or self.says not in found.what:
            return False
        if self.operations and found.operation not in self.operations:
            return False
        if self.pool is not None and found.pool != self.pool:
            return False
        return not Counter(self.with_) - Counter(found.trace)


class Explained(msgspec.Struct, forbid_unknown_fields=True):
    """Why some releases break some rules: an entry of `explained.toml`, which describes the fields."""

    id: str
    title: str
    kind: Literal["engine", "specification"]
    since: str
    lines: list[str]
    story: str
    when: list[Symptom]
    before: str | None = None
    fixed: str | None = None
    engine: str = "sglang"

    def covers(
        self, found: Found, release: str, engine: str = "sglang", repaired: frozenset[str] = frozenset()
    ) -> bool:
        """Whether it explains this finding; a release without a version number is taken for the newest.

        What comes from a checkout has no number, and says which pull requests it has: `repaired`.
        """
        if engine != self.engine or self.fixed in repaired:
            return False
        if engine in CHECKOUTS:
            return any(symptom.fits(found) for symptom in self.when)
        version = version_key(release)
        if version and version < version_key(self.since):
            return False
        if self.before is not None and not (version and version < version_key(self.before)):
            return False
        return any(symptom.fits(found) for symptom in self.when)


@cache
def explanations() -> list[Explained]:
    """Everything that is known of releases."""
    text = Path(__file__).with_name("explained.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["explained"], list[Explained])


def describe(shown: Counterexample, config: Config, source: str, findings: "Findings") -> Found:
    """Name the rule of a finding, and look for what explains it."""
    finding = shown.finding
    last = finding.op or shown.operations[-1]
    trace = [_tag(op) for op in shown.operations]
    found = Found(_rule(finding), _tag(last), str(finding), source, trace, _second_pool(config))
    for explained in explanations():
        if explained.covers(found, findings.release, findings.engine, findings.repaired):
            found.explanation = explained.id
            break
    return found


def _second_pool(config: Config) -> Literal["window", "states"] | None:
    if config.sliding_window:
        return "window"
    return "states" if config.num_states else None


def _rule(finding: RuleBroken | ImplementationFailed) -> str:
    if isinstance(finding, RuleBroken):
        return finding.rule.id
    # What an adapter can tell from the engine's own objects, and the model cannot see.
    return finding.original.rule.id if isinstance(finding.original, Violation) else RAISES


def _tag(op: Operation[Any]) -> str:
    return str(op.__struct_config__.tag)


class Findings:
    """The shortest counterexample of each finding of one release."""

    def __init__(self, release: str, engine: str = "sglang", repaired: frozenset[str] = frozenset()) -> None:
        """Nothing yet. `repaired`: pull requests that the release is known to have."""
        self.release, self.engine, self.repaired = release, engine, repaired
        self._best: dict[tuple[str, str], tuple[Found, Counterexample, Config]] = {}

    def add(self, shown: Counterexample, config: Config, source: str) -> None:
        """Take a counterexample in, unless a shorter one shows the same."""
        found = describe(shown, config, source, self)
        key = found.rule, found.explanation or f"{found.operation}: {found.what}"
        known = self._best.get(key)
        if known is None or len(shown.operations) < len(known[1].operations):
            self._best[key] = found, shown, config

    def write(self, folder: Path) -> list[Found]:
        """Write a trace and a story for each; they are in order of rule."""
        folder.mkdir(parents=True, exist_ok=True)
        names = Counter[str]()
        all_found = []
        for found, shown, config in sorted(self._best.values(), key=lambda best: (best[0].rule, best[0].what)):
            name = f"{found.rule}-{found.explanation or 'unexplained'}"
            names[name] += 1
            path = folder / (f"{name}-{names[name]}.jsonl" if names[name] > 1 else f"{name}.jsonl")
            _write_trace(path, shown.operations, config, f"{self.engine} {self.release}")
            found.file, found.finding = str(path), _told(path, found, shown, config)
            path.with_suffix(".txt").write_text(_story(found, found.finding), encoding="utf-8")
            all_found.append(found)
        return all_found


def _write_trace(path: Path, operations: Sequence[Operation[Any]], config: Config, producer: str) -> None:
    with TraceWriter(path, Header(1, producer, config)) as writer:
        for op in operations:
            # An operation at which the engine raised has no answer, and a trace has no place for it.
            if op.obs is not None or op.refused is not None:
                writer.write(op)


def _told(path: Path, found: Found, shown: Counterexample, config: Config) -> Finding:
    note = f"The shortest operations that show it, found by {found.source}, with the engine's answers."
    place = place_of(shown.finding, path, len(shown.operations) + 1)
    return finding_of(shown.finding, config, place, Shortest(shown, note))


def _story(found: Found, finding: Finding) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        for line in told(found):
            console.print(Text(line))
        console.print()
        show_finding(console, finding)
    return capture.get()


def told(found: Found) -> Iterable[str]:
    """What is known about a finding, in a few lines."""
    known = next((one for one in explanations() if one.id == found.explanation), None)
    if known is None:
        yield f"{found.rule}: not explained. Suspect the adapter, then the specification, then the engine."
        return
    yield f"{known.title} ({known.id})"
    yield " ".join(known.story.split())
    yield f"In {known.engine} {known.since}: {', '.join(known.lines)}"
    if known.fixed:
        whose = "SGLang" if known.engine == "sglang" else known.engine
        yield f"Fixed by {whose} pull request {known.fixed}."
