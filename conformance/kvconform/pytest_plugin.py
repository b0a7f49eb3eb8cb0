"""`pytest --kvspec-impl my_engine:Adapter`: every vector is a test of that implementation.

The tests are named `kvspec::tail_freed_after_retract_p4`. They can be selected by that name and by `-k`, and marked
from a `conftest.py` like any other test. A failure's text is kvspec's own report. Vectors that need declared missing
features are skipped, with the reason. Without the option nothing of kvspec is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvconform.traces.codec import Vector
    from kvconform.vectors.runner import Factory, Outcome

ROOT = "kvspec"
"""The prefix of the names of these tests."""

WIDTH = 100
"""The columns of a report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("kvspec", "conformance of a KV-cache manager")
    group.addoption(
        "--kvspec-impl",
        metavar="MODULE:CLASS",
        help="run the conformance vectors against this implementation: "
        "'reference', 'cuda', 'module:Class' or 'exec:COMMAND'",
    )
    group.addoption(
        "--kvspec-vectors",
        metavar="PATH",
        action="append",
        default=[],
        help="a vector file, or a folder of them, instead of kvspec's own; may be given several times",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Do nothing, unless an implementation is named."""
    implementation = config.getoption("--kvspec-impl")
    if implementation:
        picked = [arg.removeprefix(f"{ROOT}::") for arg in config.args if arg.startswith(f"{ROOT}::")]
        config.args[:] = [arg for arg in config.args if not arg.startswith(f"{ROOT}::")]
        config.pluginmanager.register(_Vectors(implementation, picked), "kvspec-vectors")


class _Vectors:
    """Adds the tests."""

    def __init__(self, implementation: str, picked: list[str]) -> None:
        self._implementation = implementation
        self._picked = picked

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add one test for each vector, before `-k` and similar options select tests."""
        from kvconform.errors import InputError, LoadError
        from kvconform.features import lacks, vector_under
        from kvconform.implementations import load
        from kvconform.traces.codec import read_vector

        try:
            factory = load(self._implementation)
            lacking = lacks(factory)
            vectors = [vector_under(factory, read_vector(path)) for path in _paths(session.config)]
        except (LoadError, InputError, ValueError) as error:
            raise pytest.UsageError(f"--kvspec-impl {self._implementation}: {error}") from error
        known = {vector.name for vector in vectors}
        for name in self._picked:
            if name not in known:
                raise pytest.UsageError(f"there is no vector {name!r}")
        root: VectorCollector = VectorCollector.from_parent(session, name=ROOT, nodeid=ROOT)
        root.vectors = [vector for vector in vectors if not self._picked or vector.name in self._picked]
        root.factory, root.lacking = factory, lacking
        items.extend(root.collect())


def _paths(config: pytest.Config) -> list[Path]:
    from pathlib import Path

    from kvconform.vectors.files import vector_files

    given = [Path(path) for path in config.getoption("--kvspec-vectors")]
    if not given:
        return vector_files()
    return [file for path in given for file in (vector_files(path) if path.is_dir() else [path])]


class VectorCollector(pytest.Collector):
    """The parent of all these tests."""

    factory: Factory
    lacking: frozenset[str]
    vectors: list[Vector]

    def collect(self) -> Iterator[VectorItem]:
        """One test for each vector."""
        for vector in self.vectors:
            item: VectorItem = VectorItem.from_parent(self, name=vector.name)
            item.vector, item.factory, item.lacking = vector, self.factory, self.lacking
            yield item


class VectorItem(pytest.Item):
    """One vector as a test."""

    factory: Factory
    lacking: frozenset[str]
    vector: Vector

    def runtest(self) -> None:
        """Carry the vector out on a fresh implementation."""
        from kvconform.features import needs, why_not
        from kvconform.vectors.runner import run_vector

        missing = needs(self.vector) & self.lacking if self.lacking else frozenset[str]()
        if missing:
            pytest.skip(f"not supported: {why_not(missing)}")
        outcome = run_vector(self.vector, self.factory)
        if outcome.finding is not None:
            raise DoesNotConform(outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """The output of `kvspec run`."""
        if isinstance(excinfo.value, DoesNotConform):
            return self._report(excinfo.value.outcome)
        return super().repr_failure(excinfo, *args, **kwargs)

    def _report(self, outcome: Outcome) -> str:
        from io import StringIO

        from rich.console import Console

        from kvconform.findings.text import show_finding
        from kvconform.levels.requests.vectors import finding_of_run

        text = StringIO()
        finding = finding_of_run(self.vector, outcome, self.factory)
        show_finding(Console(file=text, width=WIDTH), finding)
        return f"{self.vector.header.description or self.vector.name}\n\n{text.getvalue().rstrip()}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file of the vector, and its name."""
        return self.vector.path, 0, self.nodeid


class DoesNotConform(Exception):
    """An implementation failed a vector."""

    def __init__(self, outcome: Outcome) -> None:
        """Keep the outcome for the report."""
        super().__init__(str(outcome.finding))
        self.outcome = outcome
