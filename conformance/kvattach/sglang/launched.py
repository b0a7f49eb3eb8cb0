"""Hooks into SGLang's launches: what they show of requests, of their tokens, locks and rows."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

from kvattach.sglang.buffers import Relay
from kvattach.sglang.locks import Locks
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import places_of
from kvattach.sglang.states import Kept
from kvattach.sglang.table import Look
from kvattach.sglang.view import KV, NEW, STATES, WINDOW, Ids, Stay, space
from kvspec.memory.events import Failed, Map, Pages, Transfer, Use

News = tuple[list[int], list[int], list[int], list[int]]
"""The tokens of those requests of a batch that fill further pages with them: the places of these requests in the batch,
the position of the first of them in each request, how many each has, and all tokens, one after the other."""


class Launched(Locks):
    """Follows requests from launch to launch."""

    _relay: Relay | None
    _origins: Origins
    _to_token: Any
    """The release's table of rows."""
    _reading: list[Stay | None]
    """The requests of the forward pass that reads rows next, or has just begun to."""

    def _request(self, req: Any) -> str:
        """The holder of a request with its output so far. A turn that was not launched yet has its session's holder."""
        stay = self._stays.get(req.rid)
        if stay is None:
            return self._of_row(self._row_of(req))
        self._grows(stay, req)
        return stay.name

    def _grows(self, stay: Stay, req: Any) -> None:
        """The output of a request so far is known."""
        news, _ = self._news([req], [stay])
        self.hooks.later(lambda: self._grown(stay, _tokens(news).get(0)))

    def _news(self, reqs: Sequence[Any], stays: Sequence[Stay]) -> tuple[News, list[int]]:
        """Capture the tokens of a batch that fill further pages. Also the places of those who may have another lock."""
        size, locked = self._size, list[int]()
        places, starts, counts, tokens = list[int](), list[int](), list[int](), list[int]()
        for at, (req, stay) in enumerate(zip(reqs, stays, strict=True)):
            lock = getattr(req, "lock", None)
            if lock is None or lock is not stay.lock:
                locked.append(at)
            prompt, output, start = req.origin_input_ids, req.output_ids, stay.captured
            new = len(prompt) + len(output) - start
            if new < size:
                continue
            places.append(at)
            starts.append(start)
            counts.append(new)
            stay.captured = start + new - new % size
            if new > len(output):
                tokens += [*prompt[start:], *output]
            elif new > 1:
                tokens += output[-new:]
            else:
                tokens.append(output[-1])  # much quicker
        return (places, starts, counts, tokens), locked

    def _grown(self, stay: Stay, new: tuple[int, list[int]] | None) -> None:
        """A request has further tokens from a position on, which fill pages; `None`: they fill none."""
        self._tree.used(stay.named, stay.whose)
        if new is not None:
            start, tokens = new
            self.hooks.emit(*stay.grown(tokens, start))

    # Launches

    def reads_rows(self, reqs: list[Any], stops: list[int]) -> None:
        """The next forward pass reads the rows of its requests, on the current stream."""
        self._reading = readers = self._readers_of(reqs)
        ends = [*stops]
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
        """A forward pass was queued on the current stream, after `reads_rows` of it and the waits that it needs.

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
        stays, starts, stops = self._reading, [*starts], [*stops]
        reads: list[Use] = []
        writes: list[Use] = []
        self._capture(*_with_rows(stays, reqs, starts, stops), drafts, reads, writes)
        if STATES in self._allocators:
            self._move_states(stays, reqs, starts, stops, kept)
        self._streams.begin("forward_batch_generation", reads, writes)
        return None if self._relay is None else self._relay.late

    def _capture(
        self,
        stays: list[Stay],
        reqs: list[Any],
        starts: list[int],
        stops: list[int],
        drafts: int,
        reads: list[Use],
        writes: list[Use],
    ) -> None:
        """Capture what a launch shows of requests with rows. The resolution adds the launch's reads and writes."""
        drafted = [max(stop, start + drafts) for start, stop in zip(starts, stops, strict=True)] if drafts else stops
        # The request also holds the room for further drafts.
        rooms = [max(at, req.kv.kv_allocated_len) for at, req in zip(drafted, reqs, strict=True)] if drafts else stops
        news, locked = self._news(reqs, stays)
        owners = self._owners(reqs, stays, locked)
        seen, tensors = self._table.look(stays, rooms)
        indices = [] if self._relay is None else self._relay.reads

        def resolved(*tensors: Any) -> None:
            new, facts = _tokens(news), zip(stays, starts, stops, drafted, seen(*tensors), strict=True)
            for at, (stay, start, stop, most, look) in enumerate(facts):
                self._grown(stay, new.get(at))
                if at in owners:
                    self.hooks.emit(Transfer(owners[at], stay.name))
                stay.reads_from = max(0, start - self._window) // self._size
                self._mapped(stay, look)
                self._launch_uses(stay, start, stop, most, reads, writes)
            reads.extend(indices)

        self.hooks.later(resolved, *tensors)

    def _owners(self, reqs: list[Any], stays: list[Stay], places: list[int]) -> dict[int, str]:
        """Those whose locks requests at these places of a batch take over, by place."""
        owners: dict[int, str] = {}
        for at in places:
            req, stay = reqs[at], stays[at]
            stay.lock, owner = getattr(req, "lock", None), self._adopted(req, stay.name)
            if owner is not None:
                owners[at] = owner
        return owners

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
        seen, tensors = self._table.look([stay], [stop], anew=anew)

        def resolved(*tensors: Any) -> None:
            for look in seen(*tensors):
                self._mapped(stay, look)

        self.hooks.later(resolved, *tensors)

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
        mine: Pages = [page for page in pages if page in fresh]
        stay.pages[pool][first:] = pages
        labels = stay.labels((), first, first + len(pages))
        mapped = Map(stay.table(pool), stay.name, pool, first, [*pages], labels)
        if mine:
            fresh.difference_update(mine)
            self.hooks.emit(Transfer(NEW, stay.name, pool, mine), mapped)
        else:
            self.hooks.emit(mapped)


def _with_rows(
    stays: list[Stay | None], reqs: list[Any], starts: list[int], stops: list[int]
) -> tuple[list[Any], list[Any], list[int], list[int]]:
    """The facts of the requests of a batch that have rows: nearly always of all."""
    if None not in stays:
        return stays, reqs, starts, stops
    has = [stay is not None for stay in stays]
    return [*compress(stays, has)], [*compress(reqs, has)], [*compress(starts, has)], [*compress(stops, has)]


def _tokens(news: News) -> dict[int, tuple[int, list[int]]]:
    """The place of each request that fills further pages -> the position of its first new token, and its new tokens."""
    places, starts, counts, tokens = news
    by_place, at = {}, 0
    for place, start, count in zip(places, starts, counts, strict=True):
        begin, at = at, at + count
        by_place[place] = start, tokens[begin:at]
    return by_place
