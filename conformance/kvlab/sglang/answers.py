"""The receiver of the answers of SGLang's scheduler."""

from collections.abc import Sequence
from typing import Any, Protocol

from kvlab.tokens import Reason


class Watching(Protocol):
    """Sends messages to the scheduler, and receives the answers of requests."""

    def receive(self, **_: Any) -> list[Any]:
        """The messages since the last call."""

    def answered(self, name: str, tokens: Sequence[int], reason: Reason, most: int | None) -> None:
        """A request got an answer, its last if there is a `reason`. `most` is the most tokens that it may get."""


class Answers:
    """Takes the outputs of the scheduler."""

    def __init__(self, watching: Watching) -> None:
        """No request has been answered."""
        self._watching = watching
        self._sent: dict[str, int] = {}
        """Request -> the number of tokens that were sent. Requests that have ended have no entry."""
        self._ended: set[str] = set()

    def send_output(self, said: Any, *_: Any) -> None:
        """Pass on an abort, the answer that the scheduler itself makes."""
        if getattr(said, "rid", None):
            self._watching.answered(said.rid, [], "abort", None)

    def stream_output(self, reqs: list[Any], *_: Any, **__: Any) -> None:
        """Pass on the new tokens of these requests."""
        for req in reqs:
            # With overlap a request is streamed once more after its end; the release's own streamer skips that.
            if req.rid in self._ended:
                continue
            reason: Reason = ""
            if req.finished():
                reason = "abort" if "ABORT" in type(req.finished_reason).__name__ else "done"
                self._ended.add(req.rid)
            tokens = [] if reason == "abort" else [*getattr(req, "output_ids_through_stop", req.output_ids)]
            sent = self._sent.get(req.rid, 0)
            self._sent[req.rid] = len(tokens)
            self._watching.answered(req.rid, tokens[sent:], reason, req.sampling_params.max_new_tokens)
