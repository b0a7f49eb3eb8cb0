"""The holders of rows of SGLang's table: a request's run, or the slot of a streaming session between two turns.

A turn passes its row, pages and states to its session's slot when it ends. The slot passes them to the next turn at its
launch.
"""

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from kvattach.hooks import Trace
from kvattach.sglang.release import Release
from kvattach.sglang.states import States
from kvattach.sglang.view import NEW, ROWS, Stay
from kvspec.memory.events import EndHolder, Transfer, Unify, Unmap
from kvspec.memory.events import Release as Released


@dataclass
class Lock:
    """A lock on the path to a node."""

    who: str
    node: Any
    low: int | None = None
    """The first token from which it also locks the path's window pages; `None`: it locks none."""


class Stays(States):
    """Follows the holders of rows, and their pages, states and locks."""

    def __init__(self, release: Release, trace: Trace, stream: Any, event: Any) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses."""
        super().__init__(release, trace, stream, event)
        self._stays: dict[str, Stay] = {}
        self._numbers = count(1)
        """Numbers of residencies: a request or a session may have several, and each has its own name."""
        self._rows: dict[int, Stay] = {}
        self._readers: dict[int, tuple[str, str]] = {}
        """Row -> its table, and its holder, as far as captures are resolved. The table is empty until it is mapped."""
        self._locked: list[Lock] = []
        self._unused: list[str] = []
        """The names of released locks: a lock that is taken and released again and again has one name."""
        for pool in release.row_pools:
            self.hooks.hook(pool, "free", before=lambda _, req: self._left(req))
        if release.session_slots is not None:
            self._install_sessions(release)

    def _install_sessions(self, release: Release) -> None:
        self.hooks.hook(
            release.session_slots,
            "try_cache_finished_req",
            before=lambda _, req, **__: (self._row_of(req), getattr(req.session, "session_id", "")),
            after=self._turn_ends,
        )
        self.hooks.hook(
            release.session_slots,
            "release_session",
            before=lambda sessions, name: self._of_slot(sessions.slots.get(name)),
            after=self._closed,
        )
        self._acting(
            release.session_slots,
            "release_session",
            lambda sessions, name: getattr(self._of_slot(sessions.slots.get(name)), "name", NEW),
        )
        if not release.checkpoints:
            # Later releases free these pages by a function of the tree, which names the row.
            self._acting(
                release.session_slots,
                "_free_kv_aligned",
                lambda _, kept, *__: self._of_row(kept if isinstance(kept, int) else self._row_of(kept)),
            )

    def _request(self, req: Any) -> str:
        """The holder of a request with its output so far."""
        raise NotImplementedError

    def _row_of(self, req: Any) -> int | None:
        """The row of a request or of a session's slot, if it has one."""
        record: Any = getattr(req, "kv", None)
        row = getattr(record if hasattr(record, "req_pool_idx") else req, "req_pool_idx", None)
        return None if row is None else int(row)

    def _of_row(self, row: int | None) -> str:
        stay = None if row is None else self._rows.get(row)
        return NEW if stay is None else stay.name

    def _transfer(self, old: str, new: str, lock: Any) -> None:
        """Pass everything that holder `old` has, and its lock, if any, to holder `new`."""
        self.hooks.emit(Transfer(old, new))
        self._passes(old, new, lock)

    def _passes(self, old: str, new: str, lock: Any) -> None:
        for locked in self._locked:
            if locked.who == old:
                locked.who = new
        if lock is not None:
            lock.kvspec_owner = new

    def _left(self, freed: Any) -> None:
        """A request or a session's slot frees its row. In the oldest releases rows are freed by number."""
        if self._release.rows_by_number:
            for row in [freed] if isinstance(freed, int) else freed:
                self._row_left(row)
            return
        row = self._row_of(freed)
        stay = None if row is None else self._row_left(row)
        if stay is not None:
            self._stays.pop(stay.rid, None)
            if self._who[-1] != stay.name:
                self._gone(stay)
            # Otherwise its session is closing, and frees its states last.

    def _row_left(self, row: int) -> Stay | None:
        """A row was freed. Returns its last residency, if a launch has shown one."""
        self.hooks.emit(Released(self._of_row(row), ROWS, [row]))
        self.hooks.later(partial(self._readers.pop, row, None))
        return self._rows.pop(row, None)

    def _finished(self, _: None, __: Any, ___: Any, req: Any, *____: Any, **_____: Any) -> None:
        """A request has ended. In later releases freeing its row is the last step."""
        stay = self._stays.pop(req.rid, None) if self._release.rows_by_number else None
        if stay is not None:
            self._gone(stay)

    def _gone(self, stay: Stay) -> None:
        self.hooks.later(lambda: self.hooks.emit(*(Unmap(stay.table(pool)) for pool in stay.pages)))
        self.hooks.emit(EndHolder(stay.name))

    def _slot(self, req: Any) -> Any:
        """The session's slot with the record on which a request runs, if any."""
        sessions = getattr(self._cache, "session", None)
        return None if sessions is None or not self._release.checkpoints else sessions.borrowed_slot(req)

    def _of_slot(self, slot: Any) -> Stay | None:
        row = None if slot is None else self._row_of(slot)
        return None if row is None else self._rows.get(row)

    def _closed(self, stay: Stay | None, *_: Any) -> None:
        """A session was closed, or, in older releases, its turn was aborted."""
        if stay is None:
            return
        if self._rows.get(stay.row) is stay:
            # Until 0.5.18 a slot frees its row without a call of the table.
            self._row_left(stay.row)
            self._stays.pop(stay.rid, None)
        self._gone(stay)

    def _turn_ends(self, was: tuple[int | None, str], kept: bool, sessions: Any, req: Any, **_: Any) -> None:
        """A turn that finishes or is retracted passes everything that it has to its session's slot."""
        row, session = was
        stay = None if row is None or not kept else self._rows.get(row)
        if stay is None or not stay.rid:
            return
        self._request(req)
        slot = Stay(f"session {session}.{next(self._numbers)}", self._size, "")
        slot.said, slot.row = [*req.origin_input_ids, *req.output_ids], stay.row
        slot.run = stay.name
        self._rows[slot.row] = slot
        self.hooks.later(partial(self._readers.__setitem__, slot.row, ("", slot.name)))
        self.hooks.later(lambda: setattr(slot, "state", stay.state))
        self._transfer(stay.name, slot.name, getattr(sessions.slots[session], "lock", None))
        del self._stays[stay.rid]
        self._gone(stay)

    def _lent(self, slot: Stay, stay: Stay, req: Any) -> None:
        """A turn takes over everything that its session's slot has, and goes on after the tokens of the turn before."""
        self._transfer(slot.name, stay.name, getattr(self._slot(req), "lock", None))
        self.hooks.emit(EndHolder(slot.name))
        self.hooks.later(lambda: setattr(stay, "state", slot.state))
        page, further = divmod(len(slot.said), self._size)
        tokens = [*req.origin_input_ids, *req.output_ids]
        if further and tokens[: len(slot.said)] == slot.said:
            self.hooks.later(partial(self._goes_on, stay, f"{slot.run}#{page}", tokens, page, further))

    def _goes_on(self, stay: Stay, before: str, tokens: list[int], page: int, further: int) -> None:
        """The last page of the turn before begins with the same tokens as that of this turn."""
        (label,) = stay.labels(tokens, page, page + 1)
        self.hooks.emit(Unify(before, label, further))
