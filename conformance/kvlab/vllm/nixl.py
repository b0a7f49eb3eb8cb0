"""A simulated NIXL library: agents of two servers, with transfers and notifications that arrive at random times.

The connector is the engine's own, on the scheduler's and on the worker's side. Only its surroundings are simulated: the
library's agent, the socket of a handshake, the thread that makes handshakes, and the clock.
"""

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from kvattach.vllm.nixl import PACKAGE
from kvlab.device import Point, Stream
from kvlab.vllm.network import SERVERS, SKEW, Network, Posted
from kvlab.vllm.workload import Workload

CLOCKED = ("base_scheduler", "base_worker", "push_worker", "pull_scheduler", "push_scheduler", "pull_worker")
"""The connector's modules that look at the clock."""


class Agent:
    """Stands in for `nixl_agent`. It moves no bytes; it only reports when a transfer is done."""

    def __init__(self, name: str, _: object) -> None:
        """Name the agent after its server; the engine's name for it is ignored."""
        self.name = Network.current.life(Network.current.here)

    def get_reg_descs(self, descriptions: Any, _: str) -> Any:
        """The descriptions themselves."""
        return descriptions

    def register_memory(self, *_: object, **__: object) -> None:
        """Do nothing: any memory may be transferred."""

    def deregister_memory(self, _: object) -> None:
        """Do nothing: no memory is registered."""

    def get_agent_metadata(self) -> bytes:
        """The name by which the other agent finds this one."""
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        """The other agent's name."""
        return metadata.decode()

    def remove_remote_agent(self, name: str) -> None:
        """Do nothing: no remote agent is kept."""

    def check_remote_metadata(self, name: str) -> bool:
        """Whether the metadata of a remote agent are known: they are lost when its server dies."""
        return Network.current.answers(name)

    def prep_xfer_dlist(self, agent: str, descriptions: Any, **_: object) -> str:
        """The handle of a list of descriptions: the agent whose memory they describe."""
        return self.name if agent == "NIXL_INIT_AGENT" else agent

    def release_dlist_handle(self, handle: str) -> None:
        """Do nothing: no list of descriptions is kept."""

    def make_prepped_xfer(
        self, kind: str, local: str, local_ids: Any, remote: str, remote_ids: Any, notif_msg: bytes = b""
    ) -> int:
        """A transfer that is ready to be posted."""
        network = Network.current
        handle = network.number()
        network.transfers[handle] = Posted(self.name, remote, notif_msg)
        return handle

    def transfer(self, handle: int) -> str:
        """Post a transfer, which notifies the other agent when it is done.

        Raises:
            RuntimeError: it cannot be posted.
        """
        network = Network.current
        posted, takes = network.transfers[handle], network.takes()
        network.reached = posted.to
        if network.fails() or not network.answers(posted.to):
            raise RuntimeError("played: not posted")
        posted.ends = network.now + takes
        if network.fails():
            posted.fails = network.now + network.share() * takes
        else:
            network.send(self.name, posted.to, posted.message, posted.ends)
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        """The state of a transfer: in progress, done or failed."""
        posted, now = Network.current.transfers[handle], Network.current.now
        if posted.fails is not None and posted.fails <= now:
            return "ERR"
        return "PROC" if now < posted.ends else "DONE"

    def get_xfer_telemetry(self, handle: int) -> Any:
        """Made-up figures: nothing is measured."""
        return SimpleNamespace(xferDuration=1, postDuration=1, totalBytes=1, descCount=1)

    def release_xfer_handle(self, handle: int) -> None:
        """Forget a transfer that is over.

        Raises:
            RuntimeError: a part of it is still under way, although it has failed.
        """
        if Network.current.now < Network.current.transfers[handle].ends:
            raise RuntimeError("played: still under way")
        del Network.current.transfers[handle]

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        """Send a notification without a transfer.

        Raises:
            RuntimeError: the other server does not answer.
        """
        network = Network.current
        if network.answers(agent):
            network.send(self.name, agent, notif_msg, network.now)
        elif network.share() < 0.5:
            raise RuntimeError("played: no connection")

    def dies(self) -> None:
        """The agent's server dies, and with it all transfers that it has posted."""
        network = Network.current
        for handle in [number for number, posted in network.transfers.items() if posted.sender == self.name]:
            self.check_xfer_state(handle)
            posted = network.transfers[handle]
            posted.ends = min(posted.ends, network.now)
            self.release_xfer_handle(handle)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """The notifications that have arrived."""
        return Network.current.arrived(self.name)


class Socket:
    """Stands in for the socket of a handshake: the other server's listener answers at once."""

    def __init__(self, port: int) -> None:
        self._server = SERVERS[port]
        self._asked: Any = None

    def setsockopt(self, *_: object) -> None:
        """Do nothing: the socket never waits, so a timeout does not matter."""

    def send(self, message: bytes) -> None:
        """Ask for the description of a rank's memory."""
        _, pipeline, tensor = msgspec.msgpack.decode(message)
        self._asked = pipeline, tensor

    def recv_multipart(self) -> list[bytes]:
        """The description, and the time on the other server's clock.

        Raises:
            RuntimeError: the other server does not run.
        """
        network = Network.current
        if self._server not in network.schedulers:
            raise RuntimeError("played: no connection")
        clock = network.now + SKEW * (1 + SERVERS.index(self._server))
        return [network.schedulers[self._server]._handshake_data[self._asked], msgspec.msgpack.encode(clock)]


class Later:
    """Stands in for the thread that makes handshakes: the drive decides when each is made."""

    def __init__(self) -> None:
        self._asked: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, do: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Ask for a handshake."""
        future: Future[Any] = Future()
        self._asked.append((future, do, args))
        return future

    def one(self) -> None:
        """Make the next handshake, if one was asked for."""
        if self._asked:
            future, do, args = self._asked.pop(0)
            try:
                if Network.current.fails():
                    raise RuntimeError("played: no answer")
                future.set_result(do(*args))
            except Exception as error:
                future.set_exception(error)

    def shutdown(self, *_: object, **__: object) -> None:
        """Do nothing: there is no thread to end."""


class Turns:
    """Stands in for the event that ends the writing thread's loop: the drive decides when the loop runs once."""

    def __init__(self) -> None:
        self._left = 0

    def one(self) -> None:
        """Let the loop run once."""
        self._left = 1

    def is_set(self) -> bool:
        """Whether the loop must end, because it has run."""
        self._left -= 1
        return self._left < 0

    def set(self) -> None:
        """Do nothing: only the drive ends or wakes the loop."""

    def clear(self) -> None:
        """Do nothing: only the drive wakes the loop."""

    def wait(self, timeout: float | None = None) -> None:
        """Do nothing: the loop never waits."""


@contextmanager
def _socket(_: object, path: str) -> Iterator[Socket]:
    yield Socket(int(path.rsplit(":", 1)[1]))


def prepared() -> str:
    """Let the connector run on a simulated network for the rest of this process.

    Returns why the release's connector cannot be driven; empty if it can.
    """
    try:
        modules: list[Any] = [importlib.import_module(f"{PACKAGE}.{name}") for name in (*CLOCKED, "utils", "connector")]
    except (ImportError, AttributeError, TypeError) as error:
        return f"its NIXL connector cannot be imported: {error}"
    if not hasattr(modules[1].NixlBaseConnectorWorker, "_strided_desc_starts"):
        return "its NIXL connector is an older one"
    base, worker, push, utils = modules[0], modules[1], modules[2], modules[-2]
    clock = SimpleNamespace(perf_counter=lambda: Network.current.clock)
    for module in modules[: len(CLOCKED)]:
        module.time = clock
    push.threading = SimpleNamespace(
        Thread=lambda **_: SimpleNamespace(start=lambda: None, join=lambda **_: None), Lock=threading.Lock, Event=Turns
    )
    utils._RANDOM_SUFFIX_RE = re.compile(r"-[0-9a-f]{8}$")
    base.current_platform = worker.current_platform = SimpleNamespace(
        device_type="cuda", get_nixl_memory_type=lambda: None, set_device=lambda _: None, is_rocm=lambda: False
    )
    base.NixlBaseConnectorScheduler._nixl_handshake_listener = staticmethod(lambda _, ready, *__: ready.set())
    backend = SimpleNamespace(get_name=lambda: "played")
    played: dict[str, Any] = {
        "NixlWrapper": Agent,
        "nixl_agent_config": None,
        "check_nixl_version": lambda _: None,
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "get_current_attn_backends": lambda _: [backend],
        "get_current_attn_backends_and_specs": lambda *_: ([backend], []),
        "select_common_block_size": lambda size, *_: size,
        "compute_nixl_compatibility_hash": lambda *_, **__: "played",
        "make_zmq_path": lambda _, host, port: f"{host}:{port}",
        "zmq_ctx": _socket,
    }
    for name, value in played.items():
        setattr(worker, name, value)
    return ""


def configured(work: Workload, transfer: Any) -> Any:
    """The configuration of a server's connector."""
    transfer.engine_id = Network.current.life(work.server) if work.renamed else work.server
    transfer.is_kv_producer, transfer.is_kv_consumer = work.server == "prefill", work.server == "decode"
    transfer.kv_role = "kv_producer" if transfer.is_kv_producer else "kv_consumer"
    transfer.kv_buffer_device = "cuda"
    transfer.kv_connector_extra_config = {}
    transfer.get_from_extra_config = transfer.kv_connector_extra_config.get
    return transfer


def connector(config: Any, kv_cache_config: Any, *, worker: bool) -> Any:
    """One side of the engine's own connector."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    module: Any = importlib.import_module(f"{PACKAGE}.connector")
    role = KVConnectorRole.WORKER if worker else KVConnectorRole.SCHEDULER
    kind = module.NixlPullConnector if Network.current.work.connector == "pull" else module.NixlPushConnector
    made = kind(config, role, kv_cache_config)
    if not worker:
        network = Network.current
        network.schedulers[network.here] = made.connector_scheduler
        made.connector_scheduler.side_channel_port = SERVERS.index(network.here)
    return made


class Worker:
    """One server's worker: it queues launches, posts transfers, and reports those that it finds done."""

    def __init__(self, work: Workload, config: Any, kv_cache_config: Any, scheduler: Any) -> None:
        """Allocate the memory, and let the other server ask for its description. `torch.cuda` is a stub."""
        import torch

        self._connector = connector(config, kv_cache_config, worker=True)
        worker = self._connector.connector_worker
        self._thread = worker._handshake_initiation_executor = Later()
        self._pushes = worker if work.connector == "push" else None
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        shape = work.blocks, spec.num_kv_heads, spec.block_size, 2 * spec.head_size
        memory = torch.zeros(shape, dtype=spec.dtype)
        layers = [layer for group in kv_cache_config.kv_cache_groups for layer in group.layer_names]
        self._connector.register_kv_caches(dict.fromkeys(layers, memory))
        described = {(0, 0): self._connector.get_handshake_metadata()}
        scheduler.connector.set_xfer_handshake_metadata_pp_aware(described)

    def dies(self) -> None:
        """The worker's process dies."""
        self._connector.connector_worker.nixl_wrapper.dies()

    def get_on(self) -> None:
        """Let the worker's threads do a part of their work: a handshake, and one round of the writing loop."""
        if Network.current.share() < 0.5:
            self._thread.one()
        if self._pushes is not None and Network.current.share() < 0.7:
            self._pushes._push_writer_stop.one()
            self._pushes._push_writer_loop()

    def execute(self, output: Any) -> tuple[Any, Point]:
        """Simulate `execute_model` for one output of the scheduler. Returns the report, and when the pass is done."""
        from vllm.v1.outputs import KVConnectorOutput

        worker = self._connector
        worker.bind_connector_metadata(output.kv_connector_metadata)
        Stream.current.queue()
        computed = Stream.current.end
        worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        report = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
        )
        worker.clear_connector_metadata()
        return report, computed
