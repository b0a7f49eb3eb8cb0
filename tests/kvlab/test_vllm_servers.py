"""Two servers with vLLM's NIXL connector: the events of leases, transfers and messages, and drives of both."""

import json
import subprocess
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvattach.hooks import Hooks
from kvattach.vllm.nixl import PACKAGE, Nixl
from kvattach.vllm.residency import Group, Run
from kvcheck import Checker
from kvlab.goals import Goal, read_in_part, started_again
from kvlab.hosts import Together
from kvlab.vllm.network import LATENCY, Network, Posted
from kvlab.vllm.nixl import Socket
from kvlab.vllm.servers import Reaching
from kvlab.vllm.workload import Workload, servers_workload
from kvspec.memory.events import (
    Begin,
    End,
    EndHolder,
    Event,
    Map,
    MemoryEvent,
    Pool,
    Receive,
    Release,
    Send,
    Take,
    Transfer,
    Use,
)
from tests.kvlab.test_vllm import release

FULL = Group(0, 4, 0, False, 4)
LONG = Group(0, 8, 0, False, 8)


class Kept:
    """A trace that keeps its events, and checks them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.found: list[str] = []

    def header(self, producer: str, pools: Any, host: str | None = None) -> None:
        self.checker = Checker(pools)

    def emit(self, *events: Any) -> None:
        self.events += events
        self.found += [finding.code for event in events for finding in self.checker.step(event)]


class Side:
    """The scheduler's side of a connector: it answers as configured."""

    __module__ = f"{PACKAGE}.pull_scheduler"

    def get_num_new_matched_tokens(self, *_: Any) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, *_: Any) -> None: ...

    def request_finished(self, *_: Any) -> tuple[bool, Any]:
        return True, {}


class Agent:
    """The library's agent: its handles are numbers."""

    def __init__(self) -> None:
        self.state = "DONE"

    def make_prepped_xfer(self, *_: Any, **__: Any) -> int:
        return 7

    def transfer(self, handle: int) -> None: ...

    def check_xfer_state(self, handle: int) -> str:
        return self.state

    def release_xfer_handle(self, handle: int) -> None: ...

    def send_notif(self, agent: str, notif_msg: bytes) -> None: ...


class Worker:
    """A worker that reads page 6 of prefill, and the half of its page 7, into 3 and 4."""

    num_blocks, _physical_blocks_per_logical_kv_block, dst_num_blocks = 20, 1, {"prefill": 20, "decode": 20}
    block_size = 4
    _remote_agents = {"prefill": {(0, 0): "an agent"}}  # noqa: RUF012

    def __init__(self) -> None:
        self.nixl_wrapper = Agent()
        info = SimpleNamespace(remote_physical_blocks_per_logical=1, remote_block_size=4)
        self.transfer_topo = SimpleNamespace(get_engine_info=lambda _: info)

    def start_load_kv(self, metadata: Any) -> None: ...

    def _get_new_notifs(self) -> set[str]:
        return {"d7"}

    def get_transfer_results(self) -> Any:
        return SimpleNamespace(finished_recving={"d1", "d2"}, failed_recving={"d2"})

    def _handle_push_reg_notif(self, notif: bytes) -> None: ...

    def post_process_device_kv_on_receive(self, ratio: int, received: Any, convert: bool = True) -> None: ...

    def _xfer_blocks(self, *, request_id: str, remote_request_id: str, dst_engine_id: str) -> None:
        agent = self.nixl_wrapper
        agent.transfer(agent.make_prepped_xfer("WRITE", "ours", [6, 7], "theirs", [3, 4], notif_msg=b"d1:1"))

    def _read_blocks(self, *, request_id: str, remote_request_id: str, dst_engine_id: str, posts: bool = True) -> None:
        agent = self.nixl_wrapper
        if posts:
            agent.transfer(agent.make_prepped_xfer("READ", "ours", [3, 4], "theirs", [6, 7], notif_msg=b"p1:1"))
        else:
            agent.send_notif("an agent", notif_msg=b"p1:1")


class LongWorker(Worker):
    """A worker with blocks of eight tokens: it reads prefill's into the parts of its own."""

    block_size = 8

    def _read_blocks(self, *, request_id: str, remote_request_id: str, dst_engine_id: str, posts: bool = True) -> None:
        agent = self.nixl_wrapper
        agent.transfer(agent.make_prepped_xfer("READ", "ours", [6, 7], "theirs", [6, 7], notif_msg=b"p1:1"))


class Host:
    """One server, as its hooks see it."""

    def __init__(self, name: str, request: str, together: Together, group: Group = FULL) -> None:
        self.hooks = Hooks(together.of(name))
        self.groups = [group]
        self.request = SimpleNamespace(
            request_id=request,
            _all_token_ids=[5, 6, 7, 8, 9, 1],
            mm_features=(),
            num_computed_tokens=6,
            kv_transfer_params=None,
        )
        self.run = Run(f"{request}.1", self.request, self.groups)
        self.runs = {request: self.run}
        self.connector = SimpleNamespace(connector_scheduler=Side(), engine_id=name)
        parallel = SimpleNamespace(world_size=1, distributed_executor_backend=None)
        self.nixl = Nixl(self, self.emit)
        self.scheduler = SimpleNamespace(
            connector=self.connector, vllm_config=SimpleNamespace(parallel_config=parallel)
        )
        assert self.nixl.start(self.scheduler) == name
        pool = Pool(page_size=group.page_size, num_pages=20, first_page=0, padding=[0])
        self.hooks.trace.header("vllm", {"kv": pool}, name)

    def emit(self, *events: Any) -> None:
        self.hooks.emit(*events)

    def within(self, *_: Any) -> None: ...


class Two:
    """Prefill has computed six tokens into its pages 6 and 7, and decode has pages 3 and 4 for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, worker: type[Worker] = Worker, group: Group = FULL) -> None:
        for name, kind in (("pull_worker", "NixlPullConnectorWorker"), ("push_worker", "NixlPushConnectorWorker")):
            module: Any = ModuleType(name)
            setattr(module, kind, type(kind, (worker,), dict(vars(Worker)) | dict(vars(worker))))
            monkeypatch.setitem(sys.modules, f"{PACKAGE}.{name}", module)
        self.trace = Kept()
        together = Together(self.trace, ["prefill", "decode"])
        self.prefill = Host("prefill", "p1", together)
        self.prefill.hooks.detach()  # the worker below is decode's
        self.decode = Host("decode", "d1", together, group)
        self.worker = sys.modules[f"{PACKAGE}.pull_worker"].NixlPullConnectorWorker()
        self.worker.start_load_kv(None)
        self.pusher = sys.modules[f"{PACKAGE}.push_worker"].NixlPushConnectorWorker()
        run = self.prefill.run
        self.prefill.emit(
            Take(run.name, "kv", [6, 7]),
            Map("p1.1/0", run.name, "kv", 0, [6, 7], [run.label(FULL, 0), run.label(FULL, 1)]),
            Begin("step 1", "gpu", [], [_written()]),
            End("step 1"),
        )
        self.decode.emit(Take(self.decode.run.name, "kv", [3, 4]))

    def keep(self) -> None:
        """Prefill's request is finished."""
        self.prefill.hooks.attach()
        self.prefill.connector.connector_scheduler.request_finished(self.prefill.request, ([6, 7],))
        self.prefill.hooks.detach()

    def come(self) -> None:
        """Decode has pages for all six tokens."""
        side, request = self.decode.connector.connector_scheduler, self.decode.request
        request.kv_transfer_params = {
            "do_remote_prefill": True,
            "remote_block_ids": [[6, 7]],
            "remote_engine_id": "prefill",
            "remote_request_id": "p1",
        }
        side.get_num_new_matched_tokens(request, 0)
        side.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: ([3, 4],)), 6)

    def read(self, *, posts: bool = True) -> None:
        """Decode reads, or says that it need not."""
        self.worker._read_blocks(request_id="d1", remote_request_id="p1", dst_engine_id="prefill", posts=posts)

    def emitted(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.trace.events if isinstance(event, kinds)]


def _written() -> Any:
    return Use("p1.1/0", stop=6)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    return Two(monkeypatch)


def test_a_finished_request_leaves_a_lease_and_decode_reads_from_that_what_its_own_pages_are_to_mean(two: Two) -> None:
    two.keep()
    two.come()
    two.read()
    two.worker.nixl_wrapper.check_xfer_state(7)
    two.worker.nixl_wrapper.release_xfer_handle(7)
    moved, *_ = two.emitted(Transfer)
    assert (moved.old, moved.new) == ("prefill/p1.1", "prefill/lease p1")
    assert [event.holder for event in two.emitted(EndHolder)] == ["prefill/p1.1"]
    ready, read, over = two.emitted(Send)
    assert [event.id for event in two.emitted(Receive)] == [ready.id]
    begun, end = two.emitted(Begin)[-1], two.emitted(End)[-1]
    assert read.after == [begun.id] == [end.id] and not end.unwritten
    assert over.id == "over prefill p1" and two.trace.events[-1] is over
    (whole, _), (half, target) = begun.copies
    assert (whole.pool, whole.pages, whole.holder, whole.stop) == ("prefill/kv", [6], "prefill/lease p1", 4)
    assert (half.pages, half.stop, target.pool, target.pages, target.holder) == (
        [7],
        2,
        "decode/kv",
        [4],
        "decode/d1.1",
    )
    assert half.labels == [two.decode.run.label(FULL, 1)] != [two.prefill.run.label(FULL, 1)]
    assert two.trace.found == []


def test_a_read_after_the_lease_has_ended_is_found_and_one_that_was_never_said_to_be_ready_is_a_race(two: Two) -> None:
    two.come()
    two.read()
    assert "MEM-RACE/read" in two.trace.found
    two.keep()
    two.prefill.emit(Release("lease p1", "kv", [6, 7]))
    two.trace.found.clear()
    two.read()
    assert "MEM-USE/not-held" in two.trace.found


def test_a_failed_transfer_has_written_nothing_and_an_unneeded_one_only_sends_messages(two: Two) -> None:
    two.keep()
    two.come()
    two.read()
    two.worker.nixl_wrapper.state = "ERR"
    two.worker.nixl_wrapper.check_xfer_state(7)
    two.worker.nixl_wrapper.release_xfer_handle(7)
    assert [use.pages for use in two.emitted(End)[-1].unwritten] == [[3], [4]]
    two.read(posts=False)
    assert two.emitted(Send)[-1].id == "done prefill p1, 2" and not two.emitted(Send)[-1].after


def test_blocks_of_half_the_length_are_read_into_the_parts_of_a_page_which_are_converted_and_the_rest_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = Two(monkeypatch, LongWorker, LONG)
    two.keep()
    two.come()
    two.read()
    (there, first), (_, second) = two.emitted(Begin)[-1].copies
    assert (there.labels, there.stop) == ([two.prefill.run.label(FULL, 0)], 4)
    assert [(use.pages, use.start, use.stop) for use in (first, second)] == [([3], 0, 4), ([3], 4, 6)]
    assert first.labels == second.labels == [two.decode.run.label(LONG, 0)]
    two.worker.nixl_wrapper.check_xfer_state(7)
    two.worker.nixl_wrapper.release_xfer_handle(7)
    two.worker.post_process_device_kv_on_receive(2, [(0, [3, 4], 2)])
    converted = two.emitted(Begin)[-1]
    assert [use.pages for pair in converted.copies for use in pair] == [[3], [3]]
    assert [(use.pages, use.start, use.stop) for use in converted.writes] == [([4], 0, 8)]
    assert two.trace.found == []


def test_a_server_that_dies_takes_its_messages_and_transfers_along_and_others_with_its_memory_fail() -> None:
    network = Network(Workload())
    network.schedulers |= {"prefill": None, "decode": None}
    network.send("prefill", "decode", b"sent", 0.0)
    network.send("prefill", "decode", b"not sent yet", 5.0)
    network.send("decode", "prefill", b"to no peer", 0.0)
    network.transfers[1] = Posted("decode", "prefill", b"", ends=9.0)
    network.now = 1.0
    network.dies("prefill")
    network.now = 100.0
    assert network.arrived("decode") == {"prefill": [b"sent"]} and not network.arrived("prefill")
    assert network.transfers[1].ends == 1.0 and network.transfers[1].fails is not None
    assert network.life("prefill") == "prefill.2" and not network.answers("prefill") and network.answers("prefill.2")
    with pytest.raises(RuntimeError, match="no connection"):
        Socket(0).recv_multipart()


def test_a_host_that_begins_later_has_the_memory_of_the_one_before_it() -> None:
    trace = Kept()
    together = Together(trace, ["prefill", "decode"], {"decode.2": "decode"})
    for host in ("prefill", "decode", "decode.2"):
        together.of(host).header("vllm", {"kv": Pool(page_size=4, num_pages=20)})
        if host == "decode":
            together.of("decode").emit(Take("r1", "kv", [3]))
    together.of("decode.2").emit(Take("r1", "kv", [3]))
    assert [event.pool for event in trace.events if isinstance(event, Take)] == ["decode/kv", "decode.2/kv"]
    assert trace.found == []


def test_memory_is_that_of_the_server_that_was_reached_whatever_it_is_called() -> None:
    network, trace = Network(Workload()), Kept()
    together = Together(trace, ["prefill", "decode"], {"prefill.2": "prefill"})
    for host in ("prefill", "decode"):
        together.of(host).header("vllm", {"kv": Pool(page_size=4, num_pages=20)})
    reaching, network.reached = Reaching(together.of("decode"), network), "prefill.2"
    there = Use(None, "prefill/kv", [1], holder="prefill/lease r1")
    reaching.emit(Begin("r", copies=[(there, Use(None, "kv", [2]))], at="transfer"))
    network.reached = "prefill"
    reaching.emit(End("r", unwritten=[Use(None, "prefill/kv", [1])]))
    begun, end = trace.events[-2:]
    assert isinstance(begun, Begin) and isinstance(end, End)
    source, target = begun.copies[0]
    assert (source.pool, source.holder, target.pool) == ("prefill.2/kv", "prefill.2/lease r1", "decode/kv")
    assert end.unwritten[0].pool == "prefill.2/kv"


GOALS: list[tuple[Goal, list[MemoryEvent], list[MemoryEvent]]] = [
    (
        read_in_part,
        [Begin("r", copies=[(Use(None, "prefill/kv", [1], 0, 4), Use(None, "decode/kv", [2], 4, 8))], at="transfer")],
        [Begin("r", copies=[(Use(None, "prefill/kv", [1], 0, 4), Use(None, "decode/kv", [2], 0, 4))], at="transfer")],
    ),
    (started_again, [Take("r", "kv", [1], host="decode.2")], [Take("r", "kv", [1], host="decode")]),
]


@pytest.mark.parametrize(("goal", "events", "close"), GOALS)
def test_a_goal_of_two_servers_is_reached_by_an_event_and_not_by_one_that_comes_close(
    goal: Goal, events: list[MemoryEvent], close: list[MemoryEvent]
) -> None:
    assert goal(events)
    assert not goal(close)


def test_of_two_servers_that_which_posts_transfers_has_the_longer_blocks() -> None:
    work = Workload(connector="pull", groups=(("full", 4, 0),), blocks=20, ratio=2)
    sizes = {
        (one.connector, server): one.of(server).groups[0][1]
        for one in (work, replace(work, connector="push"))
        for server in ("prefill", "decode")
    }
    assert sizes == {
        ("pull", "prefill"): 4,
        ("pull", "decode"): 8,
        ("push", "prefill"): 8,
        ("push", "decode"): 4,
    }
    assert work.of("decode").longest >= work.longest


def test_a_network_that_fails_is_in_time_for_what_keeps_leases_if_it_is_steady() -> None:
    def late(message: bytes, *, steady: bool) -> bool:
        network = Network(Workload(late=1.0, lost=0.3, doubled=0.3, steady=steady))
        for _ in range(40):
            network.send("decode", "prefill", message, 0.0)
        return any(at > LATENCY for at, *_ in network._messages)

    assert not late(b"HB:p1", steady=True)
    assert late(b"HB:p1", steady=False) and late(b"p1:1", steady=True)


def test_pages_that_decode_has_registered_are_written_from_the_lease_and_decode_reads_them_when_it_is_notified(
    two: Two,
) -> None:
    two.come()
    registered = b"PUSH_REG:" + msgspec.msgpack.encode({"decode_engine_id": "decode", "request_id": "d1"})
    two.worker.nixl_wrapper.send_notif("an agent", notif_msg=registered)
    two.keep()
    two.decode.hooks.detach()
    two.prefill.hooks.attach()
    two.pusher.start_load_kv(None)
    two.pusher._handle_push_reg_notif(registered)
    two.pusher._xfer_blocks(request_id="p1", remote_request_id="d1", dst_engine_id="decode")
    two.prefill.hooks.detach()
    two.decode.hooks.attach()
    assert two.pusher.get_transfer_results().finished_recving == {"d1", "d2"}
    ids = [event.id for event in two.emitted(Send, Receive)]
    assert ids[-5:] == ["fill decode d1", "ready prefill p1", "fill decode d1", "done decode d1", "done decode d1"]
    begun = two.emitted(Begin)[-1]
    (_, _), (half, target) = begun.copies
    assert (half.pool, half.pages, half.holder, half.stop) == ("prefill/kv", [7], "prefill/lease p1", 2)
    assert (target.pool, target.pages, target.holder, target.stop) == ("decode/kv", [4], None, 2)
    assert two.emitted(Send)[-1].after == [begun.id] and two.trace.found == []


def test_a_heartbeat_orders_nothing_and_each_notification_is_a_message_of_its_own(two: Two) -> None:
    before = len(two.emitted(Send, Receive))
    agent = two.worker.nixl_wrapper
    agent.send_notif("an agent", notif_msg=b"HB:p1,p2")
    assert two.worker._get_new_notifs() == {"d7"}
    agent.send_notif("an agent", notif_msg=b"p1:1")
    agent.send_notif("an agent", notif_msg=b"p1:1")
    names = [event.id for event in two.emitted(Send, Receive)[before:]]
    assert names == ["done decode d7", "done prefill p1", "done prefill p1, 2"]


def test_a_scheduler_whose_workers_are_other_processes_is_not_observed_and_says_so(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    assert caplog.messages == []
    two.decode.scheduler.vllm_config.parallel_config.world_size = 2
    assert two.decode.nixl.start(two.decode.scheduler) is None
    (said,) = caplog.messages
    assert "NIXL's transfers are not recorded" in said


def test_prompts_of_two_servers_avoid_a_window_that_begins_in_a_block_that_is_left_out() -> None:
    works = [servers_workload(seed, known=False) for seed in range(40)]
    assert {work.connector for work in works} == {"pull", "push"} and not any(work.whole for work in works)
    windows = [work for work in works if work.groups == (("window", 4, 8),)]
    assert windows and [tokens for tokens in range(1, 17) if windows[0].leaves_out(tokens)] == [11, 15]


TRIED = """
import json, logging, sys
from pathlib import Path
from kvlab.drives import CheckedTrace, Trial, drive_trial
from kvlab.vllm import nixl, offloading
from kvattach.patches import Patches
from kvlab.vllm.faults_nixl import pull_defects, push_defects
from kvlab.vllm.issues import FIXES
from kvlab.vllm.servers import driven
from kvlab.vllm.network import LATENCY, Network
from kvlab.vllm.workload import Workload, servers_workload
from kvspec.memory.events import Begin

logging.disable(logging.CRITICAL)

class Counted(CheckedTrace):
    transfers = 0

    def emit(self, *events):
        self.transfers += sum(isinstance(event, Begin) and event.at == "transfer" for event in events)
        super().emit(*events)

offloading.prepared(Path(sys.argv[1]))
assert not nixl.prepared()
for fix in FIXES:
    fix(Patches())
checked = Counted()
hooks = offloading.attached(checked, offloading=True)
for seed in range(6):
    driven(servers_workload(seed, known=False), hooks)
hooks.detach()

def first(defect):
    def attach(trace):
        attached[:] = [offloading.attached(trace, offloading=True)]
        return attached[0]

    run = lambda seed: driven(servers_workload(seed, known=False), attached[0])
    found = drive_trial(Trial("two servers", attach, run, []), range(12), defect=defect).first
    return None if found is None else found[1].rule

attached, injected = [], [*pull_defects(), *push_defects()]
rules = {defect.name: first(defect) for defect in injected if defect.name in json.loads(sys.argv[2])}
print(json.dumps([checked.events, checked.transfers, [finding.code for _, finding in checked.found], rules]))
"""


@pytest.mark.slow
def test_two_servers_of_a_release_are_clean_and_injected_defects_are_found() -> None:
    injected = {
        "blocks not kept for decode": {"MEM-USE"},
        "notified too early": {"MEM-RACE"},
        "failed read taken for done": {"MEM-WRITTEN"},
        "failed read taken for over": {"MEM-RACE"},
        "parts out of order": {"MEM-CONTENT"},
        "notification heard twice": {"MEM-FAILED"},
        "lease begun anew": {"MEM-FAILED"},
        "pushed twice": {"MEM-REWRITE"},
    }
    command = [sys.executable, "-c", TRIED, str(release("0.33.0")), json.dumps([*injected])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert not done.returncode, done.stderr
    events, transfers, found, rules = json.loads(done.stdout)
    assert events > 5_000 and transfers > 100
    assert found == []
    for name, expected in injected.items():
        assert rules[name] in expected, name
