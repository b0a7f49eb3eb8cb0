"""The transfers of one server of SGLang's pair. Both servers share a clock and may die."""

from typing import Any

from kvattach.sglang.hooks import Attached
from kvattach.sglang.mooncake import Chunks, Mooncake
from kvattach.sglang.release import Release
from kvlab.sglang.network import reached
from kvspec.memory.events import Receive, Send


class Followed(Mooncake):
    """The transfers of a server that shares its clock with the other server.

    Decode may release pages after a timeout, and then no message orders the release. Here each transfer that was
    complete by then is ordered before the release.
    """

    def __init__(self, attached: Attached, life: str, over: dict[int, list[str]]) -> None:
        """`over`: room -> messages that its transfers are complete. Both servers share them; no engine sees them."""
        super().__init__(attached, Chunks(attached.hooks, attached.release.pair))
        self._life, self._over = life, over

    def peer(self, session: str) -> str:
        """The name of a peer. A restarted server is another peer, with other memory."""
        return reached(session)

    def ended(self, room: int, name: str) -> None:
        """A transfer of a room was found complete."""
        message = f"over {self._life} {name}"
        self._over.setdefault(room, []).append(message)
        self._attached.hooks.emit(Send(message))

    def knows(self, release: Release) -> None:
        """Order complete transfers before decode's releases after a timeout."""
        hooks = self._attached.hooks

        def released(_: Any, one: Any, *__: Any) -> None:
            for message in self._over.get(one.req.bootstrap_room, ()):
                hooks.emit(Receive(message))

        hooks.hook(release.pair.decode.DecodeTransferQueue, "_do_release", before=released)

    def dies(self) -> None:
        """The server dies, and its writes end."""
        for name in [*self._written]:
            self.over(name, written=False)
