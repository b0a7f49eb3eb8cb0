"""The tiered engine behind the operations of `kvspec.events`, so that `kvref.scheduler` can drive it.

The scheduler overlaps: launches complete late. Between two operations transfers complete, in order on each stream and
in any order between streams, and pages go to the storage. Rows are memory too: they are written on their own stream, a
launch waits for the writes, and rows that it reads are withheld, or rewritten only after it.
"""

from random import Random

from kvref.req_to_token_pool import ReqToTokenPool
from kvref.tiers.engine import Part, TieredEngine
from kvref.tiers.state import FORWARD, Emit, Node, Request, Run, Sizes
from kvref.tiers.transfers import stream
from kvspec.events import (
    A,
    Config,
    DecodeAnswer,
    Done,
    EvictAnswer,
    ExtendAnswer,
    Figures,
    MatchAnswer,
    Operation,
    PublishAnswer,
    Refusal,
    ReleaseAnswer,
)
from kvspec.memory.events import Begin, Pool, Release, Take, Use

ROWS = "rows"
"""The pool of rows, and the stream on which they are written."""


class RowedEngine(TieredEngine):
    """A tiered engine whose tables are in rows, which launches read."""

    rows_type = ReqToTokenPool

    def __init__(self, sizes: Sizes, emit: Emit, num_rows: int) -> None:
        """Nothing is cached, all rows are free."""
        super().__init__(sizes, emit)
        self.rows = self.rows_type(num_rows)
        self.row_of: dict[str, int] = {}
        """Run -> its row."""

    def admit(self, name: str, length: int | None = None) -> bool:
        """As `TieredEngine.admit`, with a row."""
        if not self.rows.available or not super().admit(name, length):
            return False
        request = self.requests[name]
        assert request.run is not None
        (row,) = self.rows.alloc([None]) or [0]
        self.row_of[request.run.name] = row
        self.emit(Take(request.run.name, ROWS, [row]))
        self.write_row(request.run, 0, len(request.table))
        return True

    def grow(self, run: Run, request: Request, end: int) -> None:
        """As `TieredEngine.grow`; the row lists the new pages."""
        first = len(request.table)
        super().grow(run, request, end)
        self.write_row(run, first, len(request.table))

    def write_row(self, run: Run, start: int, stop: int) -> None:
        """Write entries of a row."""
        if start < stop:
            row = Use(None, ROWS, [self.row_of[run.name]], start, stop, holder=run.name)
            self.emit(Begin(self.new_id(), ROWS, writes=[row]))

    def launch(self, parts: list[Part]) -> int:
        """As `TieredEngine.launch`; the pass waits for the writes of its rows, and reads them until it completes."""
        self.transfers.fence(FORWARD, ROWS)
        self.rows.begin_read({self.row_of[part.run.name]: part.end for part in parts})
        return super().launch(parts)

    def reads(self, parts: list[Part]) -> list[Use]:
        """As `TieredEngine.reads`, and of each row the entries of its positions."""
        size = self.sizes.page_size
        rows = [(self.row_of[part.run.name], -(-part.end // size), part.run.name) for part in parts]
        return super().reads(parts) + [Use(None, ROWS, [row], 0, stop, holder=run) for row, stop, run in rows]

    def computed(self, id: int) -> list[tuple[Part, Request]]:
        """As `TieredEngine.computed`; rows that were withheld for the pass become free."""
        still = super().computed(id)
        self.rows.end_read()
        return still

    def exchange(self, request: Request, index: int, node: Node) -> None:
        """As `TieredEngine.exchange`; the row is rewritten after passes in flight have read it."""
        super().exchange(request, index, node)
        assert request.run is not None
        self.transfers.fence(ROWS, FORWARD)
        self.write_row(request.run, index, index + 1)

    def retract(self, name: str) -> None:
        """As `TieredEngine.retract`; the row becomes free, or is withheld while a pass in flight reads it."""
        run = self.requests[name].run
        if run is not None:
            row = self.row_of.pop(run.name)
            self.emit(Release(run.name, ROWS, [row]))
            self.rows.free(row)
        super().retract(name)


class TieredManager:
    """A memory manager with a host tier, for plain requests."""

    def __init__(
        self, config: Config, sizes: Sizes, emit: Emit, random: Random, engine: type[RowedEngine] = RowedEngine
    ) -> None:
        """Everything is free. `random` draws the completions of transfers; `config` has the number of rows."""
        self.config, self.sizes, self.emit, self.random = config, sizes, emit, random
        self.engine = engine(sizes, emit, config.num_rows)
        self.matched: dict[str, int] = {}
        """Request -> the length of its match, in tokens, until it is extended."""
        self.prepared: dict[str, Part] = {}
        self.passes: dict[int, int] = {}
        """Launch -> the number of its pass."""

    def pools(self) -> dict[str, Pool]:
        """The pools of the events."""
        entries = -(-self.config.max_context_len // self.sizes.page_size)
        return self.sizes.pools() | {ROWS: Pool(entries, self.config.num_rows, first_page=0)}

    def __call__(self, op: Operation[A], /) -> A:
        """Carry an operation out; a `kvspec.events.Step`.

        Raises:
            Refusal: there is no room, no such request, or the matched prefix has been evicted.
        """
        self.progress()
        arguments = [getattr(op, name) for name in op.__struct_fields__ if name not in ("obs", "refused")]
        answer: A = getattr(self, str(op.__struct_config__.tag))(*arguments)
        self.engine.count()
        return answer

    def progress(self) -> None:
        """Complete some transfers, in any order that their streams allow, and start others."""
        while self.engine.transfers.in_flight and self.random.random() < 0.3:
            self.see_transfer()
        if self.random.random() < 0.2:
            self.engine.store()

    def see_transfer(self) -> None:
        """Complete the oldest transfer of a random stream."""
        oldest: dict[str, int] = {}
        for id, transfer in self.engine.transfers.in_flight.items():
            oldest.setdefault(stream(transfer), id)
        self.engine.see_transfer(oldest[self.random.choice(list(oldest))])

    def drain(self) -> None:
        """Complete all transfers, and evict the cache."""
        self.evict(self.sizes.device_pages)
        while self.engine.transfers.in_flight:
            self.see_transfer()
        while self.engine.evict_host():
            self.engine.count()
        self.engine.count()
        self.engine.check_evicted()

    # Operations

    def submit(self, req: str, tokens: list[int], session: str | None = None) -> Done:
        """Queue a request, and prefetch its prefix from the storage to the host."""
        assert session is None, "there are no sessions"
        self.engine.submit(req, tokens, self.config.max_context_len)
        self.engine.prefetch(tokens)
        return Done()

    def match_prefix(self, req: str) -> MatchAnswer:
        """Match the prefix on the device and on the host."""
        nodes = self.engine.match(self._request(req).tokens[:-1])
        self.matched[req] = len(nodes) * self.sizes.page_size
        return MatchAnswer(self.matched[req], self.matched[req])

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Allocate rows, loads and pages up to each length; for all requests or for none."""
        fresh = {req: self._matched(req) for req, _ in reqs if self._request(req).run is None}
        rows_short = len(fresh) - self.engine.rows.available
        if rows_short > 0:
            raise Refusal("CAP-1", f"{rows_short} rows are short", rows_short=rows_short)
        loads = sum(node.device is None for nodes in fresh.values() for node in nodes)
        ends = dict(reqs)
        self._check_room(ends, loads - sum(map(len, fresh.values())))
        for req in fresh:
            self.engine.admit(req, self.matched.pop(req))
        self._prepare(ends)
        return ExtendAnswer()

    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        """Allocate one further position of each request."""
        assert n == 1, "there is no speculative decoding"
        ends = {req: self._request(req).queued + 1 for req in reqs}
        self._check_room(ends)
        self._prepare(ends)
        return DecodeAnswer()

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """Queue a pass over the prepared positions."""
        self.passes[launch] = self.engine.launch([self.prepared.pop(req) for req in reqs])
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> Done:
        """Process a completed launch: deliver its tokens."""
        id = self.passes.pop(launch)
        for part, request in self.engine.computed(id):
            if part.run.request in tokens:
                self.engine.deliver(id, part, request, tokens[part.run.request])
        return Done()

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """Publish the positions that the host has seen computed."""
        self.engine.publish(self._request(req))
        return PublishAnswer()

    def finish(self, req: str) -> ReleaseAnswer:
        """Publish the computed positions, and release the request's memory."""
        self.engine.publish(self._request(req))
        self.engine.leave(req)
        return ReleaseAnswer()

    def retract(self, req: str) -> ReleaseAnswer:
        """Release a request's memory; it waits again."""
        self._request(req)
        self.prepared.pop(req, None)
        self.engine.retract(req)
        return ReleaseAnswer()

    def abort(self, req: str) -> ReleaseAnswer:
        """End a request, and release its memory."""
        self._request(req)
        self.prepared.pop(req, None)
        self.engine.leave(req)
        return ReleaseAnswer()

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        """Evict device pages; if one must be copied first, the host waits for the copy."""
        before = len(self.engine.free.pages)
        while len(self.engine.free.pages) < before + n:
            if not self.engine.evict():
                if not self.engine.transfers.in_flight:
                    break
                self.see_transfer()
        return EvictAnswer([0] * max(0, len(self.engine.free.pages) - before))

    def report(self, mode: str = "busy") -> Figures:
        """Report the free pages; evictable pages are found by trying."""
        return Figures(available=len(self.engine.free.pages) * self.sizes.page_size)

    def _request(self, req: str) -> Request:
        if req not in self.engine.requests:
            raise Refusal("OP-1", f"there is no request {req}")
        return self.engine.requests[req]

    def _matched(self, req: str) -> list[Node]:
        nodes = self.engine.match(self._request(req).tokens[: self.matched[req]])
        if len(nodes) * self.sizes.page_size < self.matched[req]:
            raise Refusal("STORE-5", f"what {req} matched has been evicted: match again")
        return nodes

    def _check_room(self, ends: dict[str, int], more: int = 0) -> None:
        """Refuse an operation that lacks pages for positions up to `ends`, and `more` pages."""
        needed = more + sum(self.engine.missing(self._request(req), end) for req, end in ends.items())
        short = needed - len(self.engine.free.pages)
        if short > 0:
            raise Refusal("CAP-1", f"{short} pages are short", pages_short=short)

    def _prepare(self, ends: dict[str, int]) -> None:
        for req, end in ends.items():
            request = self._request(req)
            assert request.run is not None, "it was extended"
            self.engine.grow(request.run, request, end)
            self.prepared[req] = Part(request.run, request.queued, end, samples=True)
