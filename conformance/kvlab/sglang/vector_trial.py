"""Plants defects in the code of an SGLang release, and says which vectors find them through the adapter.

python -m kvlab.sglang.vector_trial VERSION
"""

import os
from typing import Annotated

import typer

from kvlab.releases import folder_of
from kvlab.sglang.adapter import adapter
from kvlab.sglang.faults_requests import defects
from kvlab.stubs import EngineError
from kvlab.vector_trial import Planted, told, tried


def main(
    version: Annotated[str, typer.Argument(help="A release that is there ('kvspec engines list'), from 0.5.19.")],
) -> None:
    """Plant one defect after the other, and print what the vectors find."""

    def planted() -> list[Planted]:
        folder = folder_of(version)
        if not (folder / "sglang").is_dir():
            raise EngineError(f"SGLang {version} is not there: kvspec engines install sglang=={version}")
        os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"  # nothing can be planted in a compiled core
        factory = adapter(folder)
        return tried(factory, defects(factory.engine))

    raise SystemExit(told(f"SGLang {version}", planted))


if __name__ == "__main__":
    typer.run(main)
