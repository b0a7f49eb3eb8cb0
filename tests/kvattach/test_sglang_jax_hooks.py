"""The events of sglang-jax's hooks about rows and a launch's array, in an engine of a few lines."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.sglang_jax.hooks import Attached
from kvlab.drives import CheckedTrace
from kvlab.sglang_jax.server import aligned

numpy = pytest.importorskip("numpy")


def _with(*names: str, **methods: Any) -> Any:
    """A class with these methods; those that are only named do nothing."""
    return type("Stub", (), {name: lambda *_, **__: None for name in names} | methods)


def _alloc(pool: Any, reqs: list[Any]) -> list[int]:
    for req in reqs:
        req.req_pool_idx = 0
    return [0 for _ in reqs]


def _taken(allocator: Any, count: int) -> list[int]:
    slots, allocator.free_slots[0] = allocator.free_slots[0][:count], allocator.free_slots[0][count:]
    return slots  # type: ignore[no-any-return]


def _write(pool: Any, at: tuple[int, slice], values: list[int]) -> None:
    pool.req_to_token[at] = values


def _launch(batch: Any, *, number: int) -> Any:
    return SimpleNamespace(bid=number, cache_loc=batch.handed)


class Small:
    """One request whose prompt is cut, rows, pages, and hooks into all of it."""

    def __init__(self, handed: str) -> None:
        """`handed`: what a launch gets, a `copy` of the rows, the `buffer` that all batches share, or the `rows`.

        Of what is `unaligned` jax makes a copy.
        """
        results = ("process_batch_result_prefill", "process_batch_result_decode")
        loops = ("event_loop_normal", "event_loop_overlap")
        cached = ("cache_unfinished_req", "cache_finished_req")
        tree = _with("reset", "inc_lock_ref", "dec_lock_ref", "_insert_helper", "evict", *cached)
        scheduler = _with("init_memory_pool_and_cache", "check_memory", *results, *loops)
        batch = _with("prepare_for_extend", "release_req", get_model_worker_batch=_launch)
        rows, allocator = _with("free", alloc=_alloc, write=_write), _with("free", alloc=_taken)
        engine: Any = SimpleNamespace(
            numpy=numpy,
            scheduler=SimpleNamespace(Scheduler=scheduler, ChunkCache=_with(*cached)),
            batch=SimpleNamespace(ScheduleBatch=batch, Req=_with("reset_for_retract")),
            pool=SimpleNamespace(ReqToTokenPool=rows),
            radix=SimpleNamespace(RadixCache=tree),
            policy=SimpleNamespace(PrefillAdder=_with("add_one_req", "add_one_req_ignore_eos")),
            allocator=SimpleNamespace(TokenToKVPoolAllocator=allocator, PagedTokenToKVPoolAllocator=_with()),
        )
        self.trace = CheckedTrace()
        self.hooks = Attached(engine, self.trace).hooks
        self.scheduler, self.batch, self.rows, self.allocator = scheduler(), batch(), rows(), allocator()
        self.rows.size, self.rows.req_to_token = 1, aligned(engine, numpy.zeros((1, 8), dtype=int))
        self.rows.cache_loc_host_buf = buffer = aligned(engine, numpy.zeros(16, dtype=int))
        self.allocator.size, self.allocator.free_slots = 8, [numpy.arange(1, 9)]
        self.scheduler.page_size, self.scheduler.tree_cache = 1, tree()
        self.scheduler.req_to_token_pool, self.scheduler.token_to_kv_pool_allocator = self.rows, self.allocator
        self.scheduler.init_memory_pool_and_cache()
        own = aligned(engine, numpy.zeros(16, dtype=int))
        arrays = {"copy": own, "buffer": buffer[:8], "unaligned": buffer[1:9], "rows": self.rows.req_to_token}
        self.batch.handed, self.batch.forward_mode = arrays[handed], SimpleNamespace(is_extend=lambda: True)
        self.req = SimpleNamespace(
            rid="r1.", req_pool_idx=None, origin_input_ids=list(range(6)), output_ids=[], finished=lambda: False
        )

    def chunk(self, number: int, start: int, stop: int) -> None:
        """Queue a launch of these positions, whose row is written from its begin on."""
        infos = [SimpleNamespace(reqs=[self.req], seq_lens=[stop], prefix_lens=[start], req_pool_indices=[0])]
        self.batch.reqs_info = infos
        self.batch.prepare_for_extend()
        self.rows.alloc([self.req])
        slots = [*self.rows.req_to_token[0, :start], *self.allocator.alloc(stop - start)]
        self.rows.write((0, slice(0, stop)), slots)
        self.batch.get_model_worker_batch(number=number)

    def result(self, number: int) -> None:
        """Take the result of a launch."""
        self.scheduler.process_batch_result_prefill(self.batch, SimpleNamespace(bid=number))


@pytest.mark.parametrize(
    ("handed", "found"),
    [
        ("copy", set()),
        ("unaligned", set()),
        ("buffer", {("MEM-RACE/write", "cache_loc")}),
        ("rows", {("MEM-RACE/write", "rows")}),
    ],
)
def test_what_a_launch_in_flight_is_handed_may_not_be_written(handed: str, found: set[tuple[str, str]]) -> None:
    small = Small(handed)
    small.chunk(1, 0, 4)
    small.chunk(2, 4, 6)
    assert small.hooks.problem is None
    assert {(finding.code, finding.pool) for _, finding in small.trace.found} == found


@pytest.mark.parametrize("handed", ["copy", "buffer", "rows"])
def test_what_a_launch_was_handed_may_be_written_when_its_result_is_taken(handed: str) -> None:
    small = Small(handed)
    small.chunk(1, 0, 4)
    small.result(1)
    small.chunk(2, 4, 6)
    small.result(2)
    assert small.hooks.problem is None and not small.trace.found and small.trace.events > 10


def test_the_buffer_is_there_when_all_is_idle() -> None:
    small = Small("buffer")
    events = small.trace.events
    small.scheduler.check_memory()
    assert small.hooks.problem is None and not small.trace.found and small.trace.events == events + 1


def test_an_engine_that_stays_idle_is_reported_idle_once() -> None:
    small = Small("copy")
    small.scheduler.check_memory()
    events = small.trace.events
    small.scheduler.check_memory()
    assert small.trace.events == events
    small.chunk(1, 0, 4)
    small.result(1)
    small.scheduler.check_memory()
    assert {finding.rule for _, finding in small.trace.found} == {"MEM-LEAK"}
