"""The scheduler's part for hybrid pools: sliding windows, early state slots, and the room for both."""

from collections.abc import Iterable

from kvref.scheduler import policy
from kvref.scheduler.req import Req
from kvspec.events import Config, Figures, FreeState, Refusal, Step, SwaEvict, TakeState
from kvspec.pages import ceil_pages, expand
from kvspec.window import evictable_until


class HybridPools:
    """The scheduler's view of the window pool and the state slots. Without them everything fits.

    If an engine reports no figures, room is found by trying.
    """

    def __init__(self, step: Step, memory: Config, config: policy.SchedulerConfig) -> None:
        """Carry out operations through `step`."""
        self._step = step
        self._memory = memory
        self._config = config
        self._states_each = 1 + memory.tracking_states if memory.num_states else 0
        self._window_room = self._states_room = 0
        self._window_planned = self._states_planned = 0
        self._early: set[Req] = set()
        """Requests that have taken a state slot before their row."""

    # Room

    def measure(self, figures: Figures, running: list[Req]) -> None:
        """Take in the figures: the room is free and evictable memory, less the next step of the admitted requests.

        As for pages there are two counts, each too low, and the larger one is used: the figures omit memory that only
        idle sessions have locked, and admitted requests hold and lock less if they share some.
        """
        memory = self._memory
        if memory.sliding_window:
            known = (figures.window_available, figures.window_evictable, figures.window_session_held)
            held = sum(self._window_pages(req.length) for req in running)
            lengths, decode_len = [req.length - 1 for req in running], self._config.decode_len
            reserved = policy.next_decode_pages(lengths, decode_len, memory.page_size)
            room = _sum(known, memory.num_window_pages * memory.page_size) // memory.page_size
            self._window_room = max(room, memory.num_window_pages - held) - reserved
        if memory.num_states:
            known = (figures.states_available, figures.states_evictable, figures.states_sessions)
            held = (self._states_each + memory.prefix_cache) * len(running)
            self._states_room = max(_sum(known, memory.num_states), memory.num_states - held)

    def begin_plan(self) -> None:
        """Begin the plan of the next batch."""
        self._window_planned = self._states_planned = 0

    def plan(self, req: Req) -> bool:
        """Plan one more request. Returns whether all planned requests fit."""
        if self._memory.sliding_window:
            self._window_planned += self._window_pages(req.length)
        self._states_planned += self._states_each
        return self._window_planned <= self._window_room and self._states_planned <= self._states_room

    def _window_pages(self, length: int) -> int:
        """The most window pages that a request of `length` tokens holds or has locked, once its window slides."""
        memory = self._memory
        return min(ceil_pages(length, memory.page_size), policy.window_pages_alone(self._config.ahead, memory))

    # Windows

    def slide(self, req: Req, position: int) -> None:
        """Free the window sides behind a request, once they are worth an operation; its next step is at `position`."""
        memory = self._memory
        if memory.sliding_window:
            behind = evictable_until(position, memory.sliding_window, memory.page_size) - req.swa_evicted_seqlen
            if behind >= max(memory.page_size, memory.sliding_window // policy.WINDOW_SHARE_LEFT):
                self._swa_evict(req, position)

    def slide_all(self, running: Iterable[Req], chunked: Req | None) -> int:
        """Free all window sides behind the windows, because some are short. Returns their number."""
        freed = sum(self._swa_evict(req, req.length - 1) for req in running)
        return freed if chunked is None else freed + self._swa_evict(chunked, chunked.seq_len)

    def _swa_evict(self, req: Req, position: int) -> int:
        until = evictable_until(position, self._memory.sliding_window, self._memory.page_size)
        if until <= req.swa_evicted_seqlen:
            return 0
        answer = self._step(SwaEvict(req.name))
        req.swa_evicted_seqlen = until if answer.evicted_len is None else answer.evicted_len
        return len(expand(answer.window_freed or ()))

    # States

    def take_state(self, req: Req) -> None:
        """Take the slot for a copy of the matched state, before that is evicted.

        If no slot is free, the request takes all of its slots with its row.
        """
        if self._states_each and req.prefix_len and not req.lent and req not in self._early:
            try:
                self._step(TakeState(req.name))
            except Refusal as refusal:
                if not refusal.refused.states_short:
                    raise
            else:
                self._early.add(req)

    def admitted(self, batch: list[tuple[Req, int]]) -> None:
        """Record that requests have their rows: their early slots are now their records'."""
        if self._early:
            self._early.difference_update(req for req, _ in batch)

    def give_back(self, batch: list[tuple[Req, int]]) -> None:
        """Free the early slots of all requests that are not in the batch, which are not admitted now (17850)."""
        if self._early:
            for req in self._early.difference(req for req, _ in batch):
                self._step(FreeState(req.name))
                self._early.remove(req)


def _sum(known: tuple[int | None, ...], otherwise: int) -> int:
    """The sum of figures, or `otherwise` if one was not reported."""
    reported = [figure for figure in known if figure is not None]
    return sum(reported) if len(reported) == len(known) else otherwise
