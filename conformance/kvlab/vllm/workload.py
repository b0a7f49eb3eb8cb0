"""The workload of one drive of vLLM's scheduler: its configuration, and the probability of each event."""

import random
from dataclasses import dataclass, field, replace

POLICIES = ("lru", "arc")
"""How `kv_offload` evicts."""

HF3FS = "hf3fs"
"""The connector that keeps blocks in files of 3FS."""

LMCACHE = "lmcache"
"""LMCache's connector of several processes."""


@dataclass(frozen=True)
class Workload:
    """A configuration of the scheduler, and its traffic. Lengths are in tokens, probabilities per step."""

    seed: int = 0
    requests: int = 40
    """The total number of requests."""
    blocks: int = 40
    """Pages of the pool, including the null block."""
    groups: tuple[tuple[str, int, int], ...] = (("full", 4, 0),)
    """KV cache groups: kind (`full`, `window` or `state`), block size, window."""
    launches: int = 2
    """The most launches in flight; 1: the synchronous scheduler."""
    policy: str = "fcfs"
    """The order of preemption: `fcfs` preempts the last request, `priority` the least important one."""
    drafts: int = 0
    """The number of draft tokens of a speculative step."""
    eagle: bool = False
    """Whether the drafter has its own KV: it writes past the scheduled tokens, and the last hit block is recomputed."""
    budget: int = 24
    """The most tokens of one launch."""
    chunk: int = 0
    """The longest chunk of a prefill while others run; 0: no limit."""
    running: int = 6
    """The most running requests."""
    reserve: bool = True
    """Whether a request is admitted only if all of its prompt fits."""
    connector: str = ""
    """How a KV connector loads: `sync`, `async`, or `` for none. It also sends the pages of finished requests. `pull`,
    `push`: the engine's own NIXL connector, between two servers."""
    server: str = ""
    """The role of the server: `prefill` or `decode`."""
    ratio: int = 1
    """The number of the other server's blocks in one block of the server that posts transfers."""
    restarts: tuple[str, ...] = ()
    """The servers that die once, at any moment, and are started again."""
    renamed: bool = True
    """Whether a restarted server is a new engine, as if no `engine_id` were configured."""
    offload: str = ""
    """vLLM's own offloading instead of a connector: the mode of `simple_kv_offload` (`eager`, `lazy`), the eviction
    policy of `kv_offload` (`lru`, `arc`), the connector `hf3fs` or `lmcache`, or `` for none."""
    host: int = 0
    """Pages of its pool on the host, including the null block."""
    host_chunk: int = 1
    """Blocks of a chunk of `kv_offload`; a chunk is a page of its pool on the host. For `lmcache`, the number of a
    chunk's parts that each consist of whole blocks of all groups."""
    save_decoded: bool = False
    """Whether `lmcache` also stores chunks with sampled tokens."""
    lmcache: str = ""
    """The newest release of LMCache to drive; empty: any."""
    store_threshold: int = 0
    """The number of offers after which `kv_offload` stores a chunk."""
    sync_loads: int = 0
    """The most bytes that `kv_offload` loads within a step; larger loads are asynchronous."""
    stores: float = 0.5
    """How often a finished request's pages are sent."""
    failing: float = 0.0
    """How often a load fails; between two servers a handshake, or a transfer, when it is posted or later."""
    late: float = 0.0
    """How often a message or transfer between two servers takes longer than a lease."""
    lost: float = 0.0
    """How often a notification between them never arrives."""
    steady: bool = False
    """Whether heartbeats, transfers and the router are always in time and lossless: no lease ends too early."""
    doubled: float = 0.0
    """How often a notification arrives twice."""
    whole: bool = True
    """Whether a load may include the last token, which is then recomputed. NIXL always loads it: without `whole` no
    prompt has a length at which the last window begins in a block that was left out."""
    on_failure: str = "recompute"
    """The fate of a request whose load failed: `recompute` or `fail`."""
    abort: float = 0.05
    reset: float = 0.0
    """How often the prefix cache is reset while requests run."""
    sessions: float = 0.0
    """How often a request is a streaming session of several turns."""
    adapters: float = 0.0
    """How often a request has a LoRA adapter, of one of two names."""
    versions: int = 2
    """The number of folders of weights that an adapter's name stands for, one at a time."""
    salts: float = 0.0
    """How often a request has a salt, which may be an adapter's name."""
    images: float = 0.0
    """How often a prompt has images."""
    encoded: int = 16
    """The most image placeholders that one step encodes, and that the encoder's cache holds."""
    whole_images: bool = False
    """Whether no chunk ends within an image."""
    documents: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """The common prefixes of prompts."""
    prompts: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Prompts to use in turn, instead of random ones."""
    counts: bool = False
    """Whether the older model runner prepares each pass and counts its accepted tokens; only that is hooked."""
    events: bool = False
    """Whether KV events are published for routers."""
    fence: bool = True
    """Whether the scheduler keeps its own value of `defer_block_free`."""

    @property
    def longest(self) -> int:
        """The longest context in tokens that fits the pages of the smallest group."""
        smallest = min(size for _, size, _ in self.groups)
        return smallest * (self.blocks - 2) // max(1, len(self.groups))

    def of(self, server: str) -> "Workload":
        """The workload of one of two servers. The server that posts transfers has the longer blocks."""
        if self.ratio == 1 or server != ("decode" if self.connector == "pull" else "prefill"):
            return replace(self, server=server)
        groups = tuple((kind, size * self.ratio, window) for kind, size, window in self.groups)
        return replace(self, server=server, groups=groups, blocks=self.blocks // self.ratio + 2 * len(groups))

    def leaves_out(self, tokens: int) -> bool:
        """Whether a load of so many tokens leaves out the block in which the window of the last token begins."""
        windows = [(size, tokens - window) for kind, size, window in self.groups if kind == "window"]
        return any(start >= 0 and (start + 1) % size == 0 for size, start in windows)


GROUPS: tuple[tuple[tuple[str, int, int], ...], ...] = (
    (("full", 4, 0),),
    (("full", 4, 0),),
    (("full", 1, 0),),
    (("window", 4, 8),),
    (("full", 4, 0), ("window", 4, 6)),
    (("full", 8, 0), ("window", 4, 9)),
    (("full", 4, 0), ("state", 4, 0)),
    (("full", 4, 0), ("state", 8, 0)),
)


OBJECT_GROUPS: tuple[tuple[tuple[str, int, int], ...], ...] = (
    (("full", 4, 0),),
    (("full", 4, 0), ("window", 4, 8)),
    (("full", 8, 0), ("window", 4, 4)),
    (("full", 4, 0), ("state", 4, 0)),
    (("full", 4, 0), ("state", 8, 0)),
)
"""Those for LMCache: it takes no window that is shorter than a chunk and ends within a block."""


def random_workload(seed: int, known: bool = True) -> Workload:
    """A random workload. The same seed always gives the same workload.

    Without `known` the workload triggers no known issue of the newest release (`conformance/found`).
    """
    dice = random.Random(seed)
    documents = tuple(tuple(dice.randrange(1, 9) for _ in range(dice.randrange(6, 40))) for _ in range(3))
    groups = dice.choice(GROUPS)
    states = any(kind == "state" for kind, _, _ in groups)
    connector = "" if states else dice.choice(("", "", "sync", "async", "async"))
    recovers = connector == "async" and groups[0][0] == "full"
    drafts = 0 if states else dice.choice((0, 0, 1, 3))
    reset = dice.choice((0.0, 0.04)) if not connector else 0.0
    sessions = dice.choice((0.0, 0.0, 0.4)) if not reset and (known or not states) else 0.0
    room = 1 if known or not sessions else 4  # waiting sessions that hold pages deadlock
    work = Workload(
        seed=seed,
        events=True,
        requests=dice.randrange(20, 60),
        blocks=dice.randrange(18, 48) * len(groups) * (4 if groups[0][1] == 1 else 1) * room,
        reserve=dice.random() < 0.5,
        groups=groups,
        launches=dice.choice((1, 2, 2, 2, 3)),
        policy=dice.choice(("fcfs", "fcfs", "priority")),
        drafts=drafts,
        eagle=bool(drafts) and dice.random() < 0.5,
        budget=dice.randrange(12, 48),
        chunk=dice.choice((0, 0, 6)),
        running=dice.randrange(2, 9),
        connector=connector,
        failing=dice.choice((0.0, 0.3, 0.6)) if connector and (known or recovers) else 0.0,
        whole=known or not any(kind == "window" or size == 1 for kind, size, _ in groups),
        on_failure=dice.choice(("recompute", "fail")),
        abort=dice.choice((0.0, 0.05, 0.15)),
        reset=reset,
        sessions=sessions,
        documents=documents,
        adapters=random.Random(f"{seed} adapters").choice((0.0, 0.0, 0.6)),
        salts=random.Random(f"{seed} salts").choice((0.0, 0.0, 0.5)),
    )
    work = with_images(work)
    return with_drafts(work) if states else work


def with_images(work: Workload) -> Workload:
    """A workload, half of the time with images. With states, whose chunks end with blocks, images may be cut."""
    dice = random.Random(f"{work.seed} images")
    splits = work.chunk or any(kind == "state" for kind, _, _ in work.groups)
    return replace(
        work,
        images=dice.choice((0.0, 0.5)),
        encoded=dice.choice((7, 10, 16)),
        whole_images=not splits and dice.random() < 0.5,
    )


def with_drafts(work: Workload) -> Workload:
    """A workload, half of the time with drafts. The drafter may have its own KV."""
    dice = random.Random(f"{work.seed} drafts")
    drafts = dice.choice((0, 0, 1, 3))
    return replace(work, drafts=drafts, eagle=bool(drafts) and dice.random() < 0.5)


def offloading_workload(seed: int, known: bool = True) -> Workload:
    """A random workload with vLLM's own offloading to the CPU; without `known` as `random_workload`.

    It has a few long documents and little room for them, so that requests hit evicted blocks on the host.
    """
    dice = random.Random(seed)
    groups = dice.choice([groups for groups in GROUPS if groups[0][0] == "full"])
    blocks = dice.randrange(14, 30) * len(groups) * (4 if groups[0][1] == 1 else 1)
    documents = tuple(tuple(dice.randrange(1, 9) for _ in range(dice.randrange(16, 48))) for _ in range(4))
    offload, host = dice.choice(("eager", "lazy")), blocks * dice.choice((1, 2, 2, 4, 8)) // 4
    if not known and any(size < groups[0][1] for _, size, _ in groups):
        offload = "lazy"  # only the eager mode stores a prompt's last block
    if offload == "lazy" and not known:
        host = max(host, blocks)
    base, states = random_workload(seed, known), groups[-1][0] == "state"
    work = replace(
        with_drafts(base) if states else base,
        requests=dice.randrange(40, 90),
        groups=groups,
        blocks=blocks,
        connector="",
        failing=0.0,
        whole=False,
        sessions=0.0,
        offload=offload,
        host=host,
        reset=dice.choice((0.0, 0.0, 0.05)),
        documents=documents,
    )
    return with_images(work)


def chunks_workload(seed: int, known: bool = True) -> Workload:
    """A random workload with `kv_offload`; without `known` as `random_workload`."""
    base = offloading_workload(seed, known)
    groups: tuple[tuple[str, int, int], ...] = ()
    for kind, size, window in base.groups:
        if known:
            groups += ((kind, size, window),)
        elif kind == "full":
            groups += ((kind, max(size, 4), window),)  # a loaded prompt of one token never runs
        elif kind == "state":
            groups += ((kind, groups[0][1], window),)  # larger states are loaded even if less than one state was hit
    states = groups[-1][0] == "state"
    dice = random.Random(seed)
    policy = dice.choice(POLICIES)
    blocks = dice.choice((1, 1, 2, 3)) if len({size for _, size, _ in groups}) == 1 else 1
    return replace(
        base,
        groups=groups,
        offload=policy,
        host=max(2, base.host // blocks),
        host_chunk=blocks,
        store_threshold=dice.choice((0, 0, 2)),
        sync_loads=0 if states and not known else dice.choice((0, 0, 64)),
    )


def files_workload(seed: int, known: bool = True) -> Workload:
    """A random workload with `HF3FSKVConnector`; without `known` as `random_workload`. It takes one group."""
    base, dice = offloading_workload(seed, known), random.Random(f"{seed} files")
    return replace(
        base,
        groups=(("full", 4, 0),),
        offload=HF3FS,
        host=dice.randrange(60, 400),
        drafts=0,
        reset=0.0,
    )


def objects_workload(seed: int, known: bool = True) -> Workload:
    """A random workload with LMCache's connector of several processes; without `known` as `random_workload`."""
    base, dice = offloading_workload(seed, known), random.Random(f"{seed} objects")
    groups = dice.choice(OBJECT_GROUPS)
    work = replace(
        base,
        groups=groups,
        blocks=dice.randrange(14, 30) * len(groups),
        offload=LMCACHE,
        host=dice.randrange(40, 300),
        host_chunk=dice.choice((1, 1, 2)),
        save_decoded=dice.random() < 0.5,
        budget=max(base.budget, 12),
        failing=dice.choice((0.0, 0.0, 0.2)),
        reset=0.0,
    )
    return with_images(with_drafts(work))


def counts_workload(seed: int) -> Workload:
    """A random workload of a hybrid model with drafts in the older model runner. Its batch changes often."""
    dice = random.Random(f"{seed} accepted")
    base = random_workload(seed)
    return Workload(
        seed=seed,
        counts=True,
        requests=base.requests,
        blocks=dice.randrange(40, 90),
        groups=(("full", 4, 0), ("state", 4, 0)),
        launches=dice.choice((1, 2, 2)),
        policy=base.policy,
        drafts=dice.choice((1, 3)),
        budget=base.budget,
        chunk=base.chunk,
        running=base.running,
        abort=base.abort,
        documents=base.documents,
    )


def servers_workload(seed: int, known: bool = True) -> Workload:
    """A random workload of two servers with the NIXL connector; without `known` as `random_workload`."""
    base, dice = random_workload(seed, known), random.Random(seed)
    groups, connector = dice.choice([one for one in GROUPS if one[-1][0] != "state"]), dice.choice(("pull", "push"))
    waits = connector == "push" and not known  # decode waits forever for blocks that are not pushed
    work = replace(
        with_drafts(base),
        groups=groups,
        blocks=dice.randrange(18, 48) * len(groups) * (4 if groups[0][1] == 1 else 1),
        connector=connector,
        whole=known,
        launches=min(base.launches, 2),
        failing=0.0 if waits else dice.choice((0.0, 0.1, 0.3) if known else (0.0, 0.1)),
        late=0.0 if waits else dice.choice((0.0, 0.1)),
        lost=0.0 if waits else dice.choice((0.0, 0.1, 0.3)),
        doubled=dice.choice((0.0, 0.2)),
        steady=not known,
        reset=0.0,
        sessions=0.0,
        images=0.0,
        restarts=_restarts(seed, connector),
    )
    if connector == "push" or len(groups) > 1 or groups[0][0] == "window" or dice.random() < 0.5:
        return work
    # The engine does not wait until an aborted request is converted.
    return replace(work, ratio=dice.choice((2, 3)), abort=work.abort if known else 0.0)


def _restarts(seed: int, connector: str) -> tuple[str, ...]:
    """The servers that die, in three workloads of ten. Decode waits forever for blocks from a dead prefill server."""
    dice = random.Random(f"{seed} restarts")
    if dice.random() < 0.7:
        return ()
    return ("decode",) if connector == "push" else dice.choice((("prefill",), ("decode",), ("prefill", "decode")))
