"""Ranks of one server in threads that take turns: collectives, and drives of a release."""

import pytest

from kvlab.device import Stream, stood_in
from kvlab.sglang.ranks import Ranks
from kvlab.sglang.trial import RANKS_EVERY
from tests.kvlab.driven import driven

torch = pytest.importorskip("torch")


def test_ranks_meet_in_each_collective_and_each_has_a_device_of_its_own() -> None:
    ranks, met, streams = Ranks(3), list[list[int]](), set[Stream]()

    def work(rank: int) -> None:
        own = Stream.current
        streams.add(own)
        for part in (1, 2):
            met.append(ranks.meet("all_reduce", 10 * part + rank))
            assert Stream.current is own
            assert Stream.all == [own]

    with stood_in(torch):
        assert ranks.run(work) == ""
    assert met == [[10, 11, 12]] * 3 + [[20, 21, 22]] * 3
    assert len(streams) == 3


@pytest.mark.parametrize("other", ["broadcast", ""])
def test_ranks_that_wait_in_different_collectives_or_for_one_that_has_left_are_named(other: str) -> None:
    ranks = Ranks(2)

    def work(rank: int) -> None:
        if not rank:
            ranks.meet("all_reduce")
        elif other:
            ranks.meet(other)

    with stood_in(torch):
        assert ranks.run(work) == ", ".join(["tp0 in all_reduce", "tp1 in broadcast"][: 1 + bool(other)])


@pytest.mark.slow
def test_ranks_of_a_release_decide_the_same_and_each_way_to_decide_alone_is_found() -> None:
    injected = {
        "each rank's own acks": "MEM-AGREE/differs",
        "each rank's own writes": "MEM-AGREE/differs",
        "no collective without acks": "MEM-FAILED/stuck",
        "each rank's own prefetches": "MEM-AGREE/differs",
    }
    drives = driven(range(1, 8 * RANKS_EVERY, RANKS_EVERY), range(1, 8 * RANKS_EVERY, RANKS_EVERY), [*injected])
    assert drives.events > 2000
    assert drives.found == []
    assert drives.codes == injected
