"""Plants defects in sglang-jax's own code, and says which vectors find them through the adapter.

python -m kvconform.attach.sglang_jax.requests CHECKOUT
"""

import contextlib
import io
import logging
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from kvconform.attach.patches import Patches
from kvconform.attach.planting import plant
from kvconform.attach.sglang_jax.defects import defects
from kvconform.engines.sglang_jax import adapter
from kvconform.engines.standins import EngineError
from kvconform.features import lacks, needs, vector_under
from kvconform.traces.codec import Vector
from kvconform.vectors.files import read_vectors
from kvconform.vectors.runner import Factory, run_vector


class Planted(NamedTuple):
    """What the vectors say of one defect."""

    name: str
    fail: int
    """Vectors that fail."""
    first: str
    """The first of them, and its finding; empty if none fails."""
    operations: int
    """Operations that it took."""


def tried(folder: Path) -> list[Planted]:
    """Each defect alone, with all vectors that the adapter supports.

    Raises:
        EngineError: the checkout cannot be had.
        NotPlanted: it has other lines than those that the defects are for.
    """
    factory = adapter(folder)
    missing = lacks(factory)
    vectors = [one for one in (vector_under(factory, vector) for vector in read_vectors()) if not needs(one) & missing]
    found = []
    for defect in defects(factory.engine):
        patches = Patches()
        plant(defect, patches)
        try:
            found.append(_with(defect.name, vectors, factory))
        finally:
            patches.undo()
    return found


def _with(name: str, vectors: list[Vector], factory: Factory) -> Planted:
    fail, first, operations = 0, "", 0
    for vector in vectors:
        # What is out of memory prints its tree.
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = run_vector(vector, factory)
        operations += 0 if fail else outcome.operations
        if outcome.finding is not None:
            fail += 1
            first = first or f"{vector.name}: {outcome.finding}"
    return Planted(name, fail, first, operations)


def main(folder: Annotated[Path, typer.Argument(help="A checkout, since pull request 994.")]) -> None:
    """Plant one defect after the other, and print what the vectors find."""
    logging.disable(logging.CRITICAL)
    console = Console()
    try:
        planted = tried(folder)
    except EngineError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise SystemExit(2) from error
    for one in planted:
        told = f"{one.fail} vectors, after {one.operations} operations {one.first}" if one.fail else "not found"
        console.print(f"  {one.name}: {told}", markup=False, soft_wrap=True)
    console.print(f"sglang-jax: vectors find {sum(one.fail > 0 for one in planted)} of {len(planted)} planted defects")
    raise SystemExit(0 if all(one.fail for one in planted) else 1)


if __name__ == "__main__":
    typer.run(main)
