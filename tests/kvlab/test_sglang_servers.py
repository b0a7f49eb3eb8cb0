"""SGLang's prefill and decode servers: threads that take turns, the played network, and drives of both."""

from collections.abc import Callable

import pytest

from kvlab.goals import (
    Goal,
    abort_answered,
    cut_off,
    died_in_transfer,
    loaded_and_received,
    loaded_and_sent,
    written_remotely,
)
from kvlab.sglang.network import LATENCY, Faults, Network, Unsettled, reached
from kvlab.sglang.sockets import Again, Pull, Push, socket_of
from kvlab.sglang.transport import Library, Queue
from kvlab.turns import Task, Turns
from kvspec.memory.events import Begin, End, MemoryEvent, Receive, Send, Take, Use
from kvspec.rules import rule_of
from tests.kvlab.driven import driven


def ran(turns: Turns, *bodies: Callable[[], object]) -> None:
    """Let threads go on by turns until each has ended or waits for what never comes."""
    for number, body in enumerate(bodies):
        turns.add(Task("decode", str(number), body))
    while ready := turns.ready():
        for task in ready:
            turns.turn(task)


def test_one_thread_runs_at_a_time_and_a_drive_that_ends_ends_all_of_them() -> None:
    turns, said = Turns(), list[str]()

    def waits() -> None:
        said.append("waits")
        turns.wait(lambda: "done" in said)
        said.append("goes on")
        turns.wait(lambda: False)
        said.append("never")

    ran(turns, waits, lambda: said.append("done"))
    assert said == ["waits", "done", "goes on"]
    turns.close()
    assert said == ["waits", "done", "goes on"]


def test_the_error_of_a_thread_is_one_of_the_drive() -> None:
    turns = Turns()

    def fails() -> None:
        raise ValueError("an engine's own")

    with pytest.raises(ValueError, match="an engine's own"):
        ran(turns, fails)
    turns.close()


def test_the_threads_of_a_server_end_with_it_and_others_go_on() -> None:
    turns, said = Turns(), list[str]()

    def waits(server: str) -> None:
        turns.wait()
        try:
            turns.wait(lambda: server in said)
            said.append(f"{server} goes on")
        finally:
            said.append(f"{server} ends")

    tasks = [Task(server, "one", lambda server=server: waits(server)) for server in ("prefill", "decode")]  # type: ignore[misc]
    for task in tasks:
        turns.add(task)
        turns.turn(task)
        turns.turn(task)
    turns.end("prefill")
    assert said == ["prefill ends"] and [task.ended for task in tasks] == [True, False]
    said += ["prefill", "decode"]
    assert turns.ready() == [tasks[1]]
    turns.turn(tasks[1])
    assert said[3:] == ["decode goes on", "decode ends"]
    turns.close()


def test_another_thread_may_use_an_item_before_the_thread_that_put_it_goes_on() -> None:
    turns, said = Network(Faults(), Turns(), seed=1).turns, list[str]()
    queue = Queue()

    def puts() -> None:
        queue.put("an item")
        said.append("goes on")

    tasks = Task("prefill", "puts", puts), Task("prefill", "gets", lambda: said.append(queue.get()))
    for task in tasks:
        turns.add(task)
    for task in (tasks[0], tasks[1], tasks[1], tasks[0]):
        if task in turns.ready():
            turns.turn(task)
    assert said == ["an item", "goes on"]


def connected(faults: Faults) -> tuple[Network, Push]:
    network = Network(faults, Turns(), seed=1)
    network.here = "prefill"
    made = Push()
    made.connect("tcp://10.0.0.2:2")
    return network, made


def taken(network: Network, count: int) -> list[bytes]:
    """The first messages that decode gets, so many, once all have arrived."""
    network.now += 100 * LATENCY
    got = list[bytes]()
    ran(network.turns, lambda: got.extend(Pull("decode").recv_multipart()[0] for _ in range(count)))
    return got


def test_a_connection_keeps_its_order_and_may_deliver_twice() -> None:
    network, made = connected(Faults(late=0.5, doubled=1.0))
    for number in range(5):
        made.send_multipart([b"%d" % number])
    assert taken(network, 10) == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"3", b"4", b"4"]


def test_a_broken_connection_loses_the_last_message_and_is_made_again_unless_configured_otherwise() -> None:
    network, made = connected(Faults())
    sent = [b"%d" % number for number in range(20)]
    for message in sent:
        made.send_multipart([message])
    network.silent["decode"] = network.now + 1.0
    made.send_multipart([b"lost"])
    network.silent.clear()
    made.send_multipart([b"there"])
    left = len(network.inboxes["decode"])
    came = taken(network, left)
    assert 1 < left <= 20 and [one for one in came if one != b"there"] == sent[: left - 1]
    assert came[-1] != b"there", "a new connection waits for no old one"
    made.setsockopt("RECONNECT_IVL", -1)
    with pytest.raises(Again):
        made.send_multipart([b"refused"])


def test_an_abort_arrives_in_a_steady_network_whatever_breaks() -> None:
    network, made = connected(Faults(cut=1.0, steady=True))
    made.send_multipart([b"ABORT", b"3"])
    made.send_multipart([b"status"])
    assert taken(network, 1) == [b"ABORT"]
    network, made = connected(Faults(cut=1.0))
    made.send_multipart([b"ABORT", b"3"])
    assert not network.inboxes["decode"]


def test_a_server_is_started_again_with_another_port_and_what_was_for_the_former_one_is_lost() -> None:
    network, made = connected(Faults())
    made.send_multipart([b"for the former one"])
    network.dies("decode")
    made.send_multipart([b"to no peer"])
    network.here = "decode"
    network.starts("decode")
    port, pull = socket_of()
    network.here = "prefill"
    made.connect(f"tcp://10.0.0.2:{port}")
    made.send_multipart([b"for the later one"])
    network.now += 100 * LATENCY
    got = list[bytes]()
    ran(network.turns, lambda: got.extend(pull.recv_multipart()))
    assert got == [b"for the later one"] and not network.inboxes["decode.2"]
    network.turns.close()


def test_a_transfer_into_memory_that_is_gone_fails_and_that_of_a_server_that_is_gone_ends() -> None:
    network, _ = connected(Faults())
    network.here = "decode"
    former = Library().get_session_id()
    network.here, over, codes = "prefill", list[tuple[int, bool]](), list[int]()
    library = Library()
    network.over = lambda number, written: over.append((number, written))
    ran(network.turns, lambda: codes.append(library.batch_transfer_sync(former, [1], [2], [3])))
    network.dies("decode")
    network.now += 100 * LATENCY
    ran(network.turns)
    assert reached(former) == "decode" and codes == [-1] and over == [(1, False)]
    for sender in ("prefill", "decode"):
        network.unsettled.append(Unsettled(network.now, 2, sender, "decode", lambda: codes.append(0)))
    network.dies("prefill")
    network.pass_time(1.0)
    assert [one.sender for one in network.unsettled] == [] and codes == [-1] and over[1:] == [(2, False)]
    network.starts("decode")
    network.here = "decode"
    assert reached(Library().get_session_id()) == "decode.2"
    assert not network.answers("decode") and network.answers("decode.2")


REMOTE = Begin("w", copies=[(Use(None, "prefill/kv", [1]), Use(None, "decode/kv", [2]))], host="prefill")
LOCAL = Begin("w", copies=[(Use(None, "prefill/kv", [1]), Use(None, "prefill/kv", [2]))], host="prefill")
FAILED = End("w", unwritten=[Use(None, "decode/kv", [2])], host="prefill")
LOADED = Begin("l", copies=[(Use(None, "prefill/host", [5]), Use(None, "prefill/kv", [1]))], host="prefill")
LOADED_THERE = Begin("l", copies=[(Use(None, "decode/host", [5]), Use(None, "decode/kv", [1]))], host="decode")
OVERWRITTEN = Begin("o", writes=[Use(None, "prefill/kv", [1])], host="prefill")
AGAIN = Take("r", "kv", [1], host="prefill.2")
REACHED: list[tuple[Goal, list[MemoryEvent], list[MemoryEvent]]] = [
    (written_remotely, [REMOTE], [LOCAL]),
    (cut_off, [REMOTE, FAILED], [LOCAL, FAILED]),
    (died_in_transfer, [FAILED, Send("over w", host="prefill"), AGAIN], [FAILED, Receive("m", host="prefill"), AGAIN]),
    (loaded_and_sent, [LOADED, REMOTE], [LOADED, OVERWRITTEN, REMOTE]),
    (loaded_and_received, [LOADED_THERE, REMOTE], [LOADED, REMOTE]),
    (abort_answered, [Receive("abort ack 3 1", host="decode")], [Receive("abort 3 1", host="prefill")]),
]


@pytest.mark.parametrize(("goal", "events", "close"), REACHED)
def test_a_goal_of_two_servers_is_reached_by_a_few_events_and_not_by_those_that_come_close(
    goal: Goal, events: list[MemoryEvent], close: list[MemoryEvent]
) -> None:
    assert goal(events)
    assert not goal(close)


@pytest.mark.slow
def test_two_servers_of_sglang_are_clean_without_known_issues_and_injected_defects_are_found() -> None:
    injected = {
        "sent and kept": "MEM-FAILED",
        "sent before it is loaded": "MEM-RACE",
        "last state for the highest": "MEM-FAILED",
        "notified too early": "MEM-RACE",
        "lost is taken for gone": "MEM-RACE",
        "waits for the answer of the dead": "MEM-FAILED",
        "abort answered and forgotten": "MEM-USE",
        "answer for all": "MEM-RACE",
        "answer handled twice": "MEM-LEAK",
        "loaded and not locked": "MEM-RELEASE",
    }
    drives = driven(range(2, 22, 4), range(2, 62, 4), [*injected])
    assert drives.events > 10_000
    assert drives.found == []
    assert {name: rule_of(code or "") for name, code in drives.codes.items()} == injected
