"""vLLM, to be driven with hooks."""

from pathlib import Path

from kvattach.hooks import Hooks, Trace
from kvattach.patches import Patches
from kvlab.drives import Known, Trial
from kvlab.injection import plant
from kvlab.vllm import kv_offloading
from kvlab.vllm.driver import EngineGaveUp, StuckError, driven
from kvlab.vllm.engine import fitting
from kvlab.vllm.faults import defects, names_without_content
from kvlab.vllm.faults_chunks import chunk_defects
from kvlab.vllm.faults_offload import offloading_defects
from kvlab.vllm.issues import KNOWN
from kvlab.vllm.issues import Known as KnownOfVllm
from kvlab.vllm.offloading import attached as attached_to
from kvlab.vllm.offloading import lacking, prepared
from kvlab.vllm.workload import Workload, chunks_workload, offloading_workload, random_workload
from kvspec.memory.events import Failed

OFFLOADING_EVERY = 4
"""One seed of so many drives the engine's own offloading to the CPU besides."""

CHUNKS_EVERY = 8
"""One seed of so many drives its `kv_offload` besides."""

OLDER = (
    Known(
        "hybrid-not-verified",
        "a connector beside recurrent states: the release refuses it by an assertion that says so",
        "MEM-FAILED",
        {"message": "not verified yet"},
        before="0.23.0",
    ),
    Known(
        "eagle-not-compatible",
        "a drafter's groups with blocks of two lengths: the release refuses them by an assertion that says so",
        "MEM-FAILED",
        {"message": "not compatible with eagle"},
        before="0.19.1",
    ),
    Known(
        "reset-discards-one, the last",
        "the token that is discarded was the last that was asked for: nothing is left to schedule, and no end",
        "MEM-FAILED",
        {"message": "steps: each running"},
        before="0.22.0",
    ),
    Known(
        "finished-while-preempted",
        "a preempted request that its last launch finishes stays in the second queue of waiting ones",
        "MEM-FAILED",
        {"message": "Invalid request status: FINISHED"},
        before="0.27.0",
    ),
    Known(
        "finished-while-preempted, loading",
        "such a request has begun to load again, and is gone when its load arrives",
        "MEM-FAILED",
        {"message": r"assert req_id in self\.requests"},
        ("_update_from_kv_xfer_finished",),
        before="0.27.0",
    ),
    Known(
        "finished-while-preempted, taken up",
        "such a request is scheduled when its load is there, and counted as if it had its blocks",
        "MEM-FAILED",
        {"message": "free blocks from the pool"},
        ("get_new_blocks",),
        before="0.27.0",
    ),
    Known(
        "late-token-ends-turn, sent",
        "the turn that has ended before it began is sent away, of which the workers have no row",
        "MEM-USE/no-table",
        {},
        ("request_finished",),
        before="0.31.0",
    ),
    Known(
        "late-token-ends-turn, queued twice",
        "the session is put into the queue a second time, and the scheduler finds it running",
        "MEM-FAILED",
        {"message": "Invalid request status: RUNNING"},
        before="0.31.0",
    ),
    Known(
        "late-token-ends-turn, counted twice",
        "a session counts twice as one that waits for its client, and the scheduler takes itself for idle",
        "MEM-FAILED",
        {"message": "has none, each in a queue"},
        before="0.31.0",
    ),
    Known(
        "late-token, the last",
        "the late token takes the last place that was asked for: the turn's own is waited for, and never computed",
        "MEM-FAILED",
        {"message": "steps: each running"},
        before="0.31.0",
    ),
    Known(
        "late-token, and a state",
        "the pass that goes one place too far ends behind a state's last token, and leaves no state there",
        "MEM-NAME/content",
        {"found": "^r"},
        before="0.26.0",
    ),
    Known(
        "failed-load-window, freed since",
        "the window had moved on, and the blocks that the request goes back to are another one's",
        "MEM-USE/not-held",
        {"owners": "^r"},
        ("schedule",),
        before="0.33.0",
    ),
    Known(
        "tail-named-again on the host",
        "a state under the wrong name is stored under that name",
        "MEM-NAME/content",
        {},
        before="0.32.0",
    ),
    Known(
        "discarded-token-hash, twice",
        "the block that really has this hash is cached, too",
        "MEM-NAME/ambiguous",
        {},
        before="0.32.0",
    ),
    Known(
        "shifted-window-chunk, of states",
        "a chunk of states is stored behind a gap, in the gap's place",
        "MEM-NAME/unwritten",
        {"slot": "^0$"},
        before="0.29.0",
    ),
    Known(
        "shifted-window-chunk, of states, loaded",
        "a state is loaded from where another one is",
        "MEM-CONTENT/other",
        {"operation": "states$", "expected": "^1:"},
        ("states",),
        before="0.29.0",
    ),
    Known(
        "shifted-window-chunk, of states, missing",
        "a state is loaded from where none is",
        "MEM-WRITTEN/unwritten",
        {},
        ("states",),
        before="0.29.0",
    ),
    Known(
        "stored-while-it-moves-on, in chunks",
        "a state is stored that the next step moves on in place",
        "MEM-RACE",
        {},
        ("store",),
        before="0.29.0",
    ),
    Known(
        "freed-in-flight",
        "blocks go back while a launch still uses them: any run shows it",
        "MEM-RACE",
        {"stream": "^gpu"},
        before="0.24.0",
    ),
    Known(
        "stored-twice, handed out",
        "a block that is in the list of free ones twice is handed out to a second request",
        "MEM-FAILED",
        {"message": r"assert block\.ref_cnt == 0"},
        ("get_new_blocks",),
        before="0.24.0",
    ),
    Known(
        "stored-twice, the list's end",
        "the list of free ones is a block shorter than its count, and its end is handed out",
        "MEM-NAME/free",
        {"page": "^-1$"},
        before="0.24.0",
    ),
    Known(
        "stored-twice, the list's end cut off",
        "the same: where the end was is nothing to append to",
        "MEM-FAILED",
        {"message": "prev_free_block of fake_free_list_tail"},
        ("append_n",),
        before="0.24.0",
    ),
    Known(
        "window-in-flight",
        "behind drafts that are rejected, the window moves on under launches in flight",
        "MEM-USE/not-held",
        {"owners": "^$"},
        before="0.33.0",
    ),
    Known(
        "window-in-flight, handed on and stored",
        "what the window moved on from is another one's by then, and being stored for it",
        "MEM-USE/not-held",
        {"owners": "^offload, r"},
        ("schedule",),
        before="0.33.0",
    ),
    Known(
        "window-in-flight, loaded into",
        "what the window moved on from under launches in flight is handed out, and a load writes it",
        "MEM-RACE",
        {"stream": "^gpu", "did": "reads"},
        ("load",),
        before="0.33.0",
    ),
    Known(
        "turn-counted-whole",
        "what launches in flight compute, drafts among it, counts for a session's next turn: if that is all of it, "
        "nothing is left to schedule",
        "MEM-FAILED",
        {"message": "assert num_new_tokens > 0"},
        ("schedule",),
        before="0.33.0",
    ),
)
"""What any run of older releases shows; nothing brings it out alone, as nothing takes the others away."""


def trial(folder: Path | None) -> Trial:
    """The release in `folder`; `None`: what is installed.

    Raises:
        EngineError: it holds none, or the process holds another one.
    """
    without = prepared(folder)
    without_chunks = kv_offloading.prepared()
    attached: list[Hooks] = []
    avoided: list[Patches] = []
    """As long as the known defects are taken away, workloads bring none of the others out either."""

    def attach(trace: Trace) -> Hooks:
        attached[:] = [attached_to(trace, offloading=not without)]
        return attached[0]

    def drive(work: Workload) -> None:
        try:
            driven(fitting(work, known=not avoided))
        except StuckError as error:
            attached[0].tell(Failed("stuck", str(error)))
        except EngineGaveUp:
            pass  # the hooks have told it

    def run(seed: int) -> None:
        drive(random_workload(seed, known=not avoided))
        if seed % OFFLOADING_EVERY == OFFLOADING_EVERY - 1 and not without:
            drive(offloading_workload(seed, known=not avoided))
        if seed % CHUNKS_EVERY == CHUNKS_EVERY - 3 and not without_chunks:
            drive(chunks_workload(seed, known=not avoided))

    def mend(patches: Patches) -> None:
        avoided[:] = [patches]
        plant(names_without_content(), patches)

    def looked_for(known: KnownOfVllm) -> Known:
        def alone(patches: Patches) -> None:
            if not known.with_names:
                plant(names_without_content(), patches)

        return Known(
            known.name,
            known.what,
            known.rule,
            known.where,
            known.at,
            before=known.before,
            run=lambda seed: drive(known.drawn(seed)),
            mend=alone,
            runs=200,
        )

    name = f"vLLM, but not its offloading to the CPU ({without})" if without else "vLLM"
    planted = [
        *defects(),
        *([] if without else offloading_defects()),
        *([] if without_chunks else chunk_defects()),
    ]
    shown = [looked_for(known) for known in KNOWN if not lacking(known.workload, without)]
    return Trial(name, attach, run, planted, mend, [*shown, *OLDER])
