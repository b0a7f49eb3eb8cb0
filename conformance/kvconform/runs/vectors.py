"""`kvspec run`: runs vectors of both levels and reports the outcome."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, Forms
from kvconform.errors import InputError, LoadError
from kvconform.findings.baseline import Baseline, read_baseline
from kvconform.findings.formats import to_json, write
from kvconform.findings.outcome import Report
from kvconform.findings.summary import show_baseline
from kvconform.findings.text import show_finding
from kvconform.implementations import load
from kvconform.levels.both import LEVELS
from kvconform.levels.level import Ran, Task
from kvconform.runs.card import make_card, write_card
from kvconform.traces.memory import level_of_file
from kvconform.vectors.files import FOLDER, memory_vector_files, vector_file, vector_files


def run_vectors(out: Console, task: Task, forms: Forms) -> int:
    """Run vectors and report the outcome. Returns the exit status.

    Raises:
        InputError: a file is invalid. LoadError: the implementation cannot be loaded, or supports none of the vectors.
        OSError: a file cannot be written.
    """
    # Vectors of the memory level need no implementation.
    own = [*vector_files(), *(memory_vector_files() if task.impl == "reference" else ())]
    paths = [file for path in task.vectors or () for file in _found(path)] or own
    if not paths:
        raise LoadError(f"there are no vectors in {FOLDER}")
    vectors: dict[str, list[Any]] = {name: [] for name in LEVELS}
    for path in paths:
        name = level_of_file(path)
        vector = LEVELS[name].read_vector(path)
        if _wanted(vector, task):
            vectors[name].append(vector)
    if not any(vectors.values()):
        raise LoadError(f"there is no vector about {task.word!r}")
    factory = load(task.impl) if vectors["request"] else None
    baseline = read_baseline(task.baseline_file)
    report, every = Report("run", task.impl), list[Ran]()
    for name, level in LEVELS.items():
        if vectors[name] and not (task.first and any(ran.failed for ran in every)):
            every.append(level.run(vectors[name], task, baseline, factory, report))
    if not report.cases:
        raise LoadError(f"no vector checks {task.rule}")
    write(report, junit=forms.junit, sarif=forms.sarif, html=forms.html, out=forms.out)
    if forms.json:
        out.print(to_json(report), markup=False, highlight=False, soft_wrap=True)
    else:
        _show(out, report, every, baseline, forms)
    if task.card is None:
        return CONFORMS if report.conforms else BROKEN
    if factory is None:
        raise LoadError("a report card is about vectors of the request level, and there are none")
    card = make_card(report, factory, baseline)
    write_card(card, task.card)
    return CONFORMS if report.conforms and not card.broken else BROKEN


def _found(path: Path) -> list[Path]:
    """The files of a folder, the file, or, if there is none, kvspec's own vector of that name."""
    if path.is_dir():
        if not (files := vector_files(path)):
            raise InputError(path, 0, "there are no vectors in this folder")
        return files
    return [path if path.exists() or path.name != str(path) or path.suffix else vector_file(path.name)]


def _wanted(vector: Any, task: Task) -> bool:
    """Whether a vector has the word. Vectors that check a rule are known only after they have run."""
    if task.word is None or task.rule is not None:
        return True
    words = (vector.name, vector.path.parent.name, *vector.header.rules)
    return any(task.word.casefold() in one.casefold() for one in words)


def _show(out: Console, report: Report, every: Sequence[Ran], baseline: Baseline, forms: Forms) -> None:
    """Print the outcomes."""
    for ran in every:
        ran.show(out, forms)
    if not forms.quiet:
        for finding in report.findings:
            show_finding(out, finding)
        show_baseline(out, baseline)
    for ran in every:
        if ran.summary:
            out.print(Text(ran.summary), soft_wrap=True)
