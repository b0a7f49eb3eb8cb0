"""The checks that find each defect of the gallery, their speed, and the length of the shortest trace."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from statistics import median
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvconform.features import lacks, needs_of_config, under, vector_under
from kvconform.findings.finding import Finding, Place
from kvconform.fuzzing.fuzz import Budget, fuzz, shortest
from kvconform.gallery import memory_alone
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug
from kvconform.gallery.replaying import Replayed, replay, shortest_loop
from kvconform.levels.requests.minimise import Shortest, effort_for_one, kind, shrink
from kvconform.levels.requests.rendering import finding_of, place_of, tag
from kvconform.proxy import RuleBroken
from kvconform.signals import Interrupted, caught, until_interrupted
from kvconform.traces.codec import Vector
from kvconform.vectors.files import own_name, read_vectors
from kvconform.vectors.runner import Counterexample, ExpectationFailed, run_vector, try_out, unanswered
from kvspec.events import Config, Snapshot

REPLAY_RUNS = 100
"""Runs of replayed traffic for one defect."""
SYNTHETIC_MARK = " *"
"""Follows the name of a synthetic defect in the table."""
SHRUNK_VECTORS = 3
"""The number of vectors whose finding of a defect is shortened."""


class Shown(NamedTuple):
    """Operations that show a defect, on an implementation of certain sizes."""

    config: Config
    counterexample: Counterexample
    place: Place
    """Where the defect was met: in a vector, by fuzzing, in traffic."""

    @property
    def rule(self) -> str:
        """The id of the rule that is blamed, or the exception if the implementation failed."""
        return rule_of(self.counterexample)

    @property
    def finding(self) -> Finding:
        """The finding, described."""
        shown = self.counterexample
        note = f"The shortest operations that show it ({len(shown.operations)})."
        return finding_of(shown.finding, self.config, self.place, Shortest(shown, note))

    @property
    def events(self) -> int:
        """The number of operations, without snapshots."""
        return sum(not isinstance(op, Snapshot) for op in self.counterexample.operations)


class FoundByVector(NamedTuple):
    """A vector that finds a defect."""

    vector: Vector
    rule: str
    """The rule that is blamed, or another failure."""
    operations: int


class FoundByFuzzing(NamedTuple):
    """How fuzzing a defect ended."""

    seconds: float
    operations: int
    shown: Shown | None
    """Shortened as far as possible; `None` if nothing was found."""


class Specimen(NamedTuple):
    """All that is known about a defect."""

    bug: Bug
    vectors: list[FoundByVector]
    fuzzed: FoundByFuzzing | None
    """`None` if the defect was not fuzzed, or is one of the scheduler, which vectors and fuzzing do not use."""
    replayed: Replayed | None
    """`None` for a defect that traffic does not reach."""
    shortest: Shown | None
    by_memory_model: Counter[str]
    """Rule of the memory model -> how many vectors show the defect to the memory checker alone, by this rule first."""

    @property
    def is_found(self) -> bool:
        """Whether each search that applies found it, and blamed one of its rules."""
        by_replay = self.replayed is None or (
            self.replayed.shown is not None and rule_of(self.replayed.shown) in self.bug.rules
        )
        if self.bug.is_of_scheduler:
            return by_replay
        by_vector = bool(self.vectors) and all(found.rule in self.bug.rules for found in self.vectors)
        by_fuzzing = self.fuzzed is None or _rule_found(self.fuzzed) in self.bug.rules
        return by_replay and by_vector and by_fuzzing


def rule_of(shown: Counterexample) -> str:
    """The rule that a counterexample ends in, or the exception that the implementation raised."""
    finding = shown.finding
    return finding.rule.id if isinstance(finding, RuleBroken) else type(finding.original).__name__


def _rule_found(fuzzed: FoundByFuzzing) -> str:
    return "" if fuzzed.shown is None else fuzzed.shown.rule


def find_by_vectors(bug: Bug, vectors: Sequence[Vector]) -> list[FoundByVector]:
    """The vectors that find a defect."""
    found, lacking = [], lacks(bug.factory)
    for vector in (vector_under(bug.factory, vector) for vector in vectors):
        if needs_of_config(vector.header.config) & lacking:
            continue
        outcome = run_vector(vector, bug.factory)
        match outcome.finding:
            case None:
                continue
            case ExpectationFailed():
                rule = "expectation"
            case finding:
                rule = rule_of(Counterexample([], finding))
        found.append(FoundByVector(vector, rule, outcome.operations))
    return found


def find_by_memory_model(bug: Bug, vectors: Sequence[Vector]) -> Counter[str]:
    """How many vectors show a defect to the memory checker alone, by the rule that is broken first.

    The checker assumes that launches read rows until they complete. Vectors that set this otherwise are left out.
    """
    found, lacking = Counter[str](), lacks(bug.factory) | {"rows_at_launch", "rows_in_order"}
    for vector in vectors:
        config = under(bug.factory, vector.header.config)
        if not needs_of_config(config) & lacking:
            operations = (unanswered(step.op) for step in vector.steps)
            found.update(finding.rule for finding in memory_alone.findings(bug.factory, config, operations)[:1])
    return found


def shorten(bug: Bug, found: FoundByVector) -> Shown | None:
    """The shortest part of a vector that shows the defect."""
    config = found.vector.header.config
    operations = [step.op for step in islice(found.vector.steps, found.operations)]
    shrunk = shrink(operations, partial(try_out, config=config, factory=bug.factory), kind, effort_for_one())
    return None if shrunk is None else Shown(config, shrunk.counterexample, _place_in(found))


def _place_in(found: FoundByVector) -> Place:
    path, step = found.vector.path, found.vector.steps[found.operations - 1]
    return Place(str(path), step.line, found.operations, tag(step.op), own_name(path))


def find_by_fuzzing(bug: Bug, budget: Budget, seed: int) -> FoundByFuzzing:
    """Fuzz a defect, and shorten the finding."""
    fuzzed = fuzz(bug.factory, budget, seed, lambda *_: None)
    failure = fuzzed.failure
    shown = None
    if failure is not None and (found := shortest(failure, bug.factory, effort_for_one()).counterexample) is not None:
        shown = Shown(failure.config, found, place_of(failure.finding, "fuzzing"))
    if caught():
        raise Interrupted
    return FoundByFuzzing(fuzzed.seconds, fuzzed.tally.steps, shown)


def shortest_without_fuzzing(
    bug: Bug, vectors: Sequence[Vector], seed: int
) -> tuple[list[FoundByVector], Shown | None]:
    """The vectors that find a defect, and its shortest trace in them or, for the scheduler's defects, in traffic."""
    if bug.is_of_scheduler:
        return [], _shortest_of_traffic(bug, replay(bug, REPLAY_RUNS, seed))
    found = find_by_vectors(bug, vectors)
    return found, _shortest(bug, _shortened(bug, found))


def _shortest_of_traffic(bug: Bug, replayed: Replayed) -> Shown | None:
    shown = shortest_loop(bug, replayed.run) or replayed.shown
    return None if shown is None else Shown(replayed.run.config, shown, place_of(shown.finding, "replayed traffic"))


def _shortened(bug: Bug, found: Sequence[FoundByVector]) -> list[Shown | None]:
    simplest = sorted(found, key=lambda one: one.operations)[:SHRUNK_VECTORS]
    return [shorten(bug, one) for one in simplest]


def _shortest(bug: Bug, candidates: Sequence[Shown | None]) -> Shown | None:
    """The shortest candidate that blames a rule of the defect."""
    right = [shown for shown in candidates if shown is not None and shown.rule in bug.rules]
    return min(right, key=lambda shown: shown.events, default=None)


def examine(bug: Bug, vectors: Sequence[Vector], budget: Budget | None, seed: int) -> Specimen:
    """Let vectors, replayed traffic, and with a budget fuzzing, look for a defect."""
    replayed = replay(bug, REPLAY_RUNS, seed) if bug.traffic else None
    if bug.is_of_scheduler and replayed is not None:
        return Specimen(bug, [], None, replayed, _shortest_of_traffic(bug, replayed), Counter())
    found = find_by_vectors(bug, vectors)
    fuzzed = None if budget is None else find_by_fuzzing(bug, budget, seed)
    shortest = _shortest(bug, [fuzzed and fuzzed.shown, *_shortened(bug, found)])
    return Specimen(bug, found, fuzzed, replayed, shortest, find_by_memory_model(bug, vectors))


def examine_all(chosen: Sequence[Bug], budget: Budget | None, seed: int) -> list[Specimen]:
    """Examine defects, with progress on a terminal."""
    vectors = read_vectors()
    specimens = []
    with _progress() as progress:
        task = progress.add_task("", total=len(chosen))
        with until_interrupted():
            for bug in chosen:
                progress.update(task, description=bug.name)
                specimens.append(examine(bug, vectors, budget, seed))
                progress.advance(task)
    return specimens


def show_table(console: Console, specimens: Sequence[Specimen]) -> None:
    """Print one row a defect."""
    table = Table(title="Bug gallery", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("defect", "rule", "vectors", "fuzzing", "replay", "events", "memory model"):
        right = title in ("replay", "events")
        table.add_column(title, no_wrap=True, justify="right" if right else "left")
    for one in specimens:
        table.add_row(
            one.bug.name + SYNTHETIC_MARK * one.bug.synthetic,
            one.bug.rule,
            _by_vectors(one),
            _by_fuzzing(one),
            _by_replay(one),
            Text("-", "bold red") if one.shortest is None else str(one.shortest.events),
            ", ".join(f"{rule} {count}" for rule, count in one.by_memory_model.most_common()),
        )
    console.print(table)
    found = sum(one.is_found for one in specimens)
    console.print(
        "vectors: how many find it. fuzzing: seconds and operations until it was found. replay: requests until it was "
        "found. events: operations of the shortest trace. A rule is named where it is not one of the defect's own. "
        "memory model: the vectors in which the memory checker alone finds it, without the rules of the other columns.",
        f"{SYNTHETIC_MARK.strip()} synthetic: {SYNTHETIC}.",
        f"{found} of {len(specimens)} defects are found by every search that applies, "
        f"{sum(bool(one.by_memory_model) for one in specimens)} by the memory checker alone.",
        *_operations_needed(specimens),
        sep="\n",
        soft_wrap=True,
    )


def _operations_needed(specimens: Sequence[Specimen]) -> list[str]:
    """How many operations the fuzzer needed, in words, if it found any defect."""
    fuzzed = [one.fuzzed for one in specimens if one.fuzzed is not None]
    needed = [found.operations for found in fuzzed if found.shown is not None]
    if not needed:
        return []
    return [
        f"fuzzing found {len(needed)} of {len(fuzzed)}: the median in {median(needed):,.0f} operations, the worst in "
        f"{max(needed):,}."
    ]


def _by_vectors(one: Specimen) -> Text:
    if one.bug.is_of_scheduler:
        return Text("n/a", "dim")
    if not one.vectors:
        return Text("none", "bold red")
    text = Text(str(len(one.vectors)))
    for rule in sorted({found.rule for found in one.vectors} - set(one.bug.rules)):
        text.append(f" {rule}", "bold red")
    return text


def _by_fuzzing(one: Specimen) -> Text:
    if one.fuzzed is None:
        return Text("n/a" if one.bug.is_of_scheduler else "not tried", "dim")
    if one.fuzzed.shown is None:
        return Text("not found", "bold red")
    text = Text(f"{one.fuzzed.seconds:.1f} s, {one.fuzzed.operations:,}")
    return text if one.fuzzed.shown.rule in one.bug.rules else text.append(f" {one.fuzzed.shown.rule}", "bold red")


def _by_replay(one: Specimen) -> Text:
    if one.replayed is None:
        return Text("n/a", "dim")
    if one.replayed.shown is None:
        return Text("not found", "bold red")
    rule = rule_of(one.replayed.shown)
    text = Text(f"{one.replayed.requests:,}")
    return text if rule in one.bug.rules else text.append(f" {rule}", "bold red")


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
