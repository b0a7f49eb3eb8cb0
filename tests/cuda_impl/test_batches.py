"""The batch that was looked up last is remembered, and never taken for another one."""

import pytest

from kvcuda.device_manager import DeviceManager
from kvspec.events import Config, Refusal


def prefilled(manager: DeviceManager, reqs: list[str]) -> None:
    for req in reqs:
        manager.submit(req, [1, 2, 3])
        manager.match_prefix(req)
    manager.extend([(req, 3) for req in reqs])
    manager.launch(0, reqs)


def test_list_that_its_caller_changes_is_another_batch() -> None:
    manager = DeviceManager(Config(2, 32, 4, 16))
    reqs = ["a", "b"]
    prefilled(manager, ["a", "b", "c"])
    manager.decode(reqs)
    reqs[1] = "c"
    with pytest.raises(Refusal):
        manager.launch(1, reqs)
    manager.launch(1, ["a", "b"])
    manager.decode(reqs[1:])
    manager.launch(2, ["c"])


def test_name_that_comes_back_is_another_run() -> None:
    manager = DeviceManager(Config(2, 32, 4, 16))
    prefilled(manager, ["a", "b"])
    manager.decode(["a", "b"])
    manager.abort("b")
    with pytest.raises(Refusal):
        manager.launch(1, ["a", "b"])
    manager.launch(1, ["a"])
    manager.submit("b", [7])
    manager.match_prefix("b")
    manager.extend([("b", 1)])
    manager.launch(2, ["b"])
    manager.decode(["a", "b"])
    assert manager.rows.withheld == 1


def test_row_that_two_launches_read_is_withheld_for_both() -> None:
    manager = DeviceManager(Config(2, 32, 4, 16))
    prefilled(manager, ["a"])
    manager.decode(["a"])
    manager.launch(1, ["a"])
    manager.abort("a")
    manager.complete(0, {})
    assert manager.rows.withheld == 1
    manager.complete(1, {})
    assert manager.rows.withheld == 0
