"""Hooks into SGLang's launches: what they show of requests, of their tokens, locks and rows."""

from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

from kvattach.sglang.buffers import Relay
from kvattach.sglang.locks import Locks
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import places_of
from kvattach.sglang.states import Kept
from kvattach.sglang.table import Look
from kvattach.sglang.view import KV, NEW, STATES, WINDOW, Ids, Stay, space
from kvspec.memory.events import Failed, Map, Pages, Transfer, Use

OUTPUT, PROMPT, LOCK = attrgetter("output_ids"), attrgetter("origin_input_ids"), attrgetter("lock")

Texts = tuple[list[Sequence[int]], list[int]]
"""The prompts of some requests, or the outputs, and their numbers of tokens. Later a text may have more at its end."""


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
        prompts, givens = _texts(PROMPT, [req])
        outputs, counts = _texts(OUTPUT, [req])
        self.hooks.later(lambda: self._grown(stay, prompts[0], givens[0], outputs[0], counts[0], always=True))

    def _grown(
        self, stay: Stay, prompt: Sequence[int], given: int, output: Sequence[int], count: int, *, always: bool = False
    ) -> None:
        """A request has so many given tokens, and a count of output. Events follow if they fill pages, or `always`."""
        start, size = stay.known, self._size
        fills = given + count - start >= size
        if fills or always:
            self._tree.used(stay.named, stay.whose)
        if fills:
            new = [*prompt[start:given], *output[max(0, start - given) : count]]
            stay.known += len(new) - len(new) % size
            self.hooks.emit(*stay.grown(new, start))

    # Launches

    def reads_rows(self, reqs: list[Any], stops: list[int]) -> None:
        """The next forward pass reads the rows of its requests, on the current stream.

        On a CPU the pass itself reads them.
        """
        self._reading = self._readers_of(reqs)
        if not self._streams.on_host:
            self._streams.begin("forward_batch_generation rows", self._reads_of(self._reading, [*stops]), [])

    def _reads_of(self, stays: list[Stay | None], stops: list[int]) -> list[Use]:
        """The reads of rows before these positions, once captures are resolved."""
        reads: list[Use] = []

        def resolved() -> None:
            known = zip(stays, stops, strict=True)
            reads.extend(self._uses([(stay.row, 0, stop) for stay, stop in known if stay is not None]))

        self.hooks.later(resolved)
        return reads

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
        reads = self._reads_of(stays, stops) if self._streams.on_host else []
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
        prompts, givens = _texts(PROMPT, reqs)
        outputs, counts = _texts(OUTPUT, reqs)
        owners = self._owners(reqs, stays)
        seen, tensors = self._table.look(stays, rooms)
        indices = [] if self._relay is None else self._relay.reads

        def resolved(*tensors: Any) -> None:
            for at, (stay, look) in enumerate(zip(stays, seen(*tensors), strict=True)):
                if stops[at] - stay.known >= self._size:
                    self._grown(stay, prompts[at], givens[at], outputs[at], counts[at])
                if at in owners:
                    self.hooks.emit(Transfer(owners[at], stay.name))
                if self._window:
                    stay.reads_from = max(0, starts[at] - self._window) // self._size
                if look[1]:
                    self._mapped(stay, look)
            reads.extend(self._launch_reads(stays, starts, stops))
            reads.extend(indices)
            writes.extend(self._launch_writes(stays, starts, stops, drafted))

        self.hooks.later(resolved, *tensors)

    def _owners(self, reqs: list[Any], stays: list[Stay]) -> dict[int, str]:
        """Those whose locks requests of a batch take over, by the request's place."""
        owners: dict[int, str] = {}
        if not self._release.checkpoints:  # locks have no owner
            return owners
        for at, lock, stay in zip(range(len(reqs)), map(LOCK, reqs), stays, strict=True):
            if lock is None or lock is not stay.lock:
                stay.lock, owner = lock, self._adopted(reqs[at], stay.name)
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

    def _launch_writes(self, stays: list[Stay], starts: list[int], stops: list[int], drafted: list[int]) -> list[Use]:
        """A launch writes from each start on; writes from the stop on are rejected drafts."""
        writes = [
            Use(stay.name, start=start, stop=stop) for stay, start, stop in zip(stays, starts, stops, strict=True)
        ]
        if self._window:
            for stay, start, stop in zip(stays, starts, stops, strict=True):
                writes.append(Use(stay.table(WINDOW), start=start, stop=stop))
        if drafted is not stops:
            for stay, stop, most in zip(stays, stops, drafted, strict=True):
                if most > stop:
                    writes += self._rejected(stay, stop, most)
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
    stays: list[Stay | None], reqs: list[Any], starts: list[int], stops: list[int]
) -> tuple[list[Any], list[Any], list[int], list[int]]:
    """The facts of the requests of a batch that have rows: nearly always of all."""
    if None not in stays:
        return stays, reqs, starts, stops
    has = [stay is not None for stay in stays]
    return [*compress(stays, has)], [*compress(reqs, has)], [*compress(starts, has)], [*compress(stops, has)]


def _texts(name: "attrgetter[Sequence[int]]", reqs: list[Any]) -> Texts:
    texts = [*map(name, reqs)]
    return texts, [*map(len, texts)]
