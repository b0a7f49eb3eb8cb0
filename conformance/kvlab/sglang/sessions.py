"""Clients with streaming sessions: they open sessions, append turns, and close them."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.release import Release

_HURRIED = 0.1
"""The probability that a client sends a turn before the previous one is answered."""


class Clients:
    """Clients, each with one session after the other. The clock for the sessions' timeouts advances at random."""

    def __init__(self, release: Release, rng: random.Random, count: int) -> None:
        """No session is open yet."""
        self._release, self._rng, self._count = release, rng, count
        self._sessions: dict[str, set[str]] = {}
        """Session -> its unanswered turns."""
        self._orphans: set[str] = set()
        """Unanswered turns of sessions that their clients have closed."""
        self._texts: dict[str, list[int]] = {}
        """Session -> its text, without aborted turns, unless the server took them for finished."""
        self.taken: Callable[[str, str], list[int] | None] = lambda *_: None
        """The text of a session after a turn that the server retracted and took for finished (`found`)."""
        self._opened = 0
        self._clock = 0.0

    def messages(self, *, more: bool) -> list[Any]:
        """Open sessions if there will be `more` turns, and close some at any point."""
        rng, messages = self._rng, []
        self._clock += rng.choice([0.0, 0.0, 0.6, 1.5])
        if more and len(self._sessions) < self._count and rng.random() < 0.5:
            self._opened += 1
            name = f"s{self._opened}"
            self._sessions[name] = set()
            timeout = rng.choice([None, None, 60.0])
            messages.append(
                self._release.messages.OpenSessionReqInput(
                    capacity_of_str_len=0, session_id=name, streaming=True, timeout=timeout
                )
            )
        if self._sessions and rng.random() < 0.02:
            messages.append(self._close(rng.choice([*self._sessions])))
        return messages

    def leave(self) -> list[Any]:
        """Abort all turns and close all sessions; the server soon checks whether they can be closed."""
        self._clock += 2.0
        turns = sorted(self._orphans.union(*self._sessions.values()))
        aborts = [self._release.messages.AbortReq(rid=rid) for rid in turns]
        return aborts + [self._close(name) for name in [*self._sessions]]

    def _close(self, name: str) -> Any:
        self._orphans |= self._sessions.pop(name)
        return self._release.messages.CloseSessionReqInput(session_id=name)

    def turn(self, rid: str) -> Any:
        """Draw the session of a request. Returns its parameters; `None`: no session."""
        ready = [name for name, turns in self._sessions.items() if not turns or self._rng.random() < _HURRIED]
        if not ready or self._rng.random() < 0.2:
            return None
        name = self._rng.choice(ready)
        self._sessions[name].add(rid)
        return self._release.messages.SessionParams(id=name)

    def text(self, session: Any) -> list[int]:
        """The text of a session, given the parameters of a turn: its turns and their answers."""
        return self._texts.get(session.id, [])

    def answered(self, rid: str, text: list[int] | None) -> None:
        """A request got its last answer; `text`: all of its text, `None` if it was aborted."""
        self._orphans.discard(rid)
        for name, turns in self._sessions.items():
            if rid in turns:
                turns.remove(rid)
                text = self.taken(name, rid) if text is None else text
                if text is not None:
                    self._texts[name] = text

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Let the server's sessions use the clients' clock."""
        if not self._count:
            yield
            return
        sessions = self._release.sessions
        controller = sessions.SessionController
        original = controller.maybe_reap
        with Patches() as patches:
            patches.set(sessions, "time", SimpleNamespace(monotonic=lambda: self._clock))
            patches.set(controller, "maybe_reap", lambda made, _, *more: original(made, self._clock, *more))
            yield
