"""vLLM, to be driven with hooks."""

from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.patches import Patches
from kvlab.drives import CheckedTrace, Trial, known_issues
from kvlab.goals import ILLUSTRATED, SERVED, SPECULATIVE
from kvlab.vllm import hf3fs, kv_offloading, multi_process, nixl
from kvlab.vllm.driver import EngineGaveUp, StuckError
from kvlab.vllm.engine import fitting
from kvlab.vllm.faults import defects
from kvlab.vllm.faults_chunks import chunk_defects
from kvlab.vllm.faults_events import event_defects
from kvlab.vllm.faults_hf3fs import file_defects
from kvlab.vllm.faults_lmcache import object_defects
from kvlab.vllm.faults_nixl import pull_defects, push_defects
from kvlab.vllm.faults_offload import offloading_defects
from kvlab.vllm.faults_pictures import picture_defects
from kvlab.vllm.faults_states import drafted_state_defects
from kvlab.vllm.faults_tokens import token_defects
from kvlab.vllm.issues import RUNS, drawn, fix
from kvlab.vllm.offloading import attached as attached_to
from kvlab.vllm.offloading import lacking, prepared
from kvlab.vllm.release import without_counts
from kvlab.vllm.servers import driven
from kvlab.vllm.workload import (
    Workload,
    chunks_workload,
    counts_workload,
    files_workload,
    objects_workload,
    offloading_workload,
    random_workload,
    servers_workload,
)
from kvspec.memory.events import Failed

OFFLOADING_EVERY = 4
"""One seed of so many drives the engine's own offloading to the CPU besides."""

CHUNKS_EVERY = 8
"""One seed of so many drives its `kv_offload` besides."""

FILES_EVERY = 16
"""One seed of so many drives its connector to files of 3FS besides."""

OBJECTS_EVERY = 8
"""One seed of so many drives LMCache's connector of several processes besides."""

SERVERS_EVERY = 4
"""One seed of so many drives a prefill and a decode server besides."""

COUNTS_EVERY = 8
"""One seed of so many drives the older model runner besides."""


def trial(folder: Path | None) -> Trial:
    """The release in `folder`; `None`: the installed one.

    Raises:
        EngineError: the folder holds no release, or the process holds another one.
    """
    without = prepared(folder)
    without_chunks = kv_offloading.prepared()
    without_files = hf3fs.prepared()
    without_objects = multi_process.prepared()
    without_servers = nixl.prepared()
    uncounted = without_counts()
    attached: list[Hooks] = []
    checked: list[CheckedTrace] = []
    avoided: list[Patches] = []
    """Not empty while the known issues are fixed: then workloads avoid the issues without a fix."""

    def attach(trace: CheckedTrace) -> Hooks:
        checked[:] = [trace]
        attached[:] = [attached_to(trace, offloading=not without)]
        return attached[0]

    def drive(work: Workload) -> None:
        try:
            driven(fitting(work, known=not avoided), attached[0], checked[0].find)
        except StuckError as error:
            attached[0].emit(Failed("stuck", str(error)))
        except EngineGaveUp:
            pass  # the hooks have reported it

    def run(seed: int) -> None:
        drive(random_workload(seed, known=not avoided))
        if seed % OFFLOADING_EVERY == OFFLOADING_EVERY - 1 and not without:
            drive(offloading_workload(seed, known=not avoided))
        if seed % CHUNKS_EVERY == CHUNKS_EVERY - 3 and not without_chunks:
            drive(chunks_workload(seed, known=not avoided))
        if seed % FILES_EVERY == FILES_EVERY - 4 and not without_files:
            drive(files_workload(seed, known=not avoided))
        if seed % OBJECTS_EVERY == OBJECTS_EVERY - 7 and not without_objects:
            drive(objects_workload(seed, known=not avoided))
        if seed % SERVERS_EVERY == SERVERS_EVERY - 2 and not without_servers:
            drive(servers_workload(seed, known=not avoided))
        if seed % COUNTS_EVERY == COUNTS_EVERY - 4 and not uncounted:
            drive(counts_workload(seed))

    def fix_all(patches: Patches) -> None:
        avoided[:] = [patches]
        fix(patches)

    name = f"vLLM, but not its offloading to the CPU ({without})" if without else "vLLM"
    injected = [
        *defects(),
        *token_defects(),
        *event_defects(),
        *drafted_state_defects(),
        *picture_defects(),
        *([] if without else offloading_defects()),
        *([] if without_chunks else chunk_defects()),
        *([] if without_files else file_defects()),
        *([] if without_objects else object_defects()),
        *([] if without_servers else [*pull_defects(), *push_defects()]),
    ]
    known = known_issues(
        "vllm",
        Workload,
        lambda work, seed: drive(drawn(work or Workload(), seed)),
        fix,
        runs=RUNS,
        can_run=lambda work: not lacking(work or Workload(), without),
    )
    goals = {**ILLUSTRATED, **(SPECULATIVE if without_servers else SERVED)}
    return Trial(name, attach, run, injected, fix_all, known, goals=goals)
