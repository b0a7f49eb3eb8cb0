"""Streaming sessions: the KV of a conversation stays in a slot between two turns.

The record of a slot is *lent* to the turn in flight. The slot keeps a reference, so that a turn that is not admitted
can match again (20476). While it is lent, the record counts as the turn's (22213).
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvcuda.holdings import Holdings, PublishedState
from kvcuda.records import KvRecord, Request, Run, Slot
from kvspec.events import Refusal
from kvspec.tokens import Tokens


class SessionMatch(NamedTuple):
    """The match of a request. Lengths in tokens."""

    prefix_len: int
    protected_len: int
    lent: KvRecord | None
    """The slot's record, whose row and pages the request holds from now on."""


class Sessions:
    """The slots of all open sessions."""

    def __init__(self, holdings: Holdings) -> None:
        """No session is open."""
        self._holdings = holdings
        self._slots: dict[str, Slot] = {}

    def open(self, name: str) -> None:
        """Open a session; its slot is empty.

        Raises:
            Refusal: it is open already.
        """
        if name in self._slots:
            raise Refusal("OP-1", f"session {name} is open already")
        self._slots[name] = Slot(name, Tokens(self._holdings.page_size))

    def slot(self, name: str) -> Slot:
        """The slot of an open session, or a refusal."""
        slot = self._slots.get(name)
        if slot is None:
            raise Refusal("OP-1", f"there is no session {name}")
        return slot

    def slot_for_turn(self, name: str, tokens: Tokens) -> Slot:
        """The slot of a session that `tokens` may continue, or a refusal (20476, 22862)."""
        slot = self.slot(name)
        if slot.closing:
            raise Refusal("OP-1", f"session {name} is closing")
        if slot.turn is not None:
            raise Refusal("SESS-1", f"session {name} has a turn in flight: {slot.turn}")
        if not tokens.extends(slot.history):
            raise Refusal("SESS-6", f"the tokens do not begin with the history of session {name}")
        return slot

    def match(self, request: Request) -> SessionMatch:
        """Match a request's prefix, never its last token, whose logits are needed.

        A turn whose slot holds KV resumes at its end, or at the last state that was kept; a second lend gives the same
        answer (20476). If none of the KV can be kept, the slot releases it, and the turn matches as any other request.
        """
        holdings = self._holdings
        key_len = len(request.tokens) - 1
        slot = request.slot
        if slot is not None and slot.kv is not None:
            row = slot.kv.row
            prefix_len = holdings.resumable(slot.kv, min(int(holdings.rows.committed[row]), key_len))
            if prefix_len:
                slot.lent = True
                holdings.free_tail(slot.kv, prefix_len)
                return SessionMatch(prefix_len, int(holdings.rows.protected[row]), slot.kv)
            self.wipe(slot)
        match = holdings.tree.match(request.tokens.pages[: key_len // holdings.page_size])
        return SessionMatch(match.pages * holdings.page_size, match.pages * holdings.page_size, None)

    def cache_unfinished(self, run: Run) -> PublishedState:
        """Publish the pages that a run's last extend wrote, unless they are the session's own.

        A session publishes only after the last chunk of its first turn (20476).
        """
        if run.request.slot is not None and (run.request.resumed or run.mid_prefill):
            return PublishedState()
        self._holdings.publish(run.kv, run.tokens, run.seq_len)
        return self._holdings.copy_state(run.kv)

    def save(self, slot: Slot, run: Run) -> None:
        """Return the turn's memory to the slot, valid as far as it was launched and its tokens are kept (22862).

        [0, committed)                kept
        [committed, ceil(allocated))  kept: only the next match decides where its turn writes
        """
        rows, row = self._holdings.rows, run.kv.row
        rows.committed[row] = min(rows.committed[row], rows.launched[row], len(run.tokens))
        rows.forget_steps(row)
        self.take_back(slot, run.kv)

    def take_back(self, slot: Slot, kv: KvRecord) -> None:
        """Give a record to the slot: at the end of a lend, or of a first turn."""
        slot.kv = kv
        slot.lent = False

    def end_turn(self, slot: Slot) -> None:
        """End the turn in flight, and close the session if a close has waited for it (22213)."""
        slot.turn = None
        if slot.closing:
            self.close(slot)

    def close(self, slot: Slot) -> None:
        """Remove the session, and release its memory."""
        self.wipe(slot)
        del self._slots[slot.name]

    def wipe(self, slot: Slot) -> None:
        """Release the slot's memory. The session keeps its tokens, and the next turn prefills them again."""
        kv, slot.kv = slot.kv, None
        slot.lent = False
        if kv is not None:
            self._holdings.release(kv)

    def idle(self) -> Iterator[tuple[str, KvRecord]]:
        """The slots that hold memory themselves. A lent record counts as its turn's (22213)."""
        for name, slot in self._slots.items():
            if slot.kv is not None and not slot.lent:
                yield name, slot.kv
