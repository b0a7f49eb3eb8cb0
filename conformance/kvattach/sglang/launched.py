"""Hooks into SGLang's launches: what they show of requests, of their tokens, locks and rows."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kvattach.sglang.buffers import Relay
from kvattach.sglang.locks import Locks
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import places_of
from kvattach.sglang.states import Kept
from kvattach.sglang.table import Table, shared
from kvattach.sglang.view import KV, NEW, STATES, WINDOW, Ids, Stay, space
from kvspec.memory.events import Failed, Map, Transfer, Use


class Shown(NamedTuple):
    """A request as a launch shows it, in tokens."""

    stay: Stay
    new: tuple[int, Sequence[int]]
    """The tokens that fill further pages, after the position of the first."""
    owner: str | None
    """For whom its lock was taken; `None`: for itself."""
    start: int
    stop: int
    drafted: int
    """The last position (exclusive) that is written, with rejected drafts."""


class Launched(Locks):
    """Follows requests from launch to launch."""

    _table: Table
    _relay: Relay | None
    _origins: Origins
    _to_token: Any
    """The release's table of rows."""
    _sides: Any
    """Slot -> its slot in the window's pool; `None` without windows."""

    def _request(self, req: Any) -> str:
        """The holder of a request with its output so far. A turn that was not launched yet has its session's holder."""
        stay = self._stays.get(req.rid)
        if stay is None:
            return self._of_row(self._row_of(req))
        self._grows(stay, req)
        return stay.name

    def _grows(self, stay: Stay, req: Any) -> None:
        """The output of a request so far is known."""
        self.hooks.later(partial(self._grown, stay, *self._new_tokens(stay, req)))

    def _new_tokens(self, stay: Stay, req: Any) -> tuple[int, Sequence[int]]:
        """The tokens of a request that fill further pages, and the position of the first; none if they fill none."""
        start, prompt, output = stay.captured, req.origin_input_ids, req.output_ids
        known = len(prompt) + len(output)
        if start + self._size > known:
            return start, ()
        stay.captured = known - known % self._size
        return start, [*prompt[start:], *output] if start < len(prompt) else output[start - len(prompt) :]

    def _grown(self, stay: Stay, start: int, new: Sequence[int]) -> None:
        self._tree.used(stay.named, stay.whose)
        if new:
            self.hooks.emit(*stay.grown(new, start))

    # Launches

    def reads_rows(self, reqs: list[Any], stops: list[int]) -> None:
        """The next forward pass reads the rows of its requests, on the current stream."""
        readers = [(self._reader(req), stop) for req, stop in zip(reqs, stops, strict=True)]
        entries = [(stay.row, 0, stop) for stay, stop in readers if stay is not None]
        reads: list[Use] = []
        self.hooks.later(lambda: reads.extend(self._uses(entries)))
        self._streams.begin("forward_batch_generation rows", reads, [])

    def launch(
        self,
        reqs: list[Any],
        starts: list[int],
        stops: list[int],
        kept: list[Kept | None] | None = None,
        drafts: int = 0,
    ) -> Callable[[], None] | None:
        """A forward pass was queued on the current stream, after `reads_rows` and the waits that it needs.

        `kept` are the states that it keeps. It computes `drafts` tokens from each start on; those from the stop on are
        rejected. A simulated device calls the result, if any, when it reaches the pass.
        """
        with self.hooks.together():
            return self._launched_for(reqs, starts, stops, kept, drafts)

    def _launched_for(
        self, reqs: list[Any], starts: list[int], stops: list[int], kept: list[Kept | None] | None, drafts: int
    ) -> Callable[[], None] | None:
        """See `launch`."""
        moves = []
        shown: list[Shown] = []
        wanted: list[tuple[Stay, int]] = []
        for req, start, stop in zip(reqs, starts, stops, strict=True):
            stay = self._stays.get(req.rid)
            if stay is None:
                continue
            drafted = max(stop, start + drafts)
            shown.append(Shown(stay, self._new_tokens(stay, req), self._adopted(req, stay.name), start, stop, drafted))
            # The request also holds the room for further drafts.
            wanted.append((stay, max(drafted, req.kv.kv_allocated_len) if drafts else drafted))
            moves.append((stay, req, start, stop))
        looks, tensors = self._table.look(wanted)
        indices = [] if self._relay is None else self._relay.reads
        reads: list[Use] = []
        writes: list[Use] = []

        def resolved(*tensors: Any) -> None:
            for one, (_, stop), look in zip(shown, wanted, self._table.seen(looks, *tensors), strict=True):
                self._show(one, stop, look)
                self._launch_uses(one, reads, writes)
            reads.extend(indices)

        self.hooks.later(resolved, *tensors)
        if STATES in self._allocators:
            self._move_states(moves, kept or [None] * len(moves))
        self._streams.begin("forward_batch_generation", reads, writes)
        return None if self._relay is None else self._relay.late

    def _show(self, shown: Shown, stop: int, look: tuple[int, bytes]) -> None:
        """A launch has shown a request's tokens, its lock, and its row up to a position."""
        stay = shown.stay
        self._grown(stay, *shown.new)
        if shown.owner is not None:
            self.hooks.emit(Transfer(shown.owner, stay.name))
        stay.reads_from = max(0, shown.start - self._window) // self._size
        self._mapped(stay, stop, look)

    def _launch_uses(self, shown: Shown, reads: list[Use], writes: list[Use]) -> None:
        """A launch reads all before a request's stop, and writes from its start on."""
        stay, start, stop = shown.stay, shown.start, shown.stop
        reads.append(Use(table=stay.name, stop=stop))
        writes.append(Use(table=stay.name, start=start, stop=stop))
        if self._sides is not None:
            reads.append(Use(table=stay.table(WINDOW), start=max(0, start - self._window), stop=stop))
            writes.append(Use(table=stay.table(WINDOW), start=start, stop=stop))
        if shown.drafted > stop:
            writes += self._rejected(stay, stop, shown.drafted)

    def _begins(self, req: Any) -> Stay | None:
        """A request is launched for the first time in its row, or in its session's. `None`: it has no row."""
        row = self._row_of(req)
        if row is None:
            self.hooks.emit(Failed("assertion", f"{req.rid} is launched without a row"))
            return None
        stay = self._stays[req.rid] = Stay(
            f"{req.rid}.{next(self._numbers)}", self._size, req.rid, self._origins.whose(req), space(req)
        )
        stay.images = places_of(req)
        before, stay.row = self._rows.get(row), row
        self._rows[row] = stay
        if before is not None and not before.rid:
            self._lent(before, stay, req)
        elif not self._release.checkpoints:
            self._adopt_path(req, stay.name)
        self._row_begins(stay, fresh=before is None)
        return stay

    def _rejected(self, stay: Stay, start: int, stop: int) -> list[Use]:
        """The writes of rejected drafts, with labels that no read expects."""
        self._launched += 1
        first, last = start // self._size, (stop - 1) // self._size + 1
        labels = [f"{stay.name} draft {self._launched}"] * (last - first)
        begin = first * self._size
        pools = [KV] if self._sides is None else [KV, WINDOW]
        pages = {pool: stay.pages[pool][first:last] for pool in pools}
        return [
            Use(None, pool, [*pages[pool]], start - begin, stop - begin, labels, holder=stay.name) for pool in pools
        ]

    def _map(self, stay: Stay, stop: int, *, anew: bool = False) -> None:
        """Map the new pages of a row up to a position; `anew`: the engine may have replaced its pages."""
        (look,), tensors = self._table.look([(stay, stop)], anew=anew)
        self.hooks.later(lambda *seen: self._mapped(stay, stop, next(self._table.seen([look], *seen))), *tensors)

    def _mapped(self, stay: Stay, stop: int, look: tuple[int, bytes]) -> None:
        """Map the new pages of a row, and its window pages from the first read position on."""
        self._map_pool(stay, KV, *self._table.pages(stay, *look))
        if self._sides is not None:
            first, known = stay.reads_from, stay.pages.setdefault(WINDOW, [])
            firsts = self._to_token.req_to_token[stay.row, : stop : self._size]
            behind = self._sides[firsts.long()] // self._size
            passed = known[:first] + [0] * (min(first, len(behind)) - len(known))
            pages = passed + behind.tolist()[first:]
            same = shared(known, pages)
            self._map_pool(stay, WINDOW, same, pages[same:])

    def _map_pool(self, stay: Stay, pool: str, first: int, pages: Ids) -> None:
        """The table of a request names these pages from page `first` on, and no longer what it named there."""
        if not pages:
            return
        fresh = self._fresh[pool]
        mine = [page for page in pages if page in fresh]
        if mine:
            fresh.difference_update(mine)
            self.hooks.emit(Transfer(NEW, stay.name, pool, [*mine]))
        stay.pages[pool][first:] = pages
        labels = stay.labels((), first, first + len(pages))
        self.hooks.emit(Map(stay.table(pool), stay.name, pool, first, [*pages], labels))
