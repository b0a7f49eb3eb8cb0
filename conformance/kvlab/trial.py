"""An engine's own scheduler, driven with hooks and checked event by event, unmodified or with injected faults."""

import importlib
from pathlib import Path

from rich.console import Console

from kvconform.findings.wording import counted
from kvconform.signals import until_interrupted
from kvlab.drives import CheckedTrace, Trial, drive_trial
from kvlab.injection import NotInjected, chosen
from kvlab.stubs import EngineError
from kvlab.tokens import describe

ATTACHED = ("vllm", "sglang", "sglang-jax", "mini-sglang", "nano-vllm", "transformers", "lmcache", "max")
"""Engines that can be driven."""


def trial_of(engine: str, folder: Path | None) -> Trial:
    """The engine in a checkout or an unpacked wheel; `None`: the installed vLLM.

    Raises:
        EngineError: the engine cannot be loaded.
    """
    if engine not in ATTACHED:
        raise EngineError(f"{engine} is none of {', '.join(ATTACHED)}")
    if folder is None and engine != "vllm":
        raise EngineError(f"{engine} is driven from a folder")
    made: Trial = importlib.import_module(f"kvlab.{engine.replace('-', '_')}.trial").trial(folder)
    return made


def drive(
    console: Console, trial: Trial, runs: int, *, without_known: bool, seed: int = 0, events: int | None = None
) -> int:
    """Drive an engine on random requests and print the findings, including known issues. Returns 1 if there are any."""
    checked = CheckedTrace()
    with until_interrupted():
        drive_trial(trial, range(seed, seed + runs), fixed=without_known, events=events, checked=checked)
    kinds = checked.kinds()
    sums = f"{checked.events:,} events, {len(checked.pairs.reached):,} pairs, {counted(kinds.total(), 'finding')}"
    if more := len(checked.found) - kinds.total():
        sums += f" and {more:,} that follow from them"
    console.print(f"{trial.name}: {sums}, seeds from {seed}")
    for (code, pool, at), times in kinds.most_common():
        kind = code, pool, at
        event, finding = next((n, f) for n, f in checked.found if (f.code, f.pool or "", f.at or "") == kind)
        known = next((one.issue.id for one in trial.known if one.issue.specific and one.issue.fits(finding)), "")
        issue = f" (as in known issue {known})" if known else ""
        console.print(f"  {code} ({times:,}), first at event {event:,}: {describe(finding)}{issue}", markup=False)
    return 1 if checked.found else 0


def inject(console: Console, trial: Trial, runs: int, *, without_known: bool, fault: str = "") -> int:
    """Inject one fault after the other and print the first finding of each. Returns 1 if a fault is missed.

    `fault` names the only one to inject; empty: all. The seeds rotate: the seed that has found the last fault comes
    first, because neighbouring faults are often found by the same run.

    Raises:
        NotInjected: no fault has this name.
    """
    defects = chosen(trial.defects, fault)
    missed = first = 0
    for defect in defects:
        try:
            seeds = [*range(first, runs), *range(first)]
            checked = drive_trial(trial, seeds, defect=defect, fixed=without_known)
        except NotInjected as error:
            console.print(f"  {error}", markup=False)
            missed += 1
            continue
        missed += checked.first is None
        first = checked.seed
        words = "not found"
        if checked.first is not None:
            event, finding = checked.first
            words = f"{finding.code} at event {event:,}: {describe(finding)}"
        elif checked.uncalled:
            words = f"not found: no run has called {', '.join(sorted(checked.uncalled))}"
        console.print(f"  {defect.name}: {words}", markup=False, soft_wrap=True)
    console.print(f"{trial.name}: {len(defects) - missed} of {len(defects)} injected faults found")
    return 1 if missed else 0
