"""The pages of a row are mapped from its entries: new ones, and old ones that have changed."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from kvattach.hooks import Hooks
from kvattach.sglang.hooks import Attached
from kvattach.sglang.table import Table
from kvattach.sglang.view import KV, WINDOW, Stay
from kvspec.memory.events import Map, MemoryEvent, Pool


class Events:
    def __init__(self) -> None:
        self.all: list[MemoryEvent] = []

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        raise NotImplementedError

    def emit(self, *events: MemoryEvent) -> None:
        self.all += events


def mapped(size: int, *looks: list[int], whole: bool = True, anew: bool = False) -> list[tuple[int, Any]]:
    """The index and the pages of each `map`, when a row has these entries at one launch after the other.

    Without `whole` a launch captures only the entries that are new since the last one, as on a GPU; with `anew` also
    the others.
    """
    events, attached, stay, entries = watched(size, whole=whole)
    for look in looks:
        entries[1, : len(look)] = torch.tensor(look)
        attached._map(stay, len(look), anew=anew)
    return [(event.index, event.pages) for event in events.all if isinstance(event, Map)]


def watched(size: int, sides: Any = None, *, whole: bool) -> tuple[Events, Any, Stay, Any]:
    """The events of a memory, its hooks, a request in row 1, and the entries of its rows."""
    events = Events()
    attached: Any = object.__new__(Attached)
    attached.hooks, attached._size, attached._window = Hooks(events), size, 0 if sides is None else 1
    attached._fresh = {KV: set(), WINDOW: set()}
    stay = Stay("r.1", size, "r")
    stay.row = 1
    entries = torch.zeros((2, 8), dtype=torch.int32)
    attached._table = Table(torch, entries, size, sides, whole=True)
    attached._table.whole = whole
    return events, attached, stay, entries


@pytest.mark.parametrize(
    ("looks", "maps"),
    [
        ([[5, 6], [5, 6], [5, 6, 7]], [(0, [5, 6]), (2, [7])]),
        ([[5, 6, 7], [5, 9, 7, 8]], [(0, [5, 6, 7]), (1, [9, 7, 8])]),
        ([[5, 6, 7], [5, 6]], [(0, [5, 6, 7])]),
        ([[5, 6, 7], [5, 9], [5, 9, 7]], [(0, [5, 6, 7]), (1, [9]), (2, [7])]),
    ],
    ids=["grown", "changed", "shorter", "changed and shorter"],
)
def test_what_a_row_has_not_had_before_is_mapped(looks: list[list[int]], maps: list[tuple[int, Any]]) -> None:
    assert mapped(1, *looks) == maps


def test_pages_are_those_of_their_first_slots() -> None:
    assert mapped(2, [4, 5, 8], [4, 5, 8, 9, 6], [4, 5, 2, 9, 6]) == [(0, [2, 4]), (2, [3]), (1, [1, 3])]


def test_another_slot_of_the_same_page_hides_no_later_change() -> None:
    assert mapped(2, [4, 5, 8, 9, 6, 7], [5, 5], [5, 5, 8, 9, 2, 3]) == [(0, [2, 4, 3]), (2, [1])]


def test_only_new_entries_are_captured_on_a_gpu() -> None:
    looks = [4, 5, 8], [4, 5, 8, 9, 6], [4, 5, 8, 9, 6, 7], [4, 5]
    assert mapped(2, *looks, whole=False) == mapped(2, *looks) == [(0, [2, 4]), (2, [3])]
    assert mapped(1, [5, 6], [7, 6, 8], whole=False) == [(0, [5, 6]), (2, [8])]


def test_a_row_is_read_only_as_far_as_it_is_new() -> None:
    table, stays = Table(torch, torch.arange(24).reshape(3, 8), 2, whole=False), [Stay(name, 2, name) for name in "ab"]
    stays[0].row, stays[1].row = 1, 2

    def read(*stops: int, anew: bool = False) -> list[int]:
        _, tensors = table.look(stays[: len(stops)], stops, anew=anew)
        return [entry for tensor in tensors for entry in tensor.tolist()]

    assert read(5, 1) == [8, 10, 12, 16]
    assert read(6, 2) == []
    assert read(6, 3) == [18]
    assert read(3, anew=True) == [8, 10]
    assert read(8, 8) == [14, 20, 22]


@pytest.mark.parametrize("whole", [True, False])
def test_the_row_of_a_request_that_has_published_is_read_again(whole: bool) -> None:
    assert mapped(1, [5, 6], [7, 6], whole=whole, anew=True) == [(0, [5, 6]), (0, [7, 6])]


@pytest.mark.parametrize("whole", [True, False])
def test_window_pages_are_those_behind_the_entries_from_the_first_that_is_read(whole: bool) -> None:
    sides = torch.arange(100, 116)
    events, attached, stay, entries = watched(1, sides, whole=whole)
    entries[1] = torch.arange(1, 9)
    for first, stop, anew in [(0, 2, False), (1, 3, False), (5, 7, False), (6, 7, True)]:
        stay.reads_from = first
        attached._map(stay, stop, anew=anew)
        sides[2:] += 20
    maps = [(event.index, event.pages) for event in events.all if isinstance(event, Map) and event.pool == WINDOW]
    second = (1, [122, 123]) if whole else (2, [123])
    assert maps == [(0, [101, 102]), second, (3, [0, 0, 146, 147]), (6, [167])]
