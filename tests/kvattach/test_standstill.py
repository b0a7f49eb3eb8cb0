"""An engine whose requests wait while nothing is launched is a finding, once."""

from types import SimpleNamespace
from typing import Any

from kvattach.hooks import Hooks
from kvattach.sglang.live import who_waits
from kvattach.standstill import PATIENCE, Standstill
from kvattach.vllm import plugin
from kvlab.drives import CheckedTrace
from kvspec.memory import Pool
from kvspec.memory.events import Failed


class Engine:
    """A loop whose turns take a second each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Any] = []
        trace = CheckedTrace()
        trace.header("engine", {"kv": Pool(1, 4, 0)})
        hooks = Hooks(trace)
        hooks.trace = SimpleNamespace(emit=self.events.append)
        self.still = Standstill(hooks, lambda: self.now)

    def turn(self, launched: bool, waiting: str, seconds: float = 1.0) -> None:
        self.now += seconds
        self.still.turns(launched, lambda: waiting)


def test_it_is_said_once_with_who_waits() -> None:
    engine = Engine()
    for _ in range(3 * int(PATIENCE)):
        engine.turn(False, "r1 waits")
    assert engine.events == [Failed("stuck", "nothing has been launched for 60 s: r1 waits")]


def test_launches_and_an_empty_queue_are_no_standstill() -> None:
    engine = Engine()
    for _ in range(3):
        engine.turn(False, "r1 waits", PATIENCE - 1)
        engine.turn(True, "r1 waits")
        engine.turn(False, "r1 waits", PATIENCE + 1)
        engine.turn(False, "", PATIENCE + 1)
    assert engine.events == []


def test_a_second_standstill_is_said_again() -> None:
    engine = Engine()
    for launched in (False, False, True, False, False):
        engine.turn(launched, "r1 waits", PATIENCE)
    assert len(engine.events) == 2


def test_sglang_says_which_request_waits_and_how_much_is_free() -> None:
    scheduler = SimpleNamespace(
        waiting_queue=[SimpleNamespace(rid="r7", origin_input_ids=[1, 2, 3], output_ids=[4]), None],
        req_to_token_pool=SimpleNamespace(available_size=lambda: 0, size=8),
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 5),
        tree_cache=SimpleNamespace(evictable_size=lambda: 9),
        max_total_num_tokens=512,
    )
    assert who_waits(scheduler) == (
        "2 requests wait, the first is r7 with 4 tokens; 0 of 8 rows are free, 5 of 512 tokens, and 9 can be evicted"
    )
    scheduler.waiting_queue = []
    assert who_waits(scheduler) == ""


def test_vllm_says_in_which_states_requests_wait_and_how_much_is_free() -> None:
    def request(state: str) -> SimpleNamespace:
        return SimpleNamespace(status=SimpleNamespace(name=state), is_finished=lambda: state == "FINISHED_STOPPED")

    states = ("WAITING", "WAITING_FOR_REMOTE_KVS", "FINISHED_STOPPED", "WAITING")
    pool = SimpleNamespace(get_num_free_blocks=lambda: 2, num_gpu_blocks=24)
    scheduler = SimpleNamespace(
        requests={number: request(state) for number, state in enumerate(states)},
        kv_cache_manager=SimpleNamespace(block_pool=pool),
    )
    assert plugin.who_waits(scheduler) == ("requests are 2 WAITING, 1 WAITING_FOR_REMOTE_KVS; 2 of 23 blocks are free")
    scheduler.requests = {2: scheduler.requests[2]}
    assert plugin.who_waits(scheduler) == ""
