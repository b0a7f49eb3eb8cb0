"""`kvspec run`: vectors of both levels, each carried out or judged, and what came out of all of them."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kvconform.checked import RuleBroken
from kvconform.console import BROKEN, CONFORMS, progress_bar
from kvconform.errors import LoadError
from kvconform.features import UnknownFeatureError, lacks, needs
from kvconform.findings.accepted import Accepted, read_accepted
from kvconform.findings.report import Place, show_finding
from kvconform.findings.shrink import shortest_of_run
from kvconform.findings.summary import show_accepted, show_run
from kvconform.implementations import load
from kvconform.memory.vectors import run_memory_vector, show_memory_run
from kvconform.traces.codec import Header, TraceWriter, Vector, read_vector
from kvconform.traces.memory import level_of_file, read_memory_vector
from kvconform.vectors.files import FOLDER, memory_vector_files, vector_files
from kvconform.vectors.runner import Factory, Outcome, run_vector


def run_vectors(
    out: Console, vectors: Sequence[Path] | None, impl: str, record: Path | None, accept: Path | None
) -> int:
    """Run vectors, without any kvspec's own, and print what came out; the exit status.

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
        show_memory_run(out, results)
        statuses.update(BROKEN for _, result in results if result.mismatch is not None)
    if factory is not None:
        statuses.add(_run_all(out, read, factory, impl, record, known))
    return max(statuses)


def _run_all(
    out: Console, read: list[Vector], factory: Factory, impl: str, record: Path | None, accepted: Accepted
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
    show_run(out, results, unsupported)
    for vector, outcome in failed:
        if outcome.finding is not None:
            shortest = shortest_of_run(vector, outcome, factory)
            show_finding(out, Place(vector.path, outcome.line), outcome.finding, vector.header.config, shortest)
    show_accepted(out, accepted)
    operations = sum(outcome.operations for _, outcome in results)
    aside = f", {len(unsupported)} are not supported" if unsupported else ""
    known = f", {accepted.count.total()} up to what is accepted" if accepted.count.total() else ""
    conform = f"{len(results) - len(failed)} of {len(results)} vectors conform{known}{aside}"
    out.print(f"{impl}: {conform}; {operations:,} operations checked.", soft_wrap=True)
    return BROKEN if failed else CONFORMS


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
