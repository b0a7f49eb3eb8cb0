"""Hooks into SGLang's launches: what they show of requests, of their tokens, locks and rows."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

from kvattach.sglang.buffers import Relay
from kvattach.sglang.launches import Spans, ends, verified
from kvattach.sglang.locks import Locks
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import places_of
from kvattach.sglang.states import Kept
from kvattach.sglang.table import Look
from kvattach.sglang.view import KV, NEW, STATES, WINDOW, Ids, Stay, space
from kvspec.memory.events import Failed, Map, Pages, Transfer, Use

News = tuple[list[int], dict[int, int], list[int]]
"""The tokens of those requests of a batch that fill further pages with them, after the pages that were filled before:
the places of these requests in the batch, how many each has, unless it has one, and all tokens, one after the other."""


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
        news, _ = self._news([req], [stay], [sys.maxsize])
        self.hooks.later(lambda: self._grown(stay, _tokens(news).get(0)))

    def _news(self, reqs: Sequence[Any], stays: Sequence[Stay], stops: Sequence[int]) -> tuple[News, list[int]]:
        """Capture the tokens of a batch that fill further pages, if pages before these positions are further ones.

        Also the places of those who may have another lock.
        """
        size, locked = self._size, list[int]()
        places, counts, tokens = list[int](), dict[int, int](), list[int]()
        for at, req, stay, stop in zip(range(len(reqs)), reqs, stays, stops, strict=True):
            lock = getattr(req, "lock", None)
            if lock is None or lock is not stay.lock:
                locked.append(at)
            start = stay.captured
            if stop - start < size:
                continue
            prompt, output = req.origin_input_ids, req.output_ids
            new = len(prompt) + len(output) - start
            if new < size:
                continue
            places.append(at)
            if new == 1 and output:  # much quicker
                stay.captured = start + 1
                tokens.append(output[-1])
                continue
            stay.captured = start + new - new % size
            counts[at] = new
            tokens += [*prompt[start:], *output] if new > len(output) else output[-new:]
        return (places, counts, tokens), locked

    def _grown(self, stay: Stay, new: list[int] | None) -> None:
        """A request has further tokens, which fill pages; `None`: they fill none."""
        self._tree.used(stay.named, stay.whose)
        if new is not None:
            start, stay.known = stay.known, stay.known + len(new) - len(new) % self._size
            self.hooks.emit(*stay.grown(new, start))

    # Launches

    def reads_rows(self, reqs: list[Any], stops: list[int]) -> None:
        """The next forward pass reads the rows of its requests, on the current stream.

        On a CPU the pass itself reads them.
        """
        before = [*stops]
        self._row_reads(reqs, lambda: before)

    def reads_drafts(self, reqs: list[Any], drafts: int, starts: Any) -> None:
        """The same of a pass that verifies so many tokens of each request, from the positions in a tensor on."""
        self._row_reads(reqs, partial(ends, drafts), starts)

    def _row_reads(self, reqs: list[Any], before: Callable[..., list[int]], *tensors: Any) -> None:
        self._reading = self._readers_of(reqs)
        if not self._streams.on_host:
            reads = self._reads_of(self._reading, before, *tensors)
            self._streams.begin("forward_batch_generation rows", reads, [])

    def _reads_of(self, stays: list[Stay | None], before: Callable[..., list[int]], *tensors: Any) -> list[Use]:
        """The reads of rows before the positions that follow from tensors, once captures are resolved."""
        reads: list[Use] = []

        def resolved(*copies: Any) -> None:
            known = zip(stays, before(*copies), strict=True)
            reads.extend(self._uses([(stay.row, 0, end) for stay, end in known if stay is not None]))

        self.hooks.later(resolved, *tensors)
        return reads

    def launch(
        self, reqs: list[Any], starts: list[int], stops: list[int], kept: Kept | None = None
    ) -> Callable[[], None] | None:
        """A forward pass was queued on the current stream, after `reads_rows` of it and the waits that it needs.

        `kept` are the states that it keeps. A simulated device calls the result, if any, when it reaches the pass.
        """
        # A list for each fact, and not an object for each request: garbage collection would cost more than the rest.
        starts, stops = [*starts], [*stops]
        return self._launched_for(reqs, stops, lambda: (starts, stops, stops), [], kept)

    def verify(
        self, reqs: list[Any], drafts: int, starts: Any, accepted: Any, kept: Kept | None = None
    ) -> Callable[[], None] | None:
        """The same of a pass that verifies drafts, after `reads_drafts` of it. It accepts so many of each request."""
        # The request also holds the room for further drafts.
        rooms = [req.kv.kv_allocated_len for req in reqs]
        # The engine frees these tensors as without hooks: only copies of them are kept.
        return self._launched_for(reqs, rooms, partial(verified, drafts), [starts, accepted], kept)

    def _launched_for(
        self, reqs: list[Any], rooms: list[int], spans: Spans, tensors: list[Any], kept: Kept | None
    ) -> Callable[[], None] | None:
        """A pass was queued. Its requests have room before these positions, and its spans follow from tensors."""
        with self.hooks.together():
            stays = self._reading
            reads = self._reads_of(stays, lambda *copies: spans(*copies)[2], *tensors) if self._streams.on_host else []
            writes: list[Use] = []
            self._capture(*_with_rows(stays, reqs, rooms, spans), tensors, reads, writes)
            if STATES in self._allocators:
                starts, stops, _ = spans(*tensors)
                self._move_states(stays, reqs, starts, stops, kept)
            self._streams.begin("forward_batch_generation", reads, writes)
        return None if self._relay is None else self._relay.late

    def _capture(
        self,
        stays: list[Stay],
        reqs: list[Any],
        rooms: list[int],
        spans: Spans,
        tensors: list[Any],
        reads: list[Use],
        writes: list[Use],
    ) -> None:
        """Capture what a launch shows of requests with rows. The resolution adds the launch's reads and writes."""
        news, locked = self._news(reqs, stays, rooms)
        owners = self._owners(reqs, stays, locked)
        seen, entries = self._table.look(stays, rooms)
        indices = [] if self._relay is None else self._relay.reads
        self._launched += bool(tensors)
        number, late = self._launched, len(tensors)

        def resolved(*copies: Any) -> None:
            starts, stops, drafted = spans(*copies[:late])
            new = _tokens(news)
            for at, (stay, look) in enumerate(zip(stays, seen(*copies[late:]), strict=True)):
                if at in new:
                    self._grown(stay, new[at])
                if at in owners:
                    self.hooks.emit(Transfer(owners[at], stay.name))
                if self._window:
                    stay.reads_from = max(0, starts[at] - self._window) // self._size
                if look[1]:
                    self._mapped(stay, look)
            reads.extend(self._launch_reads(stays, starts, stops))
            reads.extend(indices)
            writes.extend(self._launch_writes(stays, starts, stops, drafted, number))

        self.hooks.later(resolved, *tensors, *entries)

    def _owners(self, reqs: list[Any], stays: list[Stay], places: list[int]) -> dict[int, str]:
        """Those whose locks requests at these places of a batch take over, by place."""
        owners: dict[int, str] = {}
        for at in places:
            req, stay = reqs[at], stays[at]
            stay.lock, owner = getattr(req, "lock", None), self._adopted(req, stay.name)
            if owner is not None:
                owners[at] = owner
        return owners

    def _launch_reads(self, stays: list[Stay], starts: list[int], stops: list[int]) -> list[Use]:
        """A launch reads all before each stop."""
        reads = [Use(stay.name, stop=stop) for stay, stop in zip(stays, stops, strict=True)]
        if self._window:
            for stay, start, stop in zip(stays, starts, stops, strict=True):
                reads.append(Use(stay.table(WINDOW), start=max(0, start - self._window), stop=stop))
        return reads

    def _launch_writes(
        self, stays: list[Stay], starts: list[int], stops: list[int], drafted: list[int], number: int
    ) -> list[Use]:
        """A launch writes from each start on; writes from the stop on are rejected drafts, named by its number."""
        writes = [
            Use(stay.name, start=start, stop=stop) for stay, start, stop in zip(stays, starts, stops, strict=True)
        ]
        if self._window:
            for stay, start, stop in zip(stays, starts, stops, strict=True):
                writes.append(Use(stay.table(WINDOW), start=start, stop=stop))
        if drafted is not stops:
            for stay, stop, most in zip(stays, stops, drafted, strict=True):
                if most > stop:
                    writes += self._rejected(stay, stop, most, number)
        return writes

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

    def _rejected(self, stay: Stay, start: int, stop: int, number: int) -> list[Use]:
        """The writes of a launch's rejected drafts, with labels that no read expects."""
        first, last = start // self._size, (stop - 1) // self._size + 1
        labels = [f"{stay.name} draft {number}"] * (last - first)
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
        start, entries, sides = look
        first, pages = self._table.pages(stay, start, entries)
        if pages:
            self._map_pool(stay, KV, first, pages)
        if self._window:
            first, pages = self._table.behind(stay, start, sides)
            if pages:
                self._map_pool(stay, WINDOW, first, pages)

    def _map_pool(self, stay: Stay, pool: str, first: int, pages: Ids) -> None:
        """The table of a request names these pages from page `first` on, and no longer what it named there."""
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
    stays: list[Stay | None], reqs: list[Any], rooms: list[int], spans: Spans
) -> tuple[list[Any], list[Any], list[int], Spans]:
    """The facts of the requests of a batch that have rows: nearly always of all."""
    if None not in stays:
        return stays, reqs, rooms, spans
    has = [stay is not None for stay in stays]

    def of_these(*copies: Any) -> tuple[list[int], list[int], list[int]]:
        starts, stops, drafted = ([*compress(facts, has)] for facts in spans(*copies))
        return starts, stops, drafted

    return [*compress(stays, has)], [*compress(reqs, has)], [*compress(rooms, has)], of_these


def _tokens(news: News) -> dict[int, list[int]]:
    """The place of each request that fills further pages -> its new tokens."""
    places, counts, tokens = news
    by_place, at = {}, 0
    for place in places:
        begin, at = at, at + counts.get(place, 1)
        by_place[place] = tokens[begin:at]
    return by_place
