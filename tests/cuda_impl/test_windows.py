"""The window pool: which window page is behind which page, on the device, and the host's arithmetic of both rings."""

import random
from typing import Any

import pytest

from kvcuda.arena import Run
from kvcuda.backend import DEVICE
from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.digest import generate, layers_of
from kvcuda.digest_step import DigestStep
from kvcuda.memory import DeviceFault, DeviceMemory
from kvcuda.prefix_tree import PrefixTree
from kvcuda.row_table import ints
from kvcuda.streams import Streams, default_streams
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import A, Complete, Config, Extend, Launch, MatchPrefix, Operation, Refusal, Submit
from kvspec.pages import ceil_pages
from kvspec.tokens import Page
from tests.cuda_impl.simulated_streams import SimulatedStreams
from tests.cuda_impl.traffic import requests


def make(page_size: int, num_pages: int, num_window_pages: int, rows: int = 4, pages_a_row: int = 8) -> DeviceMemory:
    config = Config(
        page_size, num_pages, rows, pages_a_row * page_size, sliding_window=1, num_window_pages=num_window_pages
    )
    return DeviceMemory(config, default_streams(DEVICE), debug=True)


def prefill(memory: DeviceMemory, row: int, start: int, end: int) -> None:
    memory.extend(ints([row]), ints([start]), ints([end]))


def sides(memory: DeviceMemory) -> dict[int, int]:
    """The window page behind each page that has one."""
    memory.check()
    return {page: side for page, side in enumerate(memory.windows.window_of.tolist()) if side}


def free_windows(memory: DeviceMemory) -> list[int]:
    memory.check()
    windows = memory.windows
    ring = windows.ring.tolist()
    return [ring[(windows.popped + i) % windows.size] for i in range(windows.available)]


def contents(memory: DeviceMemory) -> list[Any]:
    memory.flush()
    windows = memory.windows
    tensors = (memory.req_to_token, memory.ring, memory.arena, windows.window_of, windows.ring)
    counters = (memory.popped, memory.pushed, windows.popped, windows.pushed)
    return [*(tensor.tolist() for tensor in tensors), *counters]


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("page_size", [1, 3])
def test_sides_follow_the_arithmetic_in_small_blocks(page_size: int) -> None:
    follow_the_arithmetic(page_size)


@pytest.mark.slow
def test_sides_follow_the_arithmetic() -> None:
    follow_the_arithmetic(page_size=64)


def follow_the_arithmetic(page_size: int) -> None:
    """Random extends, decodes, sheds and frees against lists on the host, past the ends of both rings many times."""
    draw = random.Random(page_size)
    memory = make(page_size, 17, 11, rows=3)
    ring, window_ring = list(range(1, 18)), list(range(1, 12))
    tables: list[list[int]] = [[], [], []]
    lengths, cursors = [0, 0, 0], [0, 0, 0]
    behind: dict[int, int] = {}
    for _ in range(70):
        row = draw.randrange(3)
        table = tables[row]
        grown = lengths[row] + draw.randint(1, 2 * page_size)
        needed = ceil_pages(grown, page_size) - len(table)
        if grown <= 8 * page_size and needed <= min(len(ring), len(window_ring)) and draw.random() < 0.7:
            for _ in range(needed):
                table.append(ring.pop(0))
                behind[table[-1]] = window_ring.pop(0)
            start = ints([lengths[row]])
            if grown - lengths[row] > 9 or draw.random() < 0.5:
                memory.extend(ints([row]), start, ints([grown]))
            else:
                slot = memory.stage_decode(ints([row]), start, start, grown - lengths[row])[2]
                memory.run_decode(slot, 1)
            lengths[row] = grown
        elif draw.random() < 0.5 and cursors[row] < len(table):
            until = draw.randint(cursors[row] + 1, len(table))
            memory.shed(row, cursors[row], until)
            window_ring += [behind.pop(page) for page in table[cursors[row] : until]]
            cursors[row] = until
        elif table:
            kept = draw.randint(0, len(table) - 1)
            if draw.random() < 0.5:
                memory.free(row, kept, len(table), cursors[row])
            else:
                memory.free_all(ints([row]), ints([kept]), ints([len(table)]), ints([cursors[row]]))
            ring += table[kept:]
            window_ring += [behind.pop(page) for page in table[max(kept, cursors[row]) :]]
            del table[kept:]
            lengths[row], cursors[row] = min(lengths[row], kept * page_size), min(cursors[row], kept)
        assert (memory.available, memory.windows.available) == (len(ring), len(window_ring))
    assert sides(memory) == behind
    assert free_windows(memory) == window_ring
    assert memory.windows.pushed > 11  # past the end of the ring


def test_batch_gives_each_page_its_side() -> None:
    memory = make(2, 40, 30, rows=5)
    rows = ints([4, 0, 2])
    memory.extend(rows, ints([0, 0, 0]), ints([3, 1, 8]))  # 2, 1 and 4 pages
    slot = memory.stage_decode(rows, ints([3, 1, 8]), ints([3, 1, 8]), 4)[2]  # 2, 2 and 2 more
    memory.run_decode(slot, 3)
    assert sides(memory) == {page: page for page in range(1, 14)}
    memory.free_all(rows, ints([1, 0, 2]), ints([4, 3, 6]), ints([3, 0, 9]))
    assert free_windows(memory) == [*range(14, 31), 9, 3, 10, 11]


def test_publication_moves_sides_or_leaves_them() -> None:
    memory = make(1, 20, 20)
    prefill(memory, 0, 0, 4)  # pages 1..4
    memory.shed(0, 0, 2)
    memory.publish(0, 0, [Run(5, 4)])
    assert sides(memory) == {3: 3, 4: 4}
    prefill(memory, 1, 0, 4)  # pages 5..8 with window pages 5..8
    memory.shed(1, 0, 1)
    memory.replace(1, 0, [Run(5, 1)], cursor=1)  # neither has a side
    memory.revive(1, 1, [Run(6, 1)])  # only the duplicate has
    memory.replace(1, 2, [Run(7, 2)], cursor=1)  # both have
    assert sides(memory) == {2: 6, 3: 3, 4: 4}
    assert memory.req_to_token[1, :4].tolist() == [1, 2, 3, 4]
    assert sorted(free_windows(memory)[14:]) == [5, 7, 8]
    memory.drop([Run(7, 1)])
    assert sides(memory) == {2: 6, 4: 4}
    memory.evict([Run(5, 1), Run(7, 1)], sided=False)
    memory.evict([Run(6, 1), Run(8, 1)])
    assert sides(memory) == {}
    assert sorted(free_windows(memory)) == list(range(1, 21))
    assert memory.available == 20


@pytest.mark.slow
def test_moves_that_touch_the_same_sides_do_not_share_a_launch() -> None:
    memory = make(1, 20, 20)
    prefill(memory, 0, 0, 4)
    memory.publish(0, 0, [Run(0, 2)])
    memory.flush()
    prefill(memory, 1, 0, 4)

    def launches() -> int:
        epoch = memory.epoch
        memory.flush()
        return memory.epoch - epoch

    epoch = memory.epoch
    memory.shed(0, 2, 3)
    memory.replace(1, 0, [Run(0, 1)])
    assert memory.epoch == epoch
    memory.shed(1, 1, 2)
    memory.replace(1, 1, [Run(1, 1)], cursor=2)  # rewrites what the line before reads
    assert memory.epoch == epoch + 1
    memory.drop([Run(1, 1)])
    memory.revive(1, 2, [Run(1, 1)])
    assert memory.epoch == epoch + 2
    memory.drop([Run(1, 1)])
    assert memory.epoch == epoch + 3
    assert launches() == 1
    memory.shed(1, 3, 4)
    memory.free(0, 2, 4, 3)
    memory.free(1, 3, 4, 4)
    assert launches() == 1
    assert sides(memory) == {1: 1}
    prefill(memory, 3, 0, 2)
    memory.shed(3, 0, 1)
    memory.flush()
    epoch = memory.epoch
    memory.drop([Run(0, 1)])
    memory.replace(3, 0, [Run(0, 1)], cursor=1)
    assert memory.epoch == epoch
    prefill(memory, 2, 0, 1)
    epoch = memory.epoch
    memory.revive(2, 0, [Run(0, 1)])
    memory.evict([Run(0, 1)])  # takes the side along that the line before moves there
    assert memory.epoch == epoch + 1


def test_window_sides_that_leave_with_their_pages_count() -> None:
    manager = DeviceManager(Config(1, 20, 4, 8, sliding_window=1, num_window_pages=20))
    for number in range(3):
        manager.submit("a", [number, 7, 7])
        manager.match_prefix("a")
        manager.extend([("a", 3)])
        manager.launch(0, ["a"])
        manager.complete(0, {"a": 1})
        manager.finish("a")
    assert manager.evict_pages(1, window=3) == (1, 3, [])
    assert manager.evict_pages(9, window=9) == (8, 6, [])


def test_pages_without_room_for_their_sides_change_nothing() -> None:
    memory = make(2, 20, 3)
    prefill(memory, 0, 0, 3)
    before = contents(memory)
    with pytest.raises(Refusal) as refusal:
        prefill(memory, 1, 0, 5)
    refused = refusal.value.refused
    assert (refused.rule, refused.pages_short, refused.window_short) == ("CAP-1", 0, 2)
    with pytest.raises(Refusal) as refusal:
        memory.stage_decode(ints([0]), ints([3]), ints([3]), 5)
    assert (refusal.value.refused.pages_short, refusal.value.refused.window_short) == (0, 1)
    assert contents(memory) == before
    memory.shed(0, 0, 2)
    before = contents(memory)
    with pytest.raises(ValueError, match="only 0 are in use"):
        memory.shed(0, 0, 1)
    assert contents(memory) == before


def test_sizes_that_do_not_go_together_are_refused() -> None:
    for config in (
        Config(1, 8, 1, 8, sliding_window=2),
        Config(1, 8, 1, 8, num_window_pages=2),
        Config(256, 8, 1, 8, sliding_window=2, num_window_pages=2**23),
        Config(1, 8, 1, 8, sliding_window=2, num_window_pages=2, num_states=4),
    ):
        with pytest.raises(ValueError, match=r"window|states"):
            DeviceManager(config)
    memory = DeviceMemory(Config(1, 8, 1, 8), default_streams(DEVICE))
    with pytest.raises(ValueError, match="no sliding window"):
        memory.shed(0, 0, 1)


# Debug mode


def test_side_that_is_freed_twice_names_row_and_window_page() -> None:
    memory = make(2, 9, 9)
    prefill(memory, 2, 0, 8)
    memory.windows.window_of[3] = 2
    memory.shed(2, 1, 2)
    memory.check()
    memory.shed(2, 2, 3)
    with pytest.raises(DeviceFault, match="window page 2 of row 2 was freed, but is free already"):
        memory.check()


def test_side_that_is_gone_names_row_and_window_page() -> None:
    memory = make(2, 9, 9)
    prefill(memory, 1, 0, 8)
    memory.shed(1, 0, 1)
    memory.check()
    memory.free(1, 0, 1)
    with pytest.raises(DeviceFault, match=r"window page 0 of row 1 is not in 1\.\.9"):
        memory.check()


def test_side_that_is_handed_out_twice_names_row_and_window_page() -> None:
    memory = make(2, 9, 9)
    memory.windows.ring[3] = 1
    prefill(memory, 0, 0, 7)
    with pytest.raises(DeviceFault, match="window page 1 of row 0 was handed out, but is in use"):
        memory.check()


@pytest.mark.parametrize("give_side", ["extend", "revive"])
def test_side_that_was_left_behind_names_row_and_page(give_side: str) -> None:
    """A free that forgets a window side is noticed when its page is handed out; so is a side for one that has one."""
    memory = make(2, 3, 9)
    prefill(memory, 0, 0, 6)
    if give_side == "extend":
        memory.free(0, 0, 1, cursor=1)
        memory.check()
        prefill(memory, 1, 0, 1)
    else:
        memory.publish(0, 0, [Run(0, 1)])
        memory.flush()
        memory.revive(0, 1, [Run(0, 1)])
    with pytest.raises(DeviceFault, match=r"page 1 of row [01] was given a window side, but still has one"):
        memory.check()


# The prefix store's tree


def test_lock_reaches_as_far_as_the_window() -> None:
    tree = PrefixTree(20, reach=3)
    node = tree.add(tree.root, [(i,) for i in range(8)], has_window=True)
    tree.lock(node)
    assert (tree.evictable, tree.protected) == (0, 8)
    assert (tree.window_evictable, tree.window_protected) == (5, 3)
    assert len(tree.evict_windows(1)) == 1
    assert (tree.window_evictable, tree.window_protected) == (0, 3)
    assert tree.evict_windows(1) == []
    longer = tree.add(node, [(8,)], has_window=True)
    tree.lock(longer)
    tree.unlock(node)
    assert (tree.window_evictable, tree.window_protected) == (1, 3)
    tree.unlock(longer)
    assert (tree.evictable, tree.window_evictable, tree.window_protected) == (9, 4, 0)


def test_match_ends_where_the_window_is_live() -> None:
    tree = PrefixTree(20, reach=2)
    key: list[Page] = [(i,) for i in range(8)]
    node = tree.add(tree.root, key[:3], has_window=True)
    node = tree.add(node, key[3:4])
    node = tree.add(node, key[4:], has_window=True)
    assert [tree.match(key[:pages]).pages for pages in range(9)] == [0, 1, 2, 3, 3, 3, 6, 7, 8]


def test_window_that_was_used_least_recently_goes_first() -> None:
    tree = PrefixTree(20, reach=1)
    nodes = [tree.add(tree.root, [(i,), (i,)], has_window=True) for i in range(3)]
    tree.match([(0,), (0,)])
    assert tree.evict_windows(1) == nodes[1].runs
    assert tree.evict_windows(3) == nodes[2].runs + nodes[0].runs


# Whole runs


class Windowed:
    """A step beside which every running request gives back what its window has left behind, after each launch."""

    def __init__(self, step: DigestStep) -> None:
        self.step = step
        self.evicted = 0

    def __call__(self, op: Operation[A], /) -> A:
        answer = self.step(op)
        if isinstance(op, Complete):
            windows = self.step.manager.memory.windows
            before = windows.pushed
            for req in self.step.manager.running:
                self.step.manager.swa_evict(req)
            self.evicted += windows.pushed - before
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("lazy", ["", "scheduler"])
def test_both_rings_come_back_whole_in_any_order_of_streams(lazy: str) -> None:
    config = Config(4, 40, 5, 64, sliding_window=6, num_window_pages=40)
    streams: Streams | None = SimulatedStreams(lazy=lazy) if lazy else None
    step = Windowed(DigestStep(DeviceManager, config, streams=streams))
    chunks = SchedulerConfig(
        chunked_prefill_size=8, max_prefill_tokens=24, overlap=True, retract_interval=5, abort_interval=7
    )
    Scheduler(step, config, requests(seed=3, count=16, longest=24, layers=layers_of(config)), chunks).run()
    assert step.step.corruptions() == []
    assert step.evicted > 4
    manager = step.step.manager
    manager.evict_pages(1000)
    for session in [name for name, _ in manager.sessions.idle()]:
        manager.preempt(session)
    manager.evict_pages(1000)
    manager.memory.flush()
    manager.streams.synchronize()
    assert manager.memory.windows.available == 40
    assert sorted(manager.memory.windows.ring.tolist()) == list(range(1, 41))
    assert not manager.memory.windows.window_of.any()


def test_replayed_step_gives_out_sides() -> None:
    config = Config(2, 9, 2, 16, sliding_window=3, num_window_pages=8)
    step = DigestStep(DeviceManager, config)
    graph = DecodeGraph(step, 2)
    for req in ("a", "b"):
        step(Submit(req, [1, 2, 3, 4]))
        step(MatchPrefix(req))
    step(Extend([("a", 4), ("b", 4)]))
    step(Launch(1, ["a", "b"]))
    graph.decode_and_launch(2, ["a", "b"])
    step(Complete(1, dict.fromkeys(("a", "b"), generate([1, 2, 3, 4], 1, layers_of(config))[0])))
    assert step.corruptions() == []
    assert sides(step.manager.memory) == {page: page for page in range(1, 7)}
