"""The device's memory, one layer below requests: rows, ring and arena as the kernels leave them."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvcuda.arena import Run
from kvcuda.backend import DEVICE
from kvcuda.memory import OUT_BUFFERS, Copy, DeviceFault, DeviceMemory
from kvcuda.row_table import ints
from kvcuda.streams import default_streams
from kvcuda.tensors import check_sizes
from kvspec.events import Config, Refusal
from kvspec.pages import ceil_pages, slot_index
from tests.cuda_impl.simulated_streams import SimulatedStreams
from tests.cuda_impl.untouched import reserve_only


def make(config: Config, **options: Any) -> DeviceMemory:
    return DeviceMemory(config, default_streams(DEVICE), debug=True, **options)


def prefill(memory: DeviceMemory, row: int, start: int, end: int) -> None:
    memory.extend(ints([row]), ints([start]), ints([end]))


def decode(memory: DeviceMemory, rows: list[int], committed: list[int], allocated: list[int], n: int) -> int:
    _, out, slot = memory.stage_decode(ints(rows), ints(committed), ints(allocated), n)
    memory.run_decode(slot, len(rows))
    return out


def free_pages(memory: DeviceMemory) -> list[int]:
    ring, num_pages = memory.ring.tolist(), memory.config.num_pages
    return [ring[(memory.popped + i) % num_pages] for i in range(memory.available)]


def contents(memory: DeviceMemory) -> list[Any]:
    memory.flush()
    tensors = (memory.req_to_token, memory.ring, memory.arena, memory.out_cache_loc)
    return [*(tensor.tolist() for tensor in tensors), memory.popped, memory.pushed]


@pytest.mark.usefixtures("small_blocks")
def test_batch_larger_than_several_blocks_of_jobs() -> None:
    batch = 9
    memory = make(Config(2, 3 * batch, batch, 8))
    rows = ints(list(range(batch)))
    out = memory.extend(rows, rows * 0, rows * 0 + 1 + rows % 3)
    lengths = [1 + row % 3 for row in range(batch)]
    table = iter(range(1, 3 * batch + 1))
    pages = [[next(table) for _ in range(ceil_pages(length, 2))] for length in lengths]
    for row in range(batch):
        assert memory.req_to_token[row, : lengths[row]].tolist() == [
            slot_index(pages[row][i // 2], i, 2) for i in range(lengths[row])
        ]
        assert (
            memory.out_cache_loc[out : out + lengths[row]].tolist() == memory.req_to_token[row, : lengths[row]].tolist()
        )
        out += lengths[row]
    out = decode(memory, list(range(batch)), lengths, lengths, 1)
    for row in range(batch):
        if lengths[row] % 2 == 0:
            pages[row].append(next(table))
        last = memory.req_to_token[row, lengths[row]].item()
        assert last == slot_index(pages[row][lengths[row] // 2], lengths[row], 2)
        assert last == memory.out_cache_loc[out + row].item()
    starts = 2 + rows % 3
    out = memory.extend(rows, starts, starts + 2)
    for row in range(batch):
        start = lengths[row] + 1
        if len(pages[row]) * 2 < start + 2:
            pages[row].append(next(table))
        slots = [slot_index(pages[row][i // 2], i, 2) for i in range(start, start + 2)]
        assert memory.req_to_token[row, start : start + 2].tolist() == slots
        assert memory.out_cache_loc[out + 2 * row : out + 2 * row + 2].tolist() == slots


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("page_size", [1, 3])
def test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks(page_size: int) -> None:
    follow_the_arithmetic(page_size)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [7, 256])
def test_rows_ring_and_out_follow_the_arithmetic(page_size: int) -> None:
    follow_the_arithmetic(page_size)


def follow_the_arithmetic(page_size: int) -> None:
    """Random extends, decodes and frees against lists of pages on the host, past the end of the ring many times."""
    draw = random.Random(page_size)
    memory = make(Config(page_size, 23, 3, 9 * page_size))
    ring = list(range(1, 24))
    tables: list[list[int]] = [[], [], []]
    lengths = [0, 0, 0]
    for _ in range(40):
        row = draw.randrange(3)
        grown = lengths[row] + draw.randint(1, 3 * page_size)
        if grown > 9 * page_size or ceil_pages(grown, page_size) - len(tables[row]) > len(ring):
            kept = draw.randint(0, len(tables[row]))
            memory.free(row, kept, len(tables[row]))
            ring += tables[row][kept:]
            del tables[row][kept:]
            lengths[row] = min(lengths[row], kept * page_size)
            continue
        while len(tables[row]) * page_size < grown:
            tables[row].append(ring.pop(0))
        start = lengths[row]
        if draw.random() < 0.5 or grown - start > 9:
            out = memory.extend(ints([row]), ints([start]), ints([grown]))
        else:
            out = decode(memory, [row], [start], [start], grown - start)
        lengths[row] = grown
        slots = [slot_index(tables[row][i // page_size], i, page_size) for i in range(grown)]
        assert memory.req_to_token[row, :grown].tolist() == slots
        assert memory.out_cache_loc[out : out + grown - start].tolist() == slots[start:]
    memory.check()
    assert free_pages(memory) == ring
    assert memory.popped > 23  # past the end of the ring


def test_speculative_decode_writes_only_what_is_missing() -> None:
    memory = make(Config(4, 9, 2, 32))
    prefill(memory, 0, 0, 6)
    prefill(memory, 1, 0, 3)
    decode(memory, [0, 1], [6, 3], [6, 3], 4)
    before = memory.req_to_token.tolist()
    out = decode(memory, [1, 0], [4, 7], [7, 10], 4)
    after = memory.req_to_token.tolist()
    assert after[0][:10] == before[0][:10]
    assert after[1][:7] == before[1][:7]
    assert memory.out_cache_loc[out : out + 8].tolist() == after[1][4:8] + after[0][7:11]
    popped = memory.popped
    out = decode(memory, [0], [6], [11], 1)  # it has pages for more
    assert memory.popped == popped
    assert memory.out_cache_loc[out].item() == after[0][6]
    memory.check()


def test_matched_pages_are_copied_and_duplicates_replaced() -> None:
    memory = make(Config(2, 12, 4, 16))
    prefill(memory, 0, 0, 6)  # pages 1 2 3
    memory.publish(0, 0, [Run(5, 1), Run(9, 2)])
    memory.flush()
    assert [memory.arena[place].item() for place in (5, 9, 10)] == [1, 2, 3]
    memory.extend(ints([1]), ints([4]), ints([7]), [Copy(1, 0, 2, 5), Copy(1, 2, 4, 9)])  # pages 1 2, then 4 5
    assert memory.req_to_token[1, :7].tolist() == [2, 3, 4, 5, 8, 9, 10]
    prefill(memory, 2, 0, 5)  # pages 6 7 8
    memory.replace(2, 0, [Run(5, 1), Run(9, 1)])
    memory.flush()
    assert memory.req_to_token[2, :5].tolist() == [2, 3, 4, 5, 16]
    assert free_pages(memory) == [9, 10, 11, 12, 6, 7]
    memory.evict([Run(10, 1)])
    memory.flush()
    assert free_pages(memory)[-1] == 3
    memory.check()


@pytest.mark.usefixtures("small_blocks")
def test_duplicates_of_several_blocks_are_replaced_slot_by_slot() -> None:
    memory = make(Config(3, 12, 2, 18))
    prefill(memory, 0, 0, 18)
    prefill(memory, 1, 0, 18)
    memory.publish(0, 1, [Run(7, 3)])  # pages 2 3 4
    memory.flush()
    memory.replace(1, 2, [Run(7, 3)])
    memory.flush()
    own, kept = range(7, 13), range(2, 5)
    listed = [*own[:2], *kept, own[5]]
    assert memory.req_to_token[1].tolist() == [3 * page + offset for page in listed for offset in range(3)]
    assert free_pages(memory) == [*own[2:5]]
    memory.check()


@pytest.mark.usefixtures("small_blocks")
def test_matched_prefix_of_several_blocks_is_copied_whole() -> None:
    memory = make(Config(2, 12, 2, 20))
    prefill(memory, 0, 0, 14)
    memory.publish(0, 0, [Run(3, 7)])
    memory.extend(ints([1]), ints([14]), ints([15]), [Copy(1, 0, 14, 3)])
    rows = memory.req_to_token.tolist()
    assert rows[1][:14] == rows[0][:14]
    assert rows[1][14] == 16


@pytest.mark.usefixtures("small_blocks")
def test_widest_move_of_a_launch_decides_its_blocks() -> None:
    memory = make(Config(1, 12, 3, 8))
    for row in range(3):
        prefill(memory, row, 0, 4)
    memory.free(0, 1, 2)
    memory.free(1, 0, 4)
    memory.free(2, 3, 4)
    memory.flush()
    assert free_pages(memory) == [2, 5, 6, 7, 8, 12]


def test_eviction_and_publication_do_not_share_a_launch() -> None:
    """The jobs of one launch run in no order, and an eviction frees places that a publication may take."""
    memory = make(Config(1, 8, 2, 8))
    prefill(memory, 0, 0, 2)
    prefill(memory, 1, 0, 1)
    epoch = memory.epoch
    memory.publish(0, 0, [Run(0, 2)])
    memory.evict([Run(0, 2)])
    assert memory.epoch == epoch + 1
    memory.publish(1, 0, [Run(0, 1)])
    assert memory.epoch == epoch + 2
    memory.flush()
    assert memory.arena[0].item() == 3
    assert free_pages(memory) == [4, 5, 6, 7, 8, 1, 2]
    memory.check()


def test_moves_beyond_one_launch_are_carried_out_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcuda.moves.MAX_JOBS", 4)
    memory = make(Config(1, 20, 10, 2))
    for row in range(10):
        prefill(memory, row, 0, 2)
    epoch = memory.epoch
    for row in range(5):
        memory.free(row, 0, 1)
    every = ints(list(range(10)))
    memory.free_all(every, every * 0 + 1, every * 0 + 2)
    memory.flush()
    assert memory.epoch == epoch + 5  # 4; 1, with no room for 4 more; 4; 4; 2
    assert free_pages(memory) == [1, 3, 5, 7, 9, *range(2, 21, 2)]
    memory.check()


def test_many_matched_runs_are_copied_in_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcuda.memory.MAX_JOBS", 4)
    memory = make(Config(1, 14, 2, 14))
    prefill(memory, 0, 0, 13)
    memory.publish(0, 0, [Run(0, 13)])
    memory.extend(ints([1]), ints([13]), ints([14]), [Copy(1, i, i + 1, 12 - i) for i in range(13)])
    rows = memory.req_to_token.tolist()
    assert rows[1] == [*reversed(rows[0][:13]), 14]


def test_out_is_allocated_anew_for_a_larger_batch() -> None:
    memory = make(Config(4, 64, 2, 256), out_tokens=8)
    prefill(memory, 0, 0, 4)
    assert memory.out_tokens == 8
    out = memory.extend(ints([1]), ints([0]), ints([9]))
    assert memory.out_tokens == 16
    assert memory.oldest_batch == 1
    assert memory.out_cache_loc[out : out + 9].tolist() == memory.req_to_token[1, :9].tolist()


def test_words_are_not_written_over_before_a_late_stream_has_read_them() -> None:
    """More launches than there are buffers, on a stream that moves only when the host waits for it."""
    streams = SimulatedStreams(lazy="scheduler")
    memory = DeviceMemory(Config(1, 50, 1, 50), streams)
    for position in range(40):
        memory.extend(ints([0]), ints([position]), ints([position + 1]))
    streams.synchronize()
    assert memory.req_to_token[0, :40].tolist() == list(range(1, 41))


@pytest.mark.gpu
@pytest.mark.parametrize("waits", [True, False])
def test_words_stay_until_a_busy_gpu_has_read_them(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DeviceMemory(Config(1, 50, 1, 50), default_streams(DEVICE))
    memory.extend(ints([0]), ints([0]), ints([1]))  # compiled
    torch.cuda.synchronize()
    if not waits:
        monkeypatch.setattr(torch.cuda.Event, "query", lambda self: True)
    torch.cuda._sleep(200_000_000)
    for position in range(1, 40):
        memory.extend(ints([0]), ints([position]), ints([position + 1]))
    torch.cuda.synchronize()
    assert (memory.req_to_token[0, :40].tolist() == list(range(1, 41))) == waits


def test_out_of_the_last_batches_stays() -> None:
    memory = make(Config(4, 64, 1, 256))
    outs = [memory.extend(ints([0]), ints([4 * i]), ints([4 * i + 4])) for i in range(OUT_BUFFERS)]
    assert memory.oldest_batch == 0
    row = memory.req_to_token[0].tolist()
    for i, out in enumerate(outs):
        assert memory.out_cache_loc[out : out + 4].tolist() == row[4 * i : 4 * i + 4]


# Refusals and bad input: nothing changes on the device


def test_batch_that_does_not_fit_changes_nothing() -> None:
    memory = make(Config(2, 4, 3, 16))
    prefill(memory, 0, 0, 3)
    before = contents(memory)
    with pytest.raises(Refusal) as refusal:
        memory.extend(ints([1, 2]), ints([0, 0]), ints([3, 5]))
    assert (refusal.value.refused.rule, refusal.value.refused.pages_short) == ("CAP-1", 3)
    with pytest.raises(Refusal) as refusal:
        decode(memory, [0], [3], [3], 7)
    assert (refusal.value.refused.rule, refusal.value.refused.pages_short) == ("CAP-1", 1)
    assert contents(memory) == before


@pytest.mark.parametrize(("row", "start", "end"), [(-1, 0, 1), (3, 0, 1), (0, -1, 1), (0, 2, 2), (0, 0, 17)], ids=str)
def test_row_or_length_out_of_range_changes_nothing(row: int, start: int, end: int) -> None:
    memory = make(Config(2, 20, 3, 16))
    before = contents(memory)
    with pytest.raises(ValueError, match="not in"):
        prefill(memory, row, start, end)
    with pytest.raises(ValueError, match="not in"):
        decode(memory, [row], [17 if start == end else start], [start], end - start)
    assert contents(memory) == before


def test_moves_out_of_range_change_nothing() -> None:
    memory = make(Config(2, 20, 3, 16))
    prefill(memory, 0, 0, 16)
    before = contents(memory)
    attempts: list[Callable[[], None]] = [
        lambda: memory.free(3, 0, 1),
        lambda: memory.free(0, 0, 9),
        lambda: memory.free(0, -1, 1),
        lambda: memory.publish(0, 0, [Run(20, 1)]),
        lambda: memory.replace(0, 8, [Run(0, 1)]),
        lambda: memory.evict([Run(0, 9)]),
        lambda: memory.free_all(ints([3]), ints([0]), ints([1])),
        lambda: memory.free_all(ints([0]), ints([0]), ints([9])),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"not in|past|go back"):
            attempt()
    assert contents(memory) == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(257, 8, 1, 8), "page_size 257 is not in"),
        (Config(256, 2**23, 1, 8), "8388608 pages of 256 tokens have slot indices past"),
        (Config(1, 2**30 + 1, 1, 8), "1073741825 pages are more than a ring of 1073741824"),
        (
            Config(1, 8, 1, 8, sliding_window=1, num_window_pages=2**30 + 1),
            "1073741825 window pages are more than a ring",
        ),
        (Config(2, 8, 1, 67_107_841), "67107841 is more than a launch's 67107840 tokens of a job"),
        (Config(1, 8, 1, 33_553_921), "33553921 is more than a launch's 33553920 tokens of a job"),
    ],
)
def test_sizes_beyond_indices_and_grids_are_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(config)


def test_largest_sizes_are_allowed() -> None:
    for config in (Config(1, 2**30, 1, 33_553_920), Config(2, 2**30 - 1, 1, 67_107_840)):
        check_sizes(config)


@pytest.mark.usefixtures("small_blocks")
def test_run_of_pages_beyond_a_grid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcuda.moves.MAX_BLOCKS", 3)
    memory = make(Config(1, 20, 2, 10))
    prefill(memory, 0, 0, 10)
    memory.publish(0, 0, [Run(0, 6)])
    with pytest.raises(ValueError, match="7 pages are more than a launch's 6 of a job"):
        memory.evict([Run(0, 7)])
    memory.evict([Run(0, 6)])
    memory.check()
    assert memory.available == 16


# Debug mode


def test_double_free_names_row_and_page() -> None:
    memory = make(Config(2, 9, 3, 16))
    prefill(memory, 2, 0, 8)
    memory.free(2, 1, 3)
    memory.check()
    memory.free(2, 2, 3)
    with pytest.raises(DeviceFault, match="page 3 of row 2 was freed, but is free already"):
        memory.check()


def test_page_that_is_none_names_row_and_page() -> None:
    memory = make(Config(2, 9, 3, 16))
    prefill(memory, 1, 0, 4)
    memory.req_to_token[1, 2] = 2 * 77
    memory.free(1, 0, 2)
    with pytest.raises(DeviceFault, match=r"page 77 of row 1 is not in 1\.\.9"):
        memory.check()


def test_page_handed_out_twice_names_row_and_page() -> None:
    memory = make(Config(2, 9, 3, 16))
    memory.ring[4] = 1
    prefill(memory, 0, 0, 8)
    memory.check()
    decode(memory, [0], [8], [8], 1)
    with pytest.raises(DeviceFault, match="page 1 of row 0 was handed out, but is in use"):
        memory.check()


# Indices past 2^31


@pytest.mark.slow
def test_rows_past_two_to_the_31_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve_only(monkeypatch)
    width, rows = 1 << 20, 2100
    assert (rows - 1) * width > 2**31
    try:
        memory = make(Config(256, 64, rows, width))
    except (RuntimeError, MemoryError) as error:
        pytest.skip(f"cannot reserve {4 * rows * width >> 30} GiB of address space: {error}")
    prefill(memory, rows - 1, 0, 300)
    decode(memory, [rows - 1], [300], [300], 300)
    memory.free(rows - 1, 1, 2)
    memory.check()
    expected = [slot_index(1 + i // 256, i, 256) for i in range(600)]
    assert memory.req_to_token[rows - 1, :600].tolist() == expected
    assert free_pages(memory)[-1] == 2
    assert torch.count_nonzero(memory.req_to_token[:2, :600]) == 0
