"""Leaves out what a recording repeats while nothing changes.

An engine that waits for memory may lock and unlock the same prefix thousands of times a second. A *round* is a sequence
of shares, counts and releases, or of takes and releases, after which each reference that it took is given back. The
same round once more leaves the memory as it was, and breaks the same rules or none. So it is written the first time,
and again after another event. A take of free pages forgets their content, so that after its first time rounds of shares
are written again as well; rounds of takes are not, for pages that are taken again have nothing left to forget.

A round that begins like an earlier one is held back until it is complete or differs from it. All that a recording can
lack, while it goes on or after a kill, is the beginning of a round that it has.
"""

from collections import Counter
from typing import TypeAlias

import msgspec

MOST = 16 << 20
"""About the most bytes of the rounds that are known at once."""
ENTRY = 500
"""The bytes of a line's place beside its text."""

Lines: TypeAlias = dict[bytes, "Lines"]
"""The next lines of rounds that begin with the same ones -> the lines after them."""

_TAKE, _COUNT, _RESERVE = b'{"op":"take"', b'{"op":"count"', b'{"op":"reserve"'
_OF_ROUNDS = _TAKE, b'{"op":"share"', b'{"op":"release"', _COUNT


class _Referring(msgspec.Struct):
    """The references that an event is about."""

    op: str
    holder: str
    pool: str
    pages: msgspec.Raw
    pin: bool = False


_decode = msgspec.json.Decoder(_Referring).decode


class Repeats:
    """Takes the lines of a recording in order, and returns those to write."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self._known: Lines = {}
        """The rounds since the memory has changed."""
        self._size = 0
        """Their bytes."""
        self._next = self._known
        """The lines with which they go on after the lines of this round."""
        self._held: list[bytes] = []
        """The lines of this round that are held back."""
        self._taken: Counter[tuple[str, str, bytes]] = Counter()
        """Holder, pool and pages -> the references of this round that are not given back."""
        self._takes = False
        """Whether this round takes free pages, and does not share or count."""
        self._reserves = False
        """Whether pages were ever reserved. Then each take may leave fewer of them."""

    def news(self, lines: bytes) -> list[bytes]:
        """The lines to write now, given one or more further ones: first those that were held back."""
        if not lines.startswith(_OF_ROUNDS):
            self._reserves = self._reserves or _RESERVE in lines
            return [*self.changed(), lines]
        return [one for line in lines.split(b"\n") for one in self._news(line)]

    def changed(self) -> list[bytes]:
        """The memory changes, or the recording ends: no round is known any more. Returns the lines held back."""
        held = self._held
        if self._known:
            self._known, self._size, self._held = {}, 0, []
            self._next = self._known
            self._taken.clear()
        return held

    def _news(self, line: bytes) -> list[bytes]:
        if not self._is_of_a_round(line) or self._size > MOST:
            return [*self.changed(), line]
        after, news = self._next.get(line), list[bytes]()
        if after is None:
            if self._takes:
                for first in [first for first in self._known if not first.startswith(_TAKE)]:
                    del self._known[first]
            after = self._next[line] = {}
            self._size += len(line) + ENTRY
            news, self._held = [*self._held, line], []
        else:
            self._held.append(line)
        self._next = after
        if not self._taken:
            self._next = self._known
            self._held = []
        return news

    def _is_of_a_round(self, line: bytes) -> bool:
        """Whether a line takes references, gives some back that this round took, or only compares."""
        begins = not self._taken
        if line.startswith(_COUNT):
            self._takes = self._takes and not begins
            return not self._takes
        if not line.startswith(_OF_ROUNDS):
            self._reserves = self._reserves or line.startswith(_RESERVE)
            return False
        said = _decode(line)
        what = said.holder, said.pool, bytes(said.pages)
        if said.op == "release":
            if what not in self._taken:
                return False
            self._taken[what] -= 1
            if not self._taken[what]:
                del self._taken[what]
            return True
        takes = said.op == "take"
        self._takes = takes if begins else self._takes
        # A release gives back a reference before a pin.
        if said.pin or takes != self._takes or (takes and self._reserves):
            return False
        self._taken[what] += 1
        return True
