"""The transfers of one of SGLang's two servers, as a trace has them where both have one clock and may die."""

from typing import Any

from kvattach.sglang.hooks import Attached
from kvattach.sglang.mooncake import Mooncake
from kvattach.sglang.release import Release
from kvlab.sglang.network import reached
from kvspec.memory.events import Receive, Send


class Followed(Mooncake):
    """The transfers of a server whose clock is the other one's as well.

    Where decode gives pages back by the clock no message comes before that: what was over by then comes before it here.
    """

    def __init__(self, attached: Attached, life: str, over: dict[int, list[str]]) -> None:
        """`over`: room -> messages that its transfers are over, which no engine gets; both servers share it."""
        super().__init__(attached, "")
        self._life, self._over = life, over

    def peer(self, session: str) -> str:
        """A server that was started again has other memory."""
        return reached(session)

    def ended(self, room: int, name: str) -> None:
        """A transfer of a room was seen complete."""
        message = f"over {self._life} {name}"
        self._over.setdefault(room, []).append(message)
        self._attached.hooks.emit(Send(message))

    def knows(self, release: Release) -> None:
        """Let decode know what is over, when it gives pages back by the clock."""
        hooks = self._attached.hooks

        def released(_: Any, one: Any, *__: Any) -> None:
            for message in self._over.get(one.req.bootstrap_room, ()):
                hooks.emit(Receive(message))

        hooks.hook(release.pair.decode.DecodeTransferQueue, "_do_release", before=released)

    def dies(self) -> None:
        """Its server dies, and writes no more."""
        for name in [*self._written]:
            self.over(name, written=False)
