"""Moves of pages are queued and go out together: one launch for all releases, for any batch size."""

from kvcuda.device_manager import DeviceManager
from kvspec.events import Config


def running(manager: DeviceManager, prompts: dict[str, list[int]]) -> None:
    """Prefill all prompts in one batch; each samples token 9."""
    for req, prompt in prompts.items():
        manager.submit(req, list(prompt))
        manager.match_prefix(req)
    manager.extend([(req, len(prompt)) for req, prompt in prompts.items()])
    manager.launch(1, list(prompts))
    manager.complete(1, dict.fromkeys(prompts, 9))


def test_batch_that_leaves_costs_one_launch() -> None:
    manager = DeviceManager(Config(2, 64, 8, 16))
    running(manager, {f"r{number}": [number, 1, 2, 3, 4] for number in range(8)})
    epoch, pushed = manager.memory.epoch, manager.memory.pushed
    for number in range(6):
        manager.finish(f"r{number}")
    manager.retract("r6")
    manager.abort("r7")
    assert manager.memory.pushed == pushed + 6 + 2 * 3
    assert manager.memory.epoch == epoch
    manager.match_prefix("r6")
    manager.extend([("r6", 5)])
    assert manager.memory.epoch == epoch + 1


def test_window_sides_that_leave_cost_no_launch_of_their_own() -> None:
    manager = DeviceManager(Config(2, 64, 8, 16, sliding_window=2, num_window_pages=64))
    running(manager, {f"r{number}": [number, 1, 2, 3, 4, 5, 6] for number in range(8)})
    epoch, windows = manager.memory.epoch, manager.memory.windows
    for number in range(8):
        assert manager.swa_evict(f"r{number}").evicted_len == 4
    assert windows.available == 64 - 8 * 2
    for number in range(4):
        manager.finish(f"r{number}")  # 2 tombstones and a window side to the store, one window side free
    manager.retract("r4")
    assert windows.available == 64 - 4 - 3 * 2
    assert manager.evict_pages(0, window=1)[:2] == (0, 1)
    assert manager.memory.epoch == epoch + 1  # the eviction reads what was published
    manager.decode(["r5", "r6", "r7"])
    assert manager.memory.epoch == epoch + 2


def test_duplicate_of_what_is_queued_waits_for_the_next_launch() -> None:
    """Its row is rewritten from the arena, which the publication before it has yet to write."""
    manager = DeviceManager(Config(2, 64, 8, 16))
    running(manager, {req: [1, 2, 3, 4, 5] for req in ("a", "b", "c")})
    epoch = manager.memory.epoch
    manager.cache_unfinished("a")
    assert manager.memory.epoch == epoch
    manager.cache_unfinished("b")
    assert manager.memory.epoch == epoch + 1
    manager.cache_unfinished("c")
    assert manager.memory.epoch == epoch + 1
    manager.memory.flush()
    rows = manager.memory.req_to_token.tolist()
    assert len({tuple(row[:4]) for row in rows[:3]}) == 1
    assert len({row[4] for row in rows[:3]}) == 3


def test_duplicate_of_a_part_of_what_is_queued_waits_too() -> None:
    """It splits the node that is in the queue; the upper part is as new as the lower one."""
    manager = DeviceManager(Config(2, 64, 8, 16))
    running(manager, {"a": [1, 2, 3, 4, 5], "b": [1, 2, 7, 8, 9]})
    epoch = manager.memory.epoch
    manager.cache_unfinished("a")
    manager.cache_unfinished("b")
    assert manager.memory.epoch == epoch + 1
    manager.memory.flush()
    rows = manager.memory.req_to_token.tolist()
    assert rows[0][:2] == rows[1][:2]
    assert rows[0][2:5] != rows[1][2:5]


def test_evicted_places_are_used_again() -> None:
    manager = DeviceManager(Config(1, 6, 2, 8))
    for number in range(4):
        running(manager, {"a": [number, 1, 2, 3]})
        manager.finish("a")
        assert manager.evict_pages(9).pages == 4
    figures = manager.report("idle")
    assert (figures.available, figures.evictable, figures.protected) == (6, 0, 0)
