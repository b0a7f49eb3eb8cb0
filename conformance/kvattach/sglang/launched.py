"""Hooks into SGLang's launches: what they show of requests, of their tokens, locks and rows."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvattach.sglang.buffers import Relay
from kvattach.sglang.locks import Locks
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import places_of
from kvattach.sglang.states import Kept
from kvattach.sglang.table import Look
from kvattach.sglang.view import KV, NEW, STATES, WINDOW, Ids, Stay, space
from kvspec.memory.events import Failed, Map, Transfer, Use

NOTHING: tuple[int, Sequence[int]] = (0, ())
"""No further tokens."""


class Launched(Locks):
    """Follows requests from launch to launch."""

    _relay: Relay | None
    _origins: Origins
    _to_token: Any
    """The release's table of rows."""

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
            return NOTHING
        stay.captured = known - known % self._size
        return start, [*prompt[start:], *output] if start < len(prompt) else output[start - len(prompt) :]

    def _grown(self, stay: Stay, start: int, new: Sequence[int]) -> None:
        self._tree.used(stay.named, stay.whose)
        if new:
            self.hooks.emit(*stay.grown(new, start))

    # Launches

    def reads_rows(self, reqs: list[Any], stops: list[int]) -> None:
        """The next forward pass reads the rows of its requests, on the current stream."""
        readers, ends = [self._reader(req) for req in reqs], [*stops]
        reads: list[Use] = []

        def resolved() -> None:
            known = zip(readers, ends, strict=True)
            reads.extend(self._uses((stay.row, 0, stop) for stay, stop in known if stay is not None))

        self.hooks.later(resolved)
        self._streams.begin("forward_batch_generation rows", reads, [])

    def launch(
        self,
        reqs: list[Any],
        starts: list[int],
        stops: list[int],
        kept: Kept | None = None,
        drafts: int = 0,
    ) -> Callable[[], None] | None:
        """A forward pass was queued on the current stream, after `reads_rows` and the waits that it needs.

        `kept` are the states that it keeps. It computes `drafts` tokens from each start on; those from the stop on are
        rejected. A simulated device calls the result, if any, when it reaches the pass.
        """
        with self.hooks.together():
            return self._launched_for(reqs, starts, stops, kept, drafts)

    def _launched_for(
        self, reqs: list[Any], starts: list[int], stops: list[int], kept: Kept | None, drafts: int
    ) -> Callable[[], None] | None:
        """See `launch`."""
        # A list for each fact, and not an object for each request: garbage collection would cost more than the rest.
        stays, starts, stops = [self._stays.get(req.rid) for req in reqs], [*starts], [*stops]
        drafted = [max(stop, start + drafts) for start, stop in zip(starts, stops, strict=True)] if drafts else stops
        # The request also holds the room for further drafts.
        rooms = [max(at, req.kv.kv_allocated_len) for at, req in zip(drafted, reqs, strict=True)] if drafts else stops
        new, owners = self._news(reqs, stays)
        looks, tensors = self._table.look(stays, rooms)
        indices = [] if self._relay is None else self._relay.reads
        reads: list[Use] = []
        writes: list[Use] = []

        def resolved(*tensors: Any) -> None:
            facts = zip(stays, starts, stops, drafted, self._table.seen(looks, *tensors), strict=True)
            for at, (stay, start, stop, most, look) in enumerate(facts):
                if stay is not None:
                    self._grown(stay, *new.get(at, NOTHING))
                    if at in owners:
                        self.hooks.emit(Transfer(owners[at], stay.name))
                    stay.reads_from = max(0, start - self._window) // self._size
                    self._mapped(stay, look)
                    self._launch_uses(stay, start, stop, most, reads, writes)
            reads.extend(indices)

        self.hooks.later(resolved, *tensors)
        if STATES in self._allocators:
            self._move_states(stays, reqs, starts, stops, kept)
        self._streams.begin("forward_batch_generation", reads, writes)
        return None if self._relay is None else self._relay.late

    def _news(
        self, reqs: list[Any], stays: list[Stay | None]
    ) -> tuple[dict[int, tuple[int, Sequence[int]]], dict[int, str]]:
        """The requests of a launch, by their places, that fill further pages, and those whose lock others took."""
        new: dict[int, tuple[int, Sequence[int]]] = {}
        owners: dict[int, str] = {}
        size = self._size
        for at, (req, stay) in enumerate(zip(reqs, stays, strict=True)):
            if stay is None:
                continue
            if stay.captured + size <= len(req.origin_input_ids) + len(req.output_ids):
                new[at] = self._new_tokens(stay, req)
            lock = getattr(req, "lock", None)
            if lock is None or lock is not stay.lock:
                stay.lock, owner = lock, self._adopted(req, stay.name)
                if owner is not None:
                    owners[at] = owner
        return new, owners

    def _launch_uses(
        self, stay: Stay, start: int, stop: int, drafted: int, reads: list[Use], writes: list[Use]
    ) -> None:
        """A launch reads all before a stop, and writes from a start on; writes from the stop on are rejected."""
        reads.append(Use(table=stay.name, stop=stop))
        writes.append(Use(table=stay.name, start=start, stop=stop))
        if self._window:
            reads.append(Use(table=stay.table(WINDOW), start=max(0, start - self._window), stop=stop))
            writes.append(Use(table=stay.table(WINDOW), start=start, stop=stop))
        if drafted > stop:
            writes += self._rejected(stay, stop, drafted)

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
        pools = [KV, WINDOW] if self._window else [KV]
        pages = {pool: stay.pages[pool][first:last] for pool in pools}
        return [
            Use(None, pool, [*pages[pool]], start - begin, stop - begin, labels, holder=stay.name) for pool in pools
        ]

    def _map(self, stay: Stay, stop: int, *, anew: bool = False) -> None:
        """Map the new pages of a row up to a position; `anew`: the engine may have replaced its pages."""
        looks, tensors = self._table.look([stay], [stop], anew=anew)
        self.hooks.later(lambda *seen: self._mapped(stay, next(self._table.seen(looks, *seen))), *tensors)

    def _mapped(self, stay: Stay, look: Look) -> None:
        """Map the new pages of a row, and its window pages from the first read position on."""
        first, entries, sides = look
        self._map_pool(stay, KV, *self._table.pages(stay, first, entries))
        if self._window:
            self._map_pool(stay, WINDOW, *self._table.behind(stay, first, sides))

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
