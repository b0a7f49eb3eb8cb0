"""Hooks into SGLang's table of rows (`req_to_token`): holders of rows, writes into them, and launches that read them.

A row is a page of a separate pool, and each of its entries is a slot. The scheduler writes rows on its own stream, a
launch reads them on the stream of the launches.
"""

from collections.abc import Callable
from typing import Any

from kvattach.hooks import Trace
from kvattach.sglang.release import Release
from kvattach.sglang.residency import Stays
from kvattach.sglang.view import NEW, ROWS, Ids, Stay
from kvspec.memory.events import Map, Pool, Take, Transfer, Use


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

    def _kernel(self, module: Any, name: str, uses: Callable[..., list[Use]]) -> None:
        """Emit the writes of a function's kernel. Writes of single entries are emitted elsewhere."""
        self.hooks.hook(
            module,
            name,
            before=lambda *_: self._written,
            after=lambda before, _, *args: self._write(name, uses(*args)) if before == self._written else None,
        )

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

    def _reader(self, req: Any) -> Stay | None:
        """The residency of a request that reads a row; `None`: it has none."""
        stay = self._stays.get(req.rid)
        if stay is None:
            return self._begins(req)
        if self._release.rows_by_number:
            # The next chunk of a prompt has another row.
            row = self._row_of(req)
            if row is not None and row not in self._rows:
                self._rows[row], stay.row = stay, row
                self._row_begins(stay, fresh=True)
        return stay

    def _begins(self, req: Any) -> Stay | None:
        """A request is launched for the first time in its row, or in its session's. `None`: it has no row."""
        raise NotImplementedError

    def _row_begins(self, stay: Stay, fresh: bool) -> None:
        """A request gets a fresh row, or that of its session."""
        if fresh:
            self.hooks.emit(Transfer(NEW, stay.name, ROWS, [stay.row]))
        stay.pages[ROWS], stay.row_table = [stay.row], stay.table(ROWS)
        self.hooks.emit(Map(stay.row_table, stay.name, ROWS, 0, [stay.row]))

    def _entries(self, row: int, start: int, stop: int) -> Use:
        stay = self._rows.get(row)
        if stay is not None and stay.row_table:
            return Use(table=stay.row_table, start=start, stop=stop)
        return Use(pool=ROWS, pages=[row], start=start, stop=stop, holder=self._of_row(row))

    def _write(self, name: str, uses: list[Use]) -> None:
        self._written += 1
        written = [use for use in uses if use.start < use.stop]
        if written:
            self._streams.begin(name, [], written)

    def _row_written(self, entries: tuple[Any, Any]) -> None:
        rows, where = entries
        if isinstance(where, slice):
            uses = [self._entries(int(rows), *where.indices(self._width)[:2])]
        else:
            pairs = zip(rows.tolist(), where.tolist(), strict=True)
            uses = [self._entries(row, at, at + 1) for row, at in pairs]
        self._write("write", uses)

    def _prefilled(self, *arguments: Any) -> list[Use]:
        """The entries of the matched prefix, and of the positions to compute."""
        rows, stops = arguments[2], arguments[6]
        return [self._entries(row, 0, stop) for row, stop in zip(rows.tolist(), stops.tolist(), strict=True)]

    def _assigned(self, rows: Any, _: Any, starts: Any, stops: Any, *__: Any) -> list[Use]:
        """The entries of the room for drafts."""
        return [self._entries(*entries) for entries in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True)]
