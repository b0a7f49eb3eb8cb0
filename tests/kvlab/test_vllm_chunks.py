"""The events of `kv_offload`'s chunks, without a release: where blocks go, and stores that fail."""

from types import SimpleNamespace
from typing import Any

from kvattach.hooks import Hooks
from kvattach.vllm.chunks import Chunks
from kvattach.vllm.residency import Group, Run
from kvspec.memory.events import Begin, Drop, End, MemoryEvent, Publish, Release, Take

FULL, WINDOW = Group(0, 4, 0, False, 4), Group(1, 4, 6, False, 4)
A, B = (bytes([letter]) * 16 + group.to_bytes(4, "big") for letter, group in ((1, 0), (2, 1)))
"""The keys of a chunk of each group."""


class Heard:
    """A trace that keeps its events."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []

    def header(self, *_: Any) -> None: ...

    def emit(self, *events: MemoryEvent) -> None:
        self.events += events


def emitted(blocks: int) -> tuple[Any, list[MemoryEvent]]:
    """The hooks of one request with twelve tokens, in chunks of so many blocks, and their events."""
    heard = Heard()
    made: Any = object.__new__(Chunks)
    request = SimpleNamespace(_all_token_ids=list(range(12)), mm_features=())
    groups = [FULL, WINDOW]
    run = Run("r0.1", request, groups)
    made._attached = SimpleNamespace(hooks=Hooks(heard), groups=groups, runs={"r0": run})
    made._streams = SimpleNamespace(queued=lambda *_: None, ended=lambda _: True)
    made._connector = SimpleNamespace(_req_status={"r0": SimpleNamespace(req=request)}, _jobs={})
    chunks: dict[bytes, Any] = {}
    made._manager = SimpleNamespace(_policy=chunks)
    made._size, made._blocks = 4, blocks
    made._pages, made._meant, made._known, made._held, made._resets = {}, {}, {}, None, False
    return made, heard.events


def stored(hooks: Any, *keys: bytes) -> Any:
    """A store of these keys is prepared, in chunks 5, 6, ..."""
    pages = [5 + at for at in range(len(keys))]
    answer = SimpleNamespace(
        keys_to_store=list(keys), evicted_keys=[], store_spec=SimpleNamespace(block_ids=pages, kvspec_keys=[])
    )
    context = SimpleNamespace(req_id="r0", get_offload_key_position=lambda _: 12)
    hooks._storing(None, answer, hooks._manager, list(keys), context)
    for key in keys:
        hooks._manager._policy[key] = SimpleNamespace(is_ready=False)
    return answer.store_spec


def test_a_store_that_fails_gives_its_chunk_back_without_a_name_and_one_that_is_done_is_found() -> None:
    hooks, events = emitted(1)
    stored(hooks, A)
    pending = hooks._pending(hooks._manager, [A])
    del hooks._manager._policy[A]
    hooks._stored(pending, None, hooks._manager)
    assert [type(event) for event in events] == [Take, Release]
    stored(hooks, A)
    pending = hooks._pending(hooks._manager, [A])
    hooks._stored(pending, None, hooks._manager)
    assert [type(event) for event in events[2:]] == [Take, Publish, Release]
    assert events[3].labels == [hooks._attached.runs["r0"].label(FULL, 2)]  # type: ignore[union-attr]


def test_blocks_go_to_their_places_in_a_chunk_the_last_one_first() -> None:
    hooks, events = emitted(3)
    spec = stored(hooks, A, B)
    blocks = SimpleNamespace(block_ids=[21, 22, 23, 32, 33], group_sizes=[3, 2], block_indices=[0, 1])
    places = [
        (block.pages[0], chunk.pages[0], chunk.start, chunk.stop) for block, chunk, _ in hooks._pairs(blocks, spec)
    ]
    assert places == [(21, 5, 8, 12), (22, 5, 4, 8), (23, 5, 0, 4), (32, 6, 4, 8), (33, 6, 0, 4)]
    pending = hooks._pending(hooks._manager, [A, B])
    hooks._stored(pending, None, hooks._manager)
    full, window = [event for event in events if isinstance(event, Publish)]
    run = hooks._attached.runs["r0"]
    assert (full.labels, full.slots) == ([run.label(FULL, page) for page in (2, 1, 0)], 0)
    assert (window.labels, window.slots) == ([run.label(WINDOW, 2)], 4), "earlier blocks of a window may be gone"


def test_a_steps_events_follow_the_stores_that_it_ends_and_its_pass_follows_its_loads() -> None:
    hooks, events = emitted(1)
    hooks._held = []
    for event in (
        Drop("kv", [7], ["a"]),
        Take("r1.2", "kv", [7]),
        Begin("step 2", "gpu", at="schedule"),
        End("step 1"),
    ):
        hooks.emit(event)
    hooks._host(Take("offload", "host", [1]))
    assert [type(event) for event in events] == [Take], "the host's chunks are not held back"
    hooks._flushed()
    assert [type(event) for event in events[1:]] == [Drop, Take, End]
    hooks._started()
    assert isinstance(events[-1], Begin)
    hooks.emit(End("step 2"))
    assert isinstance(events[-1], End)
