"""The state of the manager, and checks that several operations share."""

from collections import deque
from itertools import count

from kvref.launch import Launch
from kvref.parts import make_allocator, make_pool, make_tree_cache
from kvref.request import KvRecord, Request, Run, SessionSlot
from kvref.session_cache import SessionCache
from kvref.window_pool import SWAAllocator
from kvspec.events import Config, Refusal
from kvspec.pages import Runs, compress


class ManagerState:
    """The parts of a manager, and its waiting and running requests."""

    def __init__(self, config: Config) -> None:
        """Everything is free, and there are no requests."""
        self.config = config
        self.allocator = make_allocator(config)
        self.pool = make_pool(config)
        self.tree_cache = make_tree_cache(config, self.pool, self.allocator)
        self.session_cache = SessionCache(
            self.tree_cache,
            self.pool,
            self.allocator,
            publishes_chunks=config.first_turn_chunks == "published",
        )

        self._unkept = count(-1, -1)
        """Unique ids in place of tokens that were accepted past a request's stop."""
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Run] = {}
        self.holders: dict[str, KvRecord] = {}
        """The requests that have a row: those that run, and turns that a slot is lent to."""
        self.chunked: set[str] = set()
        """The requests in the middle of their prefill; at most one (BATCH-2)."""
        self.launches: deque[Launch] = deque()
        """The launches in flight, oldest first."""

    # Look-ups

    def _request(self, req: str) -> Request:
        """The request, or a refusal."""
        request = self.requests.get(req)
        if request is None:
            raise Refusal("OP-1", f"there is no request {req}")
        return request

    def _run(self, req: str) -> Run:
        """The run of a running request, or a refusal."""
        run = self.running.get(req)
        if run is None:
            raise Refusal("OP-1", f"request {req} is not running")
        return run

    def _running_batch(self, reqs: list[str]) -> list[Run]:
        """The runs of all requests of a batch, or a refusal."""
        try:
            return [self.running[req] for req in reqs]
        except KeyError as missing:
            raise Refusal("OP-1", f"request {missing.args[0]} is not running") from None

    def _slot(self, session: str) -> SessionSlot:
        """The slot of an open session, or a refusal."""
        slot = self.session_cache.slots.get(session)
        if slot is None:
            raise Refusal("OP-1", f"there is no session {session}")
        return slot

    # Room

    def _check_room(self, *, pages: int = 0, rows_short: int = 0, states: int = 0) -> None:
        """Refuse an operation that lacks rows, state slots, pages, or the window sides behind these pages (17850)."""
        swa = self._swa
        pages_short = self.allocator.short_of(pages)
        window_short = 0 if swa is None else swa.window.short_of(pages)
        states_short = self.pool.states.short_of(states)
        if pages_short or rows_short or window_short or states_short:
            raise Refusal(
                "CAP-1",
                f"missing: {pages_short} of {pages} pages, {window_short} window pages, {rows_short} rows, "
                f"{states_short} state slots",
                pages_short=pages_short,
                rows_short=rows_short,
                window_short=window_short,
                states_short=states_short,
            )

    # Parts of answers

    @property
    def _swa(self) -> SWAAllocator | None:
        """The allocator, if its pages have window sides."""
        allocator = self.allocator
        return allocator if isinstance(allocator, SWAAllocator) else None

    def _freed(self) -> Runs:
        return compress(self.allocator.drain_freed())

    def _window_freed(self) -> Runs | None:
        swa = self._swa
        return None if swa is None else compress(swa.window.drain_freed())

    def _states_freed(self) -> Runs | None:
        return compress(self.pool.states.drain_freed()) if self.config.num_states else None

    def _window_sides(self, pages: dict[str, list[int]]) -> dict[str, Runs] | None:
        """The window sides of the new pages of each request."""
        swa = self._swa
        return None if swa is None else given({req: swa.windows_of(new) for req, new in pages.items()})


def check_batch(reqs: list[str]) -> None:
    """Refuse an empty batch, and a request that is named twice."""
    if not reqs:
        raise Refusal("OP-1", "the batch is empty")
    if len(set(reqs)) < len(reqs):
        raise Refusal("OP-1", "a request is in the batch twice")


def given(numbers: dict[str, list[int]]) -> dict[str, Runs]:
    """The new numbers of each request, as an answer names them; requests without new ones are omitted."""
    return {req: compress(new) for req, new in numbers.items() if new}
