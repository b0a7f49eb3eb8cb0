"""The vectors that find injected faults in an engine's own code, through its adapter."""

import contextlib
import io
import os
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from kvattach.patches import Patches
from kvconform.features import lacks, needs, vector_under
from kvconform.traces.codec import Vector
from kvconform.vectors.files import read_vectors
from kvconform.vectors.runner import Factory, Outcome, run_vector
from kvlab.injection import Defect, chosen, inject_fault
from kvlab.stubs import EngineError


class Injected(NamedTuple):
    """The outcome of the vectors with one injected defect."""

    name: str
    fail: int
    """The number of vectors that fail with it, and that without it conform or fail later."""
    first: str
    """The first such vector with its finding; empty if none fails."""
    operations: int
    """The number of operations until then."""


def tried(factory: Factory, defects: list[Defect]) -> list[Injected]:
    """Run all vectors that the adapter supports with each defect alone.

    Raises:
        NotInjected: the engine has other lines than those that the defects are for.
    """
    missing = lacks(factory)
    supported = [
        one for one in (vector_under(factory, vector) for vector in read_vectors()) if not needs(one) & missing
    ]
    without = [(vector, _run(vector, factory)) for vector in supported]
    found = []
    for defect in defects:
        with Patches() as patches:
            inject_fault(defect, patches)
            found.append(_with(defect.name, without, factory))
    return found


def _with(name: str, without: list[tuple[Vector, Outcome]], factory: Factory) -> Injected:
    fail, first, operations = 0, "", 0
    for vector, before in without:
        outcome = _run(vector, factory)
        operations += 0 if fail else outcome.operations
        if outcome.finding is not None and (before.finding is None or outcome.operations < before.operations):
            fail += 1
            first = first or f"{vector.name}: {outcome.finding}"
    return Injected(name, fail, first, operations)


def _run(vector: Vector, factory: Factory) -> Outcome:
    # An engine without free memory prints its tree.
    with contextlib.redirect_stdout(io.StringIO()):
        return run_vector(vector, factory)


def show(console: Console, engine: str, results: list[Injected]) -> int:
    """Print the vectors that find each fault. Returns 1 if a fault is missed."""
    for one in results:
        found = f"{one.fail} vectors, after {one.operations} operations {one.first}" if one.fail else "not found"
        console.print(f"  {one.name}: {found}", markup=False, soft_wrap=True)
    console.print(f"{engine}: vectors find {sum(one.fail > 0 for one in results)} of {len(results)} injected faults")
    return 0 if all(one.fail for one in results) else 1


def inject(console: Console, engine: str, folder: Path, fault: str = "") -> int:
    """Inject one fault after the other into an engine's own code, and print the vectors that find it.

    `fault` names the only one to inject; empty: all.

    Raises:
        EngineError: the engine cannot be loaded, or has no adapter. NotInjected: no fault has this name.
    """
    factory, faults = _factory_and_faults(engine, folder)
    return show(console, engine, tried(factory, chosen(faults, fault)))


def _factory_and_faults(engine: str, folder: Path) -> tuple[Factory, list[Defect]]:
    if engine == "sglang":
        os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"  # no fault can be injected into a compiled core
        from kvlab.sglang import adapter as sglang
        from kvlab.sglang import faults_requests

        of_sglang = sglang.adapter(folder)
        return of_sglang, faults_requests.defects(of_sglang.engine)
    if engine == "sglang-jax":
        from kvlab.sglang_jax import adapter as sglang_jax
        from kvlab.sglang_jax import faults

        of_sglang_jax = sglang_jax.adapter(folder)
        return of_sglang_jax, faults.defects(of_sglang_jax.engine)
    raise EngineError(f"{engine} has no adapter: give sglang or sglang-jax")
