"""Stubs for zmq and HTTP between SGLang's prefill and decode servers."""

from types import SimpleNamespace
from typing import Any

from kvlab.sglang.network import Network, reached

ABORT = b"ABORT"
"""The beginning of the message by which the decode server aborts a request."""


class Again(Exception):
    """Stands in for `zmq.Again`: there is no message, or a message could not be sent in time."""


class Context:
    """Stands in for `zmq.Context`."""

    def set(self, *_: object) -> None:
        """Do nothing: there is room for any number of sockets."""

    def socket(self, _: object) -> "Push":
        """A socket for outgoing messages."""
        return Push()


class Push:
    """One connection to the other server. Its messages arrive in order, or are lost when it breaks."""

    def __init__(self) -> None:
        """An unconnected socket."""
        self._to = ""
        self._arrives = 0.0
        self._again = True
        """Whether a broken connection reconnects."""
        self._on_its_way: list[int] = []
        self.broken = False

    def setsockopt(self, name: str, value: int) -> None:
        """Only the option that forbids reconnecting matters here."""
        if name == "RECONNECT_IVL" and value < 0:
            self._again = False

    def connect(self, endpoint: str) -> None:
        """Connect to a server, in the life with that port."""
        self._to = reached(endpoint)

    def get_monitor_socket(self, _: object) -> "Monitor":
        """A monitor that reports whether the connection has broken."""
        return Monitor(self)

    def send_multipart(self, parts: list[bytes]) -> None:
        """Send, in the order of this connection.

        Raises:
            Again: the connection has broken, and does not reconnect.
        """
        network = Network.current
        if self.broken and not self._again:
            raise Again
        arrives = network.faults.steady and parts[0] == ABORT
        if not arrives and (network.happens(network.faults.cut) or not network.answers(self._to)):
            self._cut(network)
            return
        inbox = network.inboxes.setdefault(self._to, [])
        for _ in range(1 + network.happens(network.faults.doubled)):
            self._arrives = max(self._arrives, network.now + network.takes())
            number = network.number()
            inbox.append((self._arrives, number, list(parts)))
            self._on_its_way.append(number)

    def _cut(self, network: Network) -> None:
        """Lose this message and the last ones in flight. The next connection does not wait for the others."""
        self.broken, self._arrives = True, 0.0
        inbox = network.inboxes.setdefault(self._to, [])
        kept = [one for one in inbox if network.faults.steady and one[2][0] == ABORT]
        lost = self._on_its_way[int(network.share() * (len(self._on_its_way) + 1)) :]
        inbox[:] = [one for one in inbox if one[1] not in lost or one in kept]
        self._on_its_way.clear()

    def close(self, **_: object) -> None:
        """Do nothing: messages in flight arrive."""


class Monitor:
    """Reports whether a connection has broken."""

    def __init__(self, watched: Push) -> None:
        self._watched = watched

    def recv_multipart(self, _: object) -> list[bytes]:
        """The event of the broken connection.

        Raises:
            Again: the connection has not broken.
        """
        if not self._watched.broken:
            raise Again
        return []

    def close(self) -> None:
        """Do nothing."""


class Pull:
    """Stands in for the socket on which a server receives."""

    def __init__(self, life: str) -> None:
        """The socket of a server in one of its lives."""
        self._life = life

    def recv_multipart(self) -> list[bytes]:
        """Wait for the next message."""
        network = Network.current
        inbox = network.inboxes.setdefault(self._life, [])
        network.turns.wait(lambda: any(one[0] <= network.now for one in inbox))
        first = min(inbox, key=lambda one: one[:2])
        inbox.remove(first)
        return first[2]


ZMQ = SimpleNamespace(
    Again=Again,
    Context=Context,
    ZMQError=Again,
    **{
        name: name
        for name in (
            "EVENT_DISCONNECTED",
            "IPV6",
            "LINGER",
            "MAX_SOCKETS",
            "NOBLOCK",
            "PULL",
            "PUSH",
            "RECONNECT_IVL",
            "SNDTIMEO",
            "TCP_KEEPALIVE",
            "TCP_KEEPALIVE_CNT",
            "TCP_KEEPALIVE_IDLE",
            "TCP_KEEPALIVE_INTVL",
        )
    },
)


def socket_of(*_: object, **__: object) -> tuple[int, Pull]:
    """The port of the current server, and its socket."""
    network = Network.current
    return 1 + network.lives[network.here], Pull(network.life(network.here))


# HTTP


class Answer:
    """Stands in for an HTTP response."""

    status_code = 200
    text = ""

    def __init__(self, said: Any = None) -> None:
        self._said = said

    def json(self) -> Any:
        """The content of the response."""
        return self._said


class Http:
    """Stands in for `requests` and its sessions: the client of prefill's bootstrap server."""

    def __init__(self) -> None:
        """A session."""

    def mount(self, *_: object) -> None:
        """Do nothing: all addresses get the same answers."""

    def put(self, _: str, json: Any, **__: object) -> Answer:
        """Register a server."""
        Network.current.routes.update(json)
        return Answer()

    def get(self, url: str, **_: object) -> Answer:
        """Ask whether prefill is alive, or ask for the registered server.

        Raises:
            ConnectionError: prefill does not answer.
        """
        network = Network.current
        if not network.answers(network.life("prefill")):
            raise ConnectionError("played: no answer")
        routes = network.routes
        if "/route" not in url:
            return Answer()
        if "prefill_dp_rank=-1" in url:
            names = ("attn_tp_size", "attn_cp_size", "pp_size", "page_size", "kv_cache_dtype", "prefill_http_port")
            known = {name: routes[name] for name in (*names, "decode_allocation_policy")}
            return Answer({**known, "dp_size": 1, "follow_bootstrap_room": True})
        return Answer({"rank_ip": routes["rank_ip"], "rank_port": routes["rank_port"]})


REQUESTS = SimpleNamespace(
    Session=Http,
    adapters=SimpleNamespace(HTTPAdapter=lambda **_: None),
    get=lambda url, **more: Http().get(url, **more),
    put=lambda url, **more: Http().put(url, **more),
)
