"""Hooks into SGLang's table of rows (`req_to_token`): holders of rows, writes into them, and launches that read them.

A row is a page of a separate pool, and each of its entries is a slot. The scheduler writes rows on its own stream, a
launch reads them on the stream of the launches.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kvattach.hooks import Trace
from kvattach.sglang.release import Release
from kvattach.sglang.residency import Stays
from kvattach.sglang.view import NEW, ROWS, Ids, Stay
from kvspec.memory.events import Map, Pool, Take, Transfer, Use

Entries = tuple[int, int, int]
"""Entries of a row: the row, the first and the last (exclusive)."""


class Rows(Stays):
    """Follows rows and their entries."""

    _width: int
    """The number of entries of a row."""
    _written = 0
    """The number of writes of rows."""

    def __init__(self, release: Release, trace: Trace, stream: Any, event: Any) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses."""
        super().__init__(release, trace, stream, event)
        hook = self.hooks.hook
        for pool in release.row_pools:
            if hasattr(pool, "alloc_rows"):
                hook(pool, "alloc_rows", after=lambda _, rows, *__: self._rows_taken(set(), rows))
            else:
                hook(pool, "alloc", before=self._rows_of, after=lambda had, rows, *__: self._rows_taken(had, rows))
            hook(pool, "write", before=lambda _, entries, *__: self._row_written(entries))
        self._kernel(release.writes_rows, "write_cache_indices", self._prefilled)
        if hasattr(release.writes_rows, "assign_req_to_token_pool_func"):
            self._kernel(release.writes_rows, "assign_req_to_token_pool_func", self._assigned)

    def _kernel(self, module: Any, name: str, entries: Callable[..., list[Entries]]) -> None:
        """Emit the writes of a function's kernel. Writes of single entries are emitted elsewhere."""

        def wrote(before: int, _: None, *arguments: Any) -> None:
            if before == self._written:
                self._written += 1
                written = [(row, start, stop) for row, start, stop in entries(*arguments) if start < stop]
                if written:
                    self._write(name, lambda: written)

        self.hooks.hook(module, name, before=lambda *_: self._written, after=wrote)

    def _pool_of_rows(self, rows: Any) -> Pool:
        """The pool that a table is. In later releases its row 0 is for padding."""
        # Decode has further rows, for requests with transfers in flight.
        count = rows.size + getattr(rows, "pre_alloc_size", 0)
        first, self._width = len(rows.req_to_token) - count, int(rows.req_to_token.shape[1])
        return Pool(page_size=self._width, num_pages=count, first_page=first)

    def _rows_of(self, _: Any, asking: Any) -> set[int | None]:
        """The rows that the requests in an allocation already have."""
        return set() if isinstance(asking, int) else {self._row_of(req) for req in asking}

    def _rows_taken(self, had: set[int | None], rows: Ids | None) -> None:
        taken = [row for row in rows or [] if row not in had]
        if taken:
            self.hooks.emit(Take(NEW, ROWS, [*taken]))

    def _readers_of(self, reqs: list[Any]) -> list[Stay | None]:
        """The residencies of requests that read rows; `None`: a request has none."""
        known = self._stays.get
        stays = [known(req.rid) or self._begins(req) for req in reqs]
        if self._release.rows_by_number:
            for req, stay in zip(reqs, stays, strict=True):
                # The next chunk of a prompt has another row.
                row = self._row_of(req)
                if stay is not None and row is not None and row not in self._rows:
                    self._rows[row], stay.row = stay, row
                    self._row_begins(stay, fresh=True)
        return stays

    def _begins(self, req: Any) -> Stay | None:
        """A request is launched for the first time in its row, or in its session's. `None`: it has no row."""
        raise NotImplementedError

    def _row_begins(self, stay: Stay, fresh: bool) -> None:
        """A request gets a fresh row, or that of its session."""
        self.hooks.later(partial(self._row_begun, stay, stay.row, fresh))

    def _row_begun(self, stay: Stay, row: int, fresh: bool) -> None:
        if fresh:
            self.hooks.emit(Transfer(NEW, stay.name, ROWS, [row]))
        stay.pages[ROWS], table = [row], stay.table(ROWS)
        self._readers[row] = table, stay.name
        self.hooks.emit(Map(table, stay.name, ROWS, 0, [row]))

    def _uses(self, entries: Iterable[Entries]) -> list[Use]:
        """The uses of entries, as far as captures are resolved."""
        uses, readers, unread = [], self._readers, ("", NEW)
        for row, start, stop in entries:
            table, holder = readers.get(row, unread)
            if table:
                uses.append(Use(table, start=start, stop=stop))
            else:
                uses.append(Use(pool=ROWS, pages=[row], start=start, stop=stop, holder=holder))
        return uses

    def _write(self, name: str, entries: Callable[..., Iterable[Entries]], *tensors: Any) -> None:
        """A kernel writes entries, which follow from tensors."""
        uses: list[Use] = []
        self.hooks.later(lambda *copies: uses.extend(self._uses(entries(*copies))), *tensors)
        self._streams.begin(name, [], uses)

    def _row_written(self, entries: tuple[Any, Any]) -> None:
        self._written += 1
        rows, where = entries
        if not isinstance(where, slice):
            if len(rows):
                self._write("write", _single, rows, where)
            return
        if rows is None:
            self._failed_without_row("write")
            return
        row, (start, stop, _) = int(rows), where.indices(self._width)
        if start < stop:
            self._write("write", lambda: [(row, start, stop)])

    def _prefilled(self, *arguments: Any) -> list[Entries]:
        """The entries of the matched prefix, and of the positions to compute."""
        rows, stops = arguments[2], arguments[6]
        return [(row, 0, stop) for row, stop in zip(rows.tolist(), stops.tolist(), strict=True)]

    def _assigned(self, rows: Any, _: Any, starts: Any, stops: Any, *__: Any) -> list[Entries]:
        """The entries of the room for drafts."""
        return [*zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True)]


def _single(rows: Any, where: Any) -> list[Entries]:
    return [(row, at, at + 1) for row, at in zip(rows.tolist(), where.tolist(), strict=True)]
