"""Streaming sessions: the KV of a conversation stays in a slot between two turns.

The record of a slot is *lent* to the turn in flight. The slot goes on naming it, so that a turn that is not admitted
can match again (20476), but as long as the lend lasts the record counts as the turn's (22213).
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvcuda.holdings import Holdings, PublishedState
from kvcuda.records import KvRecord, Request, Run, Slot
from kvspec.events import Refusal
from kvspec.tokens import Tokens


class SessionMatch(NamedTuple):
    """What a request may build on. Lengths in tokens."""

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
        """How much of a request is there already. The last token never is: its logits are needed.

        A turn whose slot holds KV goes on from there, or from the last state that was kept; lending it again gives the
        same answer (20476). If none of it could be kept, the slot gives it up, and the turn is matched like any other
        request.
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
        """Publish what a run's last extend wrote, unless that is the session's own.

        Of a session only the last chunk of a first turn goes to the prefix store (20476).
        """
        if run.request.slot is not None and (run.request.resumed or run.mid_prefill):
            return PublishedState()
        self._holdings.publish(run.kv, run.tokens, run.seq_len)
        return self._holdings.copy_state(run.kv)

    def save(self, slot: Slot, run: Run) -> None:
        """The turn's memory goes back to the slot, valid as far as it was launched and its tokens are kept (22862).

        [0, committed)                stays
        [committed, ceil(allocated))  stays: only the next match knows from where on it will write
        """
        rows, row = self._holdings.rows, run.kv.row
        rows.committed[row] = min(rows.committed[row], rows.launched[row], len(run.tokens))
        rows.forget_steps(row)
        self.take_back(slot, run.kv)

    def take_back(self, slot: Slot, kv: KvRecord) -> None:
        """The slot holds a record from now on: the end of a lend, or what a first turn has made."""
        slot.kv = kv
        slot.lent = False

    def end_turn(self, slot: Slot) -> None:
        """The turn in flight has left; a close that has waited for it happens now (22213)."""
        slot.turn = None
        if slot.closing:
            self.close(slot)

    def close(self, slot: Slot) -> None:
        """The session is gone, with all it holds."""
        self.wipe(slot)
        del self._slots[slot.name]

    def wipe(self, slot: Slot) -> None:
        """Release what the slot holds; its tokens stay, and the next turn prefills them again."""
        kv, slot.kv = slot.kv, None
        slot.lent = False
        if kv is not None:
            self._holdings.release(kv)

    def idle(self) -> Iterator[tuple[str, KvRecord]]:
        """The slots that hold memory themselves. A lent one does not: its turn counts it (22213)."""
        for name, slot in self._slots.items():
            if slot.kv is not None and not slot.lent:
                yield name, slot.kv
