"""What the scheduler does for hybrid pools: windows that slide, states that are taken early, and the room for both."""

from collections.abc import Iterable

from kvref.scheduler import policy
from kvref.scheduler.req import Req
from kvspec.events import Config, Figures, FreeState, Refusal, Step, SwaEvict, TakeState
from kvspec.pages import ceil_pages, expand
from kvspec.window import evictable_until


class HybridPools:
    """The window pool and the state slots as the scheduler sees them. Without them everything fits and nothing is done.

    An engine that does not tell its figures is asked by trying.
    """

    def __init__(self, step: Step, memory: Config, config: policy.SchedulerConfig) -> None:
        """Do what is to be done through `step`."""
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
        """Take in the figures: what is free or can be given up, less what the admitted ones need for their next step.

        As for pages there are two counts, each too low, and the larger one is taken: the figures do not tell what only
        idle sessions have locked, and what the admitted ones hold and lock is less where they share it.
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
        """Nobody is planned for the next batch."""
        self._window_planned = self._states_planned = 0

    def plan(self, req: Req) -> bool:
        """Plan one more request; whether there is room for all that are planned."""
        if self._memory.sliding_window:
            self._window_planned += self._window_pages(req.length)
        self._states_planned += self._states_each
        return self._window_planned <= self._window_room and self._states_planned <= self._states_room

    def _window_pages(self, length: int) -> int:
        """Window pages that a request of `length` tokens holds or has locked at most, once its window slides."""
        memory = self._memory
        return min(ceil_pages(length, memory.page_size), policy.window_pages_alone(self._config.ahead, memory))

    # Windows

    def slide(self, req: Req, position: int) -> None:
        """Give back the window sides behind a request, once they are worth an operation; it goes on at `position`."""
        memory = self._memory
        if memory.sliding_window:
            behind = evictable_until(position, memory.sliding_window, memory.page_size) - req.swa_evicted_seqlen
            if behind >= max(memory.page_size, memory.sliding_window // policy.WINDOW_SHARE_LEFT):
                self._swa_evict(req, position)

    def slide_all(self, running: Iterable[Req], chunked: Req | None) -> int:
        """Give back all window sides that are left behind, because some are short, and return how many they were."""
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
        """A request that has matched takes the slot into which the store's state is copied, before that is evicted.

        If none is free it takes all it needs with its row.
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
        """Requests have got their rows: the slots that they took early are their records' now."""
        if self._early:
            self._early.difference_update(req for req, _ in batch)

    def give_back(self, batch: list[tuple[Req, int]]) -> None:
        """Who is not in the batch is not admitted now, and gives the slot back that it took early (17850)."""
        if self._early:
            for req in self._early.difference(req for req, _ in batch):
                self._step(FreeState(req.name))
                self._early.remove(req)


def _sum(known: tuple[int | None, ...], otherwise: int) -> int:
    """The sum of figures, or `otherwise` if one is not told."""
    told = [figure for figure in known if figure is not None]
    return sum(told) if len(told) == len(known) else otherwise
