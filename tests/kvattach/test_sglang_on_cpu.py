"""SGLang's hooks in a server on a CPU: operations are done at once, and rows are read as far as they are new."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from benchmarks.late_hooks import Engine, Events, attached, release

from kvattach.sglang.hooks import Attached
from kvlab.drives import CheckedTrace
from kvspec.memory.events import Begin, End, Map, MemoryEvent, Release, Share, Wait
from kvtrace.writer import TraceWriter


class Checked(Events):
    """Keeps the events, and checks them."""

    def __init__(self) -> None:
        super().__init__()
        self.check = CheckedTrace()

    def header(self, *named: object) -> None:
        self.check.header(*named)  # type: ignore[arg-type]

    def emit(self, *events: MemoryEvent) -> None:
        super().emit(*events)
        self.check.emit(*events)


def serve(engine: Engine, trace: Events, *, frees_early: bool = False) -> None:
    """Requests come, decode and end. `frees_early`: one frees its pages and its row, and decodes once more."""
    hooked = Attached(release(), trace)
    try:
        memory = SimpleNamespace(cache=engine.cache, allocator=engine.allocator, rows=engine.rows, host=None)
        hooked.watch(memory)
        engine.attached = hooked
        engine.admit(3)
        for _ in range(9):
            engine.decode()
        if frees_early:
            req = engine.reqs[0]
            engine.allocator.free(engine.rows.req_to_token[req.kv.req_pool_idx, engine.prompt : engine.prompt + 4])
            engine.decode()
        engine.finish(3)
    finally:
        engine.attached = None
        hooked.hooks.detach()
    assert hooked.hooks.problem is None


@pytest.mark.parametrize("page_size", [1, 4])
def test_each_operation_is_done_at_once_and_tables_are_those_of_a_device(page_size: int) -> None:
    here, device = Checked(), Events()
    serve(Engine(6, page_size, "cpu", 4 * page_size), here)
    assert not here.check.found
    assert {event.stream for event in here.all if isinstance(event, Begin)} == {"host"}
    assert not any(isinstance(event, End | Wait) for event in here.all)
    launches = [event for event in here.all if isinstance(event, Begin) and event.at == "forward_batch_generation"]
    assert all({f"{use.table} rows" for use in one.writes} <= {use.table for use in one.reads} for one in launches)
    engine = Engine(6, page_size, "cpu", 4 * page_size)
    with attached(engine, device, None):
        engine.admit(3)
        for _ in range(9):
            engine.decode()
        engine.finish(3)
    maps = [event for event in device.all if isinstance(event, Map)]
    assert len(maps) > 6
    assert [event for event in here.all if isinstance(event, Map)] == maps


def test_a_page_that_is_freed_and_still_used_is_found() -> None:
    trace = Checked()
    serve(Engine(6, 4, "cpu", 16), trace, frees_early=True)
    assert trace.check.found


def test_a_prefix_that_is_locked_and_unlocked_again_and_again_is_recorded_once(tmp_path: Path) -> None:
    """As `PrefillAdder.add_one_req` does while no request fits."""
    trace, engine = TraceWriter(tmp_path / "t.jsonl"), Engine(6, 4, "cpu", 16)
    hooked = Attached(release(), trace)
    try:
        hooked.watch(SimpleNamespace(cache=engine.cache, allocator=engine.allocator, rows=engine.rows, host=None))
        engine.attached = hooked
        engine.admit(1)
        for _ in range(3):
            for _ in range(500):
                engine.cache.unlock(engine.cache.lock(1))
            engine.decode()
        # A request is admitted: its own lock is taken before the other one is released.
        first, second = engine.cache.lock(1), engine.cache.lock(1)
        engine.cache.unlock(first)
        engine.cache.unlock(second)
    finally:
        engine.attached = None
        hooked.hooks.detach()
    trace.close()
    events = [msgspec.json.decode(line, type=MemoryEvent) for line in trace.files[0].read_bytes().splitlines()[1:]]
    locks = [(type(event), event.holder) for event in events if isinstance(event, Share | Release)]
    one, other = locks[-4][1], locks[-3][1]
    assert one != other
    recorded = [(Share, one), (Release, one)] * 3 + [(Share, one), (Share, other), (Release, one), (Release, other)]
    assert locks[-10:] == recorded
    assert locks.count((Share, one)) == 4
