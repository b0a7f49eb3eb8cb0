"""Runs an engine's own scheduler with hooks, judges every event at once, and says what was found.

python -m kvlab.trial nano-vllm CHECKOUT --runs 100
python -m kvlab.trial mini-sglang CHECKOUT --mended --planted
python -m kvlab.trial sglang WHEEL --planted
"""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvcheck.words import describe
from kvlab.drives import Trial, judged
from kvlab.injection import NotPlanted
from kvlab.stubs import EngineError

ATTACHED = ("vllm", "sglang", "sglang-jax", "mini-sglang", "nano-vllm")
"""Engines that can be driven."""


def trial_of(engine: str, folder: Path | None) -> Trial:
    """The engine in a checkout or an unpacked wheel; `None`: the vLLM that is installed.

    Raises:
        EngineError: it cannot be had.
    """
    if engine == "vllm":
        from kvlab.vllm.trial import trial as trial_of_vllm

        return trial_of_vllm(folder)
    if folder is None:
        raise EngineError(f"{engine} is driven from a folder")
    if engine == "nano-vllm":
        from kvlab.nano_vllm.trial import trial
    elif engine == "mini-sglang":
        from kvlab.mini_sglang.trial import trial
    elif engine == "sglang":
        from kvlab.sglang.trial import trial
    elif engine == "sglang-jax":
        from kvlab.sglang_jax.trial import trial
    else:
        raise EngineError(f"{engine} is none of {', '.join(ATTACHED)}")
    return trial(folder)


def main(
    engine: Annotated[str, typer.Argument(help="nano-vllm, mini-sglang, sglang or vllm.")],
    folder: Annotated[Path, typer.Argument(help="A checkout, or a folder that holds an unpacked wheel.")],
    runs: Annotated[
        int, typer.Option(min=1, help="Random runs; with --planted, at most so many for each defect.")
    ] = 50,
    planted: Annotated[bool, typer.Option("--planted", help="Plant defects, one after the other.")] = False,
    mended: Annotated[bool, typer.Option("--mended", help="Without the engine's known defects.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The first run's seed; each run has the next one.")] = 0,
    events: Annotated[int | None, typer.Option(min=1, help="Stop after so many events, between two runs.")] = None,
) -> None:
    """Drive an engine, and print what the law found."""
    # An engine's own log would drown the table.
    logging.disable(logging.CRITICAL)
    console = Console()
    try:
        trial = trial_of(engine, folder)
    except EngineError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise SystemExit(2) from error
    if not planted:
        judge = judged(trial, runs, mended=mended, first_seed=seed, events=events)
        console.print(f"{trial.name}: {judge.events:,} events, {len(judge.found):,} findings, seeds from {seed}")
        for (code, pool, at), times in judge.kinds().most_common():
            event, finding = next(
                (n, f) for n, f in judge.found if (f.code, f.pool or "", f.at or "") == (code, pool, at)
            )
            console.print(f"  {code} {times:,} times, first at event {event:,}: {describe(finding)}", markup=False)
        raise SystemExit(1 if judge.found else 0)
    missed = 0
    for defect in trial.defects:
        try:
            first = judged(trial, runs, defect=defect, mended=mended).first
        except NotPlanted as error:
            console.print(f"  {error}", markup=False)
            missed += 1
            continue
        missed += first is None
        told = "not found" if first is None else f"{first[1].rule} at event {first[0]:,}: {describe(first[1])}"
        console.print(f"  {defect.name}: {told}", markup=False, soft_wrap=True)
    console.print(f"{trial.name}: {len(trial.defects) - missed} of {len(trial.defects)} planted defects found")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
