"""Buffers on the host and index tensors: written while an operation in flight reads them, they race."""

from typing import Any

import pytest

from kvattach.buffers import BUFFERS, PAGES, Buffers
from kvattach.hooks import Hooks
from kvattach.streams import Streams
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace


class Tensor:
    """A tensor of one number."""

    def __init__(self, value: int) -> None:
        self.values, self._version = [value], 0

    def is_inference(self) -> bool:
        return False

    def detach(self) -> "Tensor":
        same = Tensor(0)
        same.values = self.values
        return same

    def tolist(self) -> list[int]:
        return list(self.values)

    def write(self, value: int) -> None:
        self.values[0], self._version = value, self._version + 1


class Followed:
    """One scheduler whose stream makes index tensors, and a stream of launches."""

    def __init__(self) -> None:
        Stream.all.clear()
        self.schedule, self.forward = Stream(), Stream()
        self.trace = CheckedTrace()
        self.hooks = Hooks(self.trace)
        self.streams = Streams(self.hooks, Stream, Event)
        self.buffers = Buffers(self.hooks, self.streams)
        self.trace.header("a test", {BUFFERS: self.buffers.pool})
        self.streams.clear(type("Cuda", (), {"current_stream": staticmethod(lambda: Stream.current)}))
        Stream.current = self.schedule

    def launch(self, *tensors: Tensor) -> Event:
        """Queue a launch that reads these."""
        uses = self.buffers.tensors("prepare", tensors)
        self.forward.wait_stream(self.schedule)
        self.streams.begin("launch", uses, [], stream=self.forward)
        self.forward.queue(self.buffers.late("launch", zip(tensors, uses, strict=True)))
        done = Event()
        done.record(self.forward)
        return done

    @property
    def races(self) -> list[tuple[str | None, str | None]]:
        """The places of each race: the later one, and the earlier one."""
        assert self.hooks.problem is None
        assert {finding.rule for _, finding in self.trace.found} <= {"MEM-RACE"}
        return [(finding.at, finding.earlier) for _, finding in self.trace.found]


@pytest.fixture
def followed() -> Any:
    made = Followed()
    yield made
    made.hooks.detach()


def test_a_tensor_that_is_written_to_while_a_launch_reads_it_races(followed: Followed) -> None:
    tensor = Tensor(1)
    done = followed.launch(tensor)
    tensor.write(2)
    followed.buffers.tensors("in place", [tensor])
    assert followed.races == [("in place", "launch")]
    done.synchronize()
    tensor.write(3)
    followed.buffers.tensors("in place", [tensor])
    assert len(followed.races) == 2, "the device has read what it found, and that was not what was queued"
    assert followed.races[1] == ("before launch", "launch")


def test_a_tensor_in_the_place_of_one_that_a_launch_still_reads_races(followed: Followed) -> None:
    tensor = Tensor(1)
    done = followed.launch(tensor)
    del tensor
    followed.buffers.tensors("another", [Tensor(2)])
    assert followed.races == [("another", "launch")]
    done.synchronize()
    followed.buffers.tensors("a third", [Tensor(3)])
    assert len(followed.races) == 1


def test_a_tensor_that_is_kept_until_its_launch_is_seen_complete_does_not_race(followed: Followed) -> None:
    tensor = Tensor(1)
    done = followed.launch(tensor)
    fresh = Tensor(2)
    followed.buffers.tensors("another", [fresh])
    done.synchronize()
    del tensor
    followed.launch(Tensor(3), fresh).synchronize()
    assert followed.races == []


def test_the_host_may_fill_a_buffer_again_when_the_copy_is_seen_complete(followed: Followed) -> None:
    buffers, done = followed.buffers, Event()
    use = buffers.use("pinned")
    buffers.host("fill", writes=use)
    followed.streams.begin("copy", use, [], stream=followed.forward)
    done.record(followed.forward)
    buffers.host("fill", writes=use)
    assert followed.races == [("fill", "copy")]
    done.synchronize()
    buffers.host("fill", writes=use)
    assert len(followed.races) == 1


def test_a_write_that_no_hook_sees_is_noticed_when_the_device_gets_to_the_copy(followed: Followed) -> None:
    tensor = Tensor(1)
    done = followed.launch(tensor)
    tensor.values[0] = 2
    assert followed.races == []
    done.synchronize()
    assert followed.races == [("before launch", "launch")]


def test_tensors_that_come_together_are_taken_together_and_one_that_comes_twice_once(followed: Followed) -> None:
    tensor, other = Tensor(1), Tensor(2)
    uses = followed.buffers.tensors("prepare", [tensor, other, tensor])
    assert followed.hooks.events == 2, "taken and written"
    assert uses[0] == uses[2] != uses[1]
    del tensor, other
    followed.buffers.tensors("prepare", [])
    assert followed.hooks.events == 3, "released"
    assert len(followed.buffers.use(*range(PAGES))) == PAGES, "all places are free again"
