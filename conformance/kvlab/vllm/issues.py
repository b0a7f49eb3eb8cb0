"""Defects of vLLM's releases that were found by driving them: a workload that brings each out, and nothing else.

python -m kvlab.vllm.issues FOLDER [NAME]
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from kvattach.patches import Patches
from kvcheck import Finding
from kvcheck.words import describe
from kvlab.drives import Judge, shows
from kvlab.injection import plant
from kvlab.stubs import EngineError
from kvlab.vllm.driver import EngineGaveUp, StuckError, driven
from kvlab.vllm.faults import names_without_content
from kvlab.vllm.offloading import attached, lacking, prepared
from kvlab.vllm.workload import Workload, chunks_workload, offloading_workload, random_workload
from kvspec.memory.events import Failed, MemoryEvent, Pool


class Known(NamedTuple):
    """A defect: the finding that shows it, and how it is brought out."""

    name: str
    rule: str
    """The rule that it breaks, or the finding's code."""
    where: Mapping[str, str]
    """Details of the finding: a regular expression for each."""
    workload: Workload
    what: str
    since: str = "0.33.0"
    """The release that it was found in."""
    before: str = ""
    """The first release that is without it."""
    at: tuple[str, ...] = ()
    """Where one of its operations was queued, or what raised the error; none: anywhere."""
    with_names: bool = False
    """Whether names that outlive a preemption stay: they are taken away where another defect is looked for."""

    def fits(self, finding: Finding) -> bool:
        """Whether a finding shows it."""
        place = not self.at or finding.at in self.at or finding.earlier in self.at
        return place and shows(finding, self.rule, self.where)

    def drawn(self, seed: int) -> Workload:
        """The workload with the dice of a seed."""
        seed += self.workload.seed
        other = offloading_workload(seed) if self.workload.offload else random_workload(seed)
        return replace(self.workload, seed=seed, documents=other.documents)


_PLAIN = Workload(running=6, requests=40, blocks=40, abort=0.0, stores=0.0)
_CROWDED = replace(_PLAIN, policy="priority", blocks=22, reserve=False, launches=1, chunk=6, budget=14, running=8)
_SYNC = replace(_PLAIN, connector="sync", failing=0.5)
_ABORTED = replace(_PLAIN, connector="async", abort=0.5, launches=3, requests=80, blocks=24)
_TWO_GROUPS = replace(
    _PLAIN, groups=(("full", 4, 0), ("window", 4, 6)), connector="async", stores=0.5, failing=0.0, launches=1, blocks=30
)
_HYBRID = replace(_PLAIN, groups=(("full", 4, 0), ("state", 4, 0)), blocks=80)
_HOST = replace(_PLAIN, offload="eager", blocks=24, host=48, requests=80, budget=15)
_HOST_HYBRID = replace(_HOST, groups=(("full", 4, 0), ("state", 8, 0)), blocks=48, host=96)
_CHUNKS = replace(_HOST, offload="lru", groups=(("full", 4, 0), ("window", 4, 6)), blocks=36, host=18)

KNOWN = (
    Known(
        "lazy-stores-for-ever",
        "MEM-FAILED",
        {"message": "0 requests"},
        replace(_HOST, seed=4, blocks=44, offload="lazy", host=22, requests=40),
        "without any request the device's cache is copied to a smaller pool on the host for ever",
    ),
    Known(
        "stored-in-part",
        "MEM-NAME/unwritten",
        {"slot": "^4$"},
        replace(_HOST, groups=(("full", 8, 0), ("window", 4, 9)), blocks=54, host=27, drafts=1, eagle=True),
        "a block that a prompt ends in is stored, and gets the name on the host that it got when it was full",
    ),
    Known(
        "stale-window-stored",
        "MEM-FAILED",
        {"message": "KeyError"},
        replace(chunks_workload(10), abort=0.0),  # it takes a chunk that is longer than the window
        "a block behind the window is stored that was given back, the request has it again, and the engine dies",
        at=("_remove_pending_job",),
    ),
    Known(
        "reset-stores-stale-window",
        "MEM-NAME/content",
        {},
        replace(_CHUNKS, reset=0.1),
        "what is offloaded is reset, and blocks behind the window of a running request are stored that are others' now",
    ),
    Known(
        "shifted-window-chunk",
        "MEM-NAME/unwritten",
        {"slot": "^0$"},
        replace(_CHUNKS, host_chunk=3, host=6),
        "of chunks of several blocks one is stored that begins behind a gap, in the place where the gap is",
    ),
    Known(
        "sync-load-undercounted",
        "MEM-FAILED",
        {"message": "Cannot get 1 free blocks"},
        replace(_CHUNKS, groups=(("full", 4, 0), ("state", 4, 0)), sync_loads=64, reserve=False),
        "a load within the step takes a block for the state that nobody has counted, and the engine dies",
        at=("get_new_blocks",),
    ),
    Known(
        "state-ahead-of-hit",
        "MEM-CONTENT/other",
        {"operation": "states$", "expected": "^1:"},
        replace(_CHUNKS, groups=(("full", 4, 0), ("state", 8, 0))),
        "a hit that ends inside of a state's block loads the state of the block's end",
        at=("states",),
    ),
    Known(
        "loads-stand-still",
        "MEM-FAILED",
        {"message": "steps: each in a queue"},
        replace(_HOST, blocks=17, host=24, policy="priority", drafts=1, budget=13, chunk=6, running=5, reserve=False),
        "what was loaded waits behind a request that waits for what was loaded",
        "0.29.0",
        "0.31.0",
    ),
    Known(
        "host-hit-misplaced",
        "MEM-FAILED",
        {"message": "hit tokens, got"},
        replace(_HOST, groups=(("full", 8, 0), ("window", 4, 9)), blocks=48, host=48, offload="lazy"),
        "blocks that are longer than a hash are counted as if they were not when they are found on the host",
        "0.21.0",
        "0.22.0",
        ("update_state_after_alloc",),
    ),
    Known(
        "host-hit-not-aligned",
        "MEM-FAILED",
        {"message": "schedule: AssertionError"},
        replace(_HOST_HYBRID, offload="lazy"),
        "a hit on the host ends inside a block, and the scheduler's side of the offloading asserts that it does not",
        "0.26.0",
        "0.30.0",
        ("update_state_after_alloc",),
    ),
    Known(
        "hit-cut-short",
        "MEM-FAILED",
        {"message": r"assert num_blocks <= len\(group_blocks\)"},
        _HOST_HYBRID,
        "the host has more than a hit that ends inside a block, which is cut back further than its state reaches",
        "0.27.0",
        "0.28.0",
        ("truncate_computed_blocks",),
    ),
    Known(
        "store-not-fenced",
        "MEM-RACE",
        {"stream": "^gpu", "did": "writes"},
        replace(_HOST, abort=0.2, drafts=1),
        "a store waits for no launch, and copies what one still writes; issue 45704 of vLLM",
        "0.22.1",
        "0.24.0",
        ("store",),
    ),
    Known(
        "stored-while-it-moves-on",
        "MEM-RACE",
        {"stream": "^gpu", "did": "writes"},
        offloading_workload(2068),  # it takes a prompt that ends inside a block, and a store that is late
        "a state is stored that the next step moves on in place",
        "0.27.0",
        "0.32.0",
        ("states",),
    ),
    Known(
        "hit-without-state",
        "MEM-USE/padding",
        {"operation": "states$"},
        _HOST_HYBRID,
        "a connector is asked behind the longest hit of any group, and where it has nothing there is no state",
        "0.24.0",
        "0.27.0",
    ),
    Known(
        "zeroed-while-loaded",
        "MEM-RACE",
        {"stream": "^gpu", "did": "writes"},
        _HOST_HYBRID,
        "blocks that are being loaded are cleared by the next step",
        "0.24.0",
        "0.26.0",
        ("zero",),
    ),
    Known(
        "stored-twice",
        "MEM-COUNT/total",
        {"figure": "held"},
        offloading_workload(5, known=False),  # it takes two requests that hit the same blocks in one step
        "one step stores a block twice, and when that is done it is put twice into the list of free ones",
        "0.23.0",
        "0.24.0",
    ),
    Known(
        "late-token",
        "MEM-CONTENT",
        {"found": "^no token"},
        replace(_HYBRID, sessions=0.6, launches=3),
        "a session's next turn counts a token that is on its way for the turn before, and goes one place too far",
        "0.30.0",
        "0.31.0",
    ),
    Known(
        "late-token-ends-turn",
        "MEM-FAILED",
        {"message": "in no queue"},
        replace(_PLAIN, sessions=0.6, launches=3, blocks=160),
        "a late token of the turn before ends a session's turn before it begins, and nothing takes it up again",
        "0.30.0",
        "0.31.0",
    ),
    Known(
        "failed-load-ahead",
        "MEM-CONTENT",
        {"found": "^no token"},
        _SYNC,
        "the token that a step with a failed load was to sample stays counted, and the request goes one place too far",
    ),
    Known(
        "aborted-load",
        "MEM-NAME/unwritten",
        {},
        replace(_SYNC, abort=0.3, on_failure="fail"),
        "a load fails after its request was aborted, and its blocks keep their names",
    ),
    Known(
        "failed-load-hit",
        "MEM-WRITTEN/unwritten",
        {},
        replace(_SYNC, launches=1, chunk=6),
        "blocks whose load failed are found by another request before they are computed again",
    ),
    Known(
        "failed-load-delivered",
        "MEM-DELIVER/tainted",
        {},
        _SYNC,
        "a token that was computed from a failed load is delivered",
    ),
    Known(
        "preempted-names",
        "MEM-NAME/unwritten",
        {},
        _CROWDED,
        "blocks of a request that is preempted before they are computed keep their names",
        with_names=True,
    ),
    Known(
        "whole-load-window",
        "MEM-USE/padding",
        {},
        replace(_PLAIN, groups=(("window", 4, 8),), connector="async", launches=1),
        "a whole prompt is loaded without the block that its last token's window begins in",
    ),
    Known(
        "failed-load-window",
        "MEM-USE/padding",
        {},
        replace(_PLAIN, groups=(("window", 4, 8),), connector="async", failing=0.5, whole=False, launches=1),
        "a request goes back to where its load failed, and the window there was not loaded",
    ),
    Known(
        "eagle-hit-realigned",
        "MEM-USE/padding",
        {},
        replace(_PLAIN, groups=(("full", 8, 0), ("window", 4, 9)), drafts=1, eagle=True, launches=1, blocks=80),
        "a hit is cut back for a drafter, and again to whole blocks of all groups, into what the window looks at",
        "0.19.1",
        "0.20.0",
        ("schedule",),
    ),
    Known(
        "turn-in-flight-state",
        "MEM-CONTENT/other",
        {"operation": "states$"},
        replace(_HYBRID, sessions=0.6),
        "a turn ends while a launch moves its recurrent state on",
    ),
    Known(
        "sessions-stand-still",
        "MEM-FAILED",
        {"message": "steps: each in a queue"},
        replace(_PLAIN, sessions=0.8, launches=1, blocks=30),
        "sessions that hold memory wait for each other for good",
    ),
    Known(
        "one-token-load",
        "MEM-RACE",
        {"stream": r"^\(alone"},
        random_workload(72000696),  # it takes a prompt of one token, and another that begins with it at the right time
        "a prompt of one token that was loaded is loaded again, into a page that others find already",
    ),
    Known(
        "turn-in-flight-token",
        "MEM-CONTENT",
        {"found": "^r"},
        replace(_PLAIN, sessions=0.6, launches=3, blocks=160),
        "a turn ends with two launches in flight, and the next one takes a discarded token's KV for its own",
        "0.22.1",
        "0.23.0",
        ("schedule",),
    ),
    Known(
        "discarded-token-hash",
        "MEM-CONTENT",
        {"found": "^0:"},
        replace(_PLAIN, sessions=0.6, blocks=160),
        "a session's next turn keeps a hash that the discarded token is in, and publishes its own block under it",
        "0.23.0",
        "0.32.0",
        ("schedule",),
    ),
    Known(
        "freed-in-flight",
        "MEM-RACE",
        {"stream": "^gpu"},
        _ABORTED,
        "blocks go back while a launch still writes them",
        "0.22.1",
        "0.24.0",
    ),
    Known(
        "hit-taken-for-load",
        "MEM-CONTENT",
        {"expected": "^1:"},
        _TWO_GROUPS,
        "blocks for a load in one group are taken from what the request has just found cached in the next group",
        "0.22.1",
        "0.24.0",
    ),
    Known(
        "tail-named-again",
        "MEM-OVERWRITE",
        {"operation": "states$"},
        replace(_PLAIN, groups=(("full", 4, 0), ("state", 8, 0))),
        "the name of a prompt's last state goes to a copy, and in the same step back to the state that moves on",
        "0.26.0",
        "0.32.0",
    ),
    Known(
        "reset-twice",
        "MEM-FAILED",
        {"message": "update_from_output: AssertionError"},
        replace(_PLAIN, launches=3, reset=0.3),
        "the prefix cache is reset twice while launches are in flight, and a discarded output is counted",
        "0.22.1",
        "0.29.0",
        ("_update_request_with_output",),
    ),
    Known(
        "reset-discards-one",
        "MEM-CONTENT",
        {"found": "^no token"},
        replace(_PLAIN, reset=0.1),
        "the prefix cache is reset while nothing is in flight for a request, and its next token is discarded",
        "0.21.0",
        "0.22.0",
        ("schedule",),
    ),
    Known(
        "sent-while-idle",
        "MEM-FAILED",
        {"message": "has none, each finished"},
        replace(_PLAIN, connector="async", stores=0.9, requests=4),
        "without other requests nobody asks whether a finished one's blocks have been sent, and it keeps them",
        "0.21.0",
        "0.22.0",
    ),
)


@dataclass
class Watched:
    """A judge that keeps what it was told last."""

    judge: Judge = field(default_factory=Judge)
    pools: dict[str, Pool] = field(default_factory=dict)
    events: list[MemoryEvent] = field(default_factory=list)

    def header(self, producer: str, pools: dict[str, Pool]) -> None:
        """Another memory."""
        self.judge.header(producer, pools)
        self.pools, self.events = dict(pools), []

    def tell(self, event: MemoryEvent) -> None:
        """Judge one event."""
        self.events.append(event)
        self.judge.tell(event)


def bring_out(known: Known, runs: int = 200) -> tuple[Watched, Finding] | None:
    """Drive the release of this process until the defect shows; the run's trace, and the finding."""
    patches, watched = Patches(), Watched()
    if not known.with_names:
        plant(names_without_content(), patches)
    hooks = attached(watched, offloading=bool(known.workload.offload))  # type: ignore[arg-type]
    try:
        for seed in range(runs):
            try:
                driven(known.drawn(seed))
            except StuckError as error:
                hooks.tell(Failed("stuck", str(error)))
            except EngineGaveUp:
                pass  # the hooks have told it
            for _, finding in watched.judge.found:
                if known.fits(finding):
                    return watched, finding
            watched.judge.found.clear()
    finally:
        hooks.detach()
        patches.undo()
    return None


def main(
    folder: Annotated[Path, typer.Argument(help="A folder that holds an unpacked wheel.")],
    name: Annotated[str, typer.Argument(help="One defect; without it, all of them.")] = "",
) -> None:
    """Drive a release of vLLM until each of the known defects shows, and print where."""
    logging.disable(logging.CRITICAL)
    console = Console()
    try:
        without = prepared(folder)
    except EngineError as error:
        console.print(str(error), style="red", markup=False)
        raise SystemExit(2) from error
    for known in KNOWN:
        if name in ("", known.name):
            if why := lacking(known.workload, without):
                console.print(f"{known.name}: not supported: {why}", markup=False, soft_wrap=True)
                continue
            shown = bring_out(known)
            told = (
                "not found" if shown is None else f"{shown[1].rule} at event {shown[1].event:,}: {describe(shown[1])}"
            )
            console.print(f"{known.name}: {told}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
