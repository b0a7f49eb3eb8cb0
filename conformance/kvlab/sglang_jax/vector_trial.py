"""Plants defects in sglang-jax's own code, and says which vectors find them through the adapter.

python -m kvlab.sglang_jax.vector_trial CHECKOUT
"""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.sglang_jax.adapter import adapter
from kvlab.sglang_jax.faults import defects
from kvlab.vector_trial import Planted, told, tried


def main(folder: Annotated[Path, typer.Argument(help="A checkout, since pull request 994.")]) -> None:
    """Plant one defect after the other, and print what the vectors find."""

    def planted() -> list[Planted]:
        factory = adapter(folder)
        return tried(factory, defects(factory.engine))

    raise SystemExit(told("sglang-jax", planted))


if __name__ == "__main__":
    typer.run(main)
