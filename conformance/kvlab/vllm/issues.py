"""Known issues of vLLM's releases. Each is looked for with its own workload only.

kvspec engines reproduce RELEASE [NAME]
"""

from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from kvattach.patches import Patches
from kvcheck import Finding
from kvlab.drives import CheckedTrace
from kvlab.injection import inject_fault
from kvlab.issues import Issue, issues_of
from kvlab.stubs import EngineError
from kvlab.tokens import describe
from kvlab.vllm import fixes_hf3fs, fixes_lmcache, kv_events
from kvlab.vllm.counts import fix_counts
from kvlab.vllm.driver import EngineGaveUp, StuckError
from kvlab.vllm.faults import names_without_content
from kvlab.vllm.fixes_nixl import fix_pairing
from kvlab.vllm.network import KINDS
from kvlab.vllm.offloading import attached, lacking, prepared
from kvlab.vllm.servers import driven
from kvlab.vllm.workload import Workload, offloading_workload, random_workload, servers_workload
from kvspec.memory.events import Failed

FIXES = (*kv_events.FIXES, fix_pairing, fix_counts, *fixes_hf3fs.FIXES, *fixes_lmcache.FIXES)
RUNS = 200
"""The number of runs that look for one issue."""


def workload_of(issue: Issue) -> Workload:
    """The workload that shows an issue."""
    return msgspec.convert(issues_of("vllm").workload(issue), Workload)


def drawn(work: Workload, seed: int) -> Workload:
    """A workload with this seed, and with documents drawn from it."""
    kind = servers_workload if work.connector in KINDS else offloading_workload if work.offload else random_workload
    other = kind(seed)
    return replace(work, seed=seed, documents=other.documents)


def fix(patches: Patches, but: str = "") -> None:
    """Apply all fixes, or all except the named one."""
    if but != names_without_content.__name__:
        inject_fault(names_without_content(), patches)
    for one in FIXES:
        if but != one.__name__:
            one(patches)


def bring_out(issue: Issue) -> tuple[int, Finding] | None:
    """Drive the release of this process until an issue shows. Returns the events until then and the finding, if any."""
    work, patches, checked = workload_of(issue), Patches(), CheckedTrace()
    fix(patches, but=issue.fix)
    hooks = attached(checked, offloading=bool(work.offload))
    try:
        for seed in range(RUNS):
            try:
                driven(drawn(work, seed), hooks, checked.find)
            except StuckError as error:
                hooks.emit(Failed("stuck", str(error)))
            except EngineGaveUp:
                pass  # the hooks have reported it
            for event, finding in checked.found:
                if issue.fits(finding):
                    return event, finding
            checked.found.clear()
    finally:
        hooks.detach()
        patches.undo()
    return None


def reproduce(console: Console, folder: Path, name: str = "") -> int:
    """Drive a release of vLLM until each known issue, or the named one, shows. Returns 1 if one does not.

    Raises:
        EngineError: the release cannot be loaded, or no issue has the name.
    """
    known = [issue for issue in issues_of("vllm").at("memory") if issue.workload is not None]
    wanted = [issue for issue in known if name in ("", issue.id)]
    if not wanted:
        raise EngineError(f"no known issue {name!r}; these are known: {', '.join(issue.id for issue in known)}")
    without, missed = prepared(folder), 0
    for issue in wanted:
        if why := lacking(workload_of(issue), without):
            words = f"not supported: {why}"
        elif (found := bring_out(issue)) is None:
            words, missed = "not found", 1
        else:
            event, finding = found
            words = f"{finding.code} at event {event:,}: {describe(finding)}"
        console.print(f"{issue.id}: {words}", markup=False, soft_wrap=True)
    return missed
