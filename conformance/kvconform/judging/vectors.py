"""`kvspec run`: vectors of both levels, each carried out or judged, and what came out of all of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from kvconform.checked import ImplementationFailed, RuleBroken
from kvconform.console import BROKEN, CONFORMS, progress_bar
from kvconform.errors import LoadError
from kvconform.features import UnknownFeatureError, lacks, needs
from kvconform.findings.accepted import Accepted, read_accepted
from kvconform.findings.finding import Finding
from kvconform.findings.shrink import shortest_of_run
from kvconform.findings.summary import show_accepted, show_gaps, show_run
from kvconform.findings.telling import finding_of, place_of
from kvconform.findings.text import show_finding
from kvconform.implementations import load
from kvconform.memory.vectors import run_memory_vector, show_memory_run
from kvconform.traces.codec import Header, TraceWriter, Vector, read_vector
from kvconform.traces.memory import level_of_file, read_memory_vector
from kvconform.vectors.files import FOLDER, memory_vector_files, vector_files
from kvconform.vectors.runner import Breach, Factory, Outcome, run_vector
from kvspec.events import Operation, Snapshot


def run_vectors(
    out: Console, vectors: Sequence[Path] | None, impl: str, record: Path | None, accept: Path | None, verbose: bool
) -> int:
    """Run vectors, without any kvspec's own, and print what came out; the exit status. Tables only if `verbose`.

    Raises:
        InputError: a file cannot be used.
        LoadError: the implementation cannot be had, or supports none of the vectors.
    """
    paths = vectors or [*vector_files(), *memory_vector_files()]
    if not paths:
        raise LoadError(f"there are no vectors in {FOLDER}")
    by_law = [path for path in paths if level_of_file(path) == "memory"]
    memory = [read_memory_vector(path) for path in by_law]
    read = [read_vector(path) for path in paths if path not in by_law]
    factory = load(impl) if read else None
    known = read_accepted(accept)
    statuses = {CONFORMS}
    if memory:
        results = [(vector, run_memory_vector(vector)) for vector in memory]
        show_memory_run(out, results, verbose)
        statuses.update(BROKEN for _, result in results if result.mismatch is not None)
    if factory is not None:
        statuses.add(_run_all(out, read, factory, impl, record, known, verbose))
    return max(statuses)


def _run_all(
    out: Console,
    read: list[Vector],
    factory: Factory,
    impl: str,
    record: Path | None,
    accepted: Accepted,
    verbose: bool,
) -> int:
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
    lacking = _lacking(factory, impl)
    results, unsupported = [], []
    with progress_bar() as progress:
        for vector in progress.track(read, description="vectors"):
            if lacking and (missing := needs(vector) & lacking):
                unsupported.append((vector, missing))
            else:
                results.append((vector, _run_one(vector, factory, impl, record)))
    if not results:
        raise LoadError(f"implementation {impl!r} supports none of these vectors")
    failed = [(vector, outcome) for vector, outcome in results if not _conforms(outcome, accepted)]
    if verbose:
        show_run(out, results, unsupported)
    show_gaps(out, results, unsupported)
    for finding in tell_all(failed, factory):
        show_finding(out, finding)
    show_accepted(out, accepted)
    operations = sum(outcome.operations for _, outcome in results)
    aside = f", {len(unsupported)} are not supported" if unsupported else ""
    known = f", {accepted.count.total()} up to what is accepted" if accepted.count.total() else ""
    conform = f"{len(results) - len(failed)} of {len(results)} vectors conform{known}{aside}"
    out.print(f"{impl}: {conform}; {operations:,} operations checked.", soft_wrap=True)
    return BROKEN if failed else CONFORMS


def tell_all(failed: Sequence[tuple[Vector, Outcome]], factory: Factory) -> list[Finding]:
    """What was found, each thing once: where several vectors show the same, by the one that shows it first."""
    groups: dict[object, list[tuple[Vector, Outcome]]] = {}
    for vector, outcome in failed:
        if outcome.finding is not None:
            groups.setdefault(_same(outcome.finding), []).append((vector, outcome))
    findings = []
    for group in groups.values():
        group.sort(key=lambda one: one[1].operations)
        finding = tell_run(*group[0], factory)
        finding.also = [
            place_of(outcome.finding, vector.path, outcome.line, vector.name)
            for vector, outcome in group[1:]
            if outcome.finding is not None
        ]
        findings.append(finding)
    return findings


def _same(breach: Breach) -> object:
    """What the findings of two vectors have in common that are most likely one defect: the rule, and the operation."""
    match breach:
        case RuleBroken():
            return breach.rule.id, type(breach.op)
        case ImplementationFailed():
            return type(breach.original), type(breach.op)
    return breach


def tell_run(vector: Vector, outcome: Outcome, factory: Factory) -> Finding:
    """What a vector has shown, by the shortest part of it."""
    breach = outcome.finding
    assert breach is not None
    shortest = shortest_of_run(vector, outcome, factory)
    place = place_of(breach, vector.path, outcome.line, vector.name)
    original = _carried_out(vector, breach, factory) if shortest.demonstration is None else ()
    return finding_of(breach, vector.header.config, place, shortest, original)


def _carried_out(vector: Vector, breach: Breach, factory: Factory) -> list[tuple[int, Operation[Any]]]:
    """The operations of a vector with their answers and lines, up to the one at which something was found.

    What they are answered is asked for once more; the last one is told as it was found.
    """
    done: list[Operation[Any]] = []
    if breach.op is None:
        return []
    run_vector(vector, factory, done.append)
    asked = [op for op in done if not isinstance(op, Snapshot)][: breach.step - 1]
    lines = [step.line for step in vector.steps]
    return [*zip(lines, asked, strict=False), (lines[breach.step - 1], breach.op)]


def _conforms(outcome: Outcome, accepted: Accepted) -> bool:
    """Whether a vector came out right, up to a finding that is known."""
    match outcome.finding:
        case RuleBroken() as broken:
            return accepted.take(broken.rule.id, str(broken.op.__struct_config__.tag), broken.what)
        case finding:
            return finding is None


def _lacking(factory: Factory, impl: str) -> frozenset[str]:
    try:
        return lacks(factory)
    except UnknownFeatureError as error:
        raise LoadError(f"implementation {impl!r}: {error}") from error


def _run_one(vector: Vector, factory: Factory, impl: str, folder: Path | None) -> Outcome:
    if folder is None:
        return run_vector(vector, factory)
    header = Header(vector.header.kvspec, impl, vector.header.config)
    with TraceWriter(folder / f"{vector.name}.jsonl", header) as writer:
        return run_vector(vector, factory, writer.write)
