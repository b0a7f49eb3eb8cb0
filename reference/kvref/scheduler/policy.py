"""The scheduler's decisions as functions of a few integers: admission, prefill lengths, reservations."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvspec.events import Config
from kvspec.pages import ceil_pages

INIT_NEW_TOKEN_RATIO = 0.7
"""The share of the remaining output tokens that is reserved at first, and again after a retract."""
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
"""The factor of that share in the long run: most requests end before most of the others have grown."""
NEW_TOKEN_RATIO_DECAY_STEPS = 600
"""Decode steps from the first share to the long run's."""
WINDOW_SHARE_LEFT = 4
"""A window slides once a page, and this fraction of the window, is behind it: not at every step (20070)."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """The scheduler's switches. All of them combine."""

    max_prefill_tokens: int = 16384
    """Tokens that one launch may prefill, over all its requests."""
    chunked_prefill_size: int = 8192
    """Tokens of one request that one launch may prefill; a longer prompt is prefilled in chunks."""
    schedule_conservativeness: float = 1.0
    """Scales the room for the growth of running requests. Less of it admits more requests, and retracts more later."""
    overlap: int = 0
    """Launches that may still be in flight at the next launch (17850); engines have one."""
    completion_seed: int = 0
    """Seed for the number of these launches that have completed by then, drawn each time. 0: as few as possible."""
    mixed_chunk: bool = False
    """A prefill launch also decodes the running requests (22213)."""
    drafts: int = 0
    """Speculative decoding: draft tokens of a step (22862)."""
    retract_interval: int = 0
    """Launches between two retracts, needed or not (994); 0 is never."""
    abort_interval: int = 0
    """Launches between two aborts; 0 is never."""
    close_interval: int = 0
    """Launches between two closes of a session that has turns to come; 0 is never."""

    def __post_init__(self) -> None:
        """Refuse budgets that would let no request run.

        Raises:
            ValueError: a budget is less than 1, or another number less than 0.
        """
        for name in ("max_prefill_tokens", "chunked_prefill_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, less than 1")
        intervals = ("retract_interval", "abort_interval", "close_interval")
        for name in ("schedule_conservativeness", "overlap", "completion_seed", "drafts", *intervals):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, less than 0")

    @property
    def init_new_token_ratio(self) -> float:
        """The share of the remaining output tokens that is reserved at first."""
        return min(1.0, INIT_NEW_TOKEN_RATIO * self.schedule_conservativeness)

    @property
    def min_new_token_ratio(self) -> float:
        """The share that is reserved in the long run."""
        return self.init_new_token_ratio * MIN_NEW_TOKEN_RATIO_FACTOR

    @property
    def ahead(self) -> int:
        """Positions past a request's end that may be computed: drafts, and steps whose results are dropped."""
        return self.drafts + max(0, self.overlap - 1)

    @property
    def decode_len(self) -> int:
        """Positions that one decode step of a request needs."""
        return self.drafts + 1


def fitted(config: SchedulerConfig, memory: Config) -> SchedulerConfig:
    """The switches for this memory: a chunk leaves room in the window pool for the window before it.

    Raises:
        ValueError: no request could ever run.
    """
    if memory.num_states and config.drafts:
        raise ValueError("speculative decoding does not go with recurrent states: they cannot take drafts back")
    states = 1 + memory.tracking_states
    if 0 < memory.num_states < states:
        raise ValueError(f"{memory.num_states} state slots are fewer than the {states} that each request needs")
    if not memory.sliding_window:
        return config
    chunk_pages = max(1, memory.num_window_pages - 2 * window_reach(memory) - 1)
    return replace(config, chunked_prefill_size=min(config.chunked_prefill_size, chunk_pages * memory.page_size))


def window_reach(memory: Config) -> int:
    """The pages at the end of a prefix that the sliding window reads."""
    return ceil_pages(memory.sliding_window, memory.page_size)


def window_pages_alone(ahead: int, memory: Config) -> int:
    """Window pages that the longest request needs to go on alone, in chunks of a page (20070).

    The window at the end of its locked prefix; the window before its next step, which may cut one more page; and the
    pages of that step: a chunk, or one step's positions and, with overlap, the next ones'.
    """
    reach = window_reach(memory)
    step = ceil_pages(memory.sliding_window + ahead + 1, memory.page_size)
    return reach + 1 + max(reach + 1, step)


def never_fits(prompt_len: int, output_len: int, ahead: int, memory: Config) -> str | None:
    """Why a request could not run even with all the memory to itself, or `None` if it could. Lengths in tokens.

    It needs room for its tokens, for a step whose result is dropped, and for `ahead` positions past its end.
    """
    peak = prompt_len + output_len + ahead
    if peak > memory.max_context_len:
        return f"{peak} positions exceed the context of {memory.max_context_len}"
    pages = ceil_pages(peak, memory.page_size)
    if pages > memory.num_pages:
        return f"{pages} pages are more than all {memory.num_pages}"
    window_pages = min(pages, window_pages_alone(ahead, memory))
    if memory.sliding_window and window_pages > memory.num_window_pages:
        return f"{window_pages} window pages are more than all {memory.num_window_pages}"
    return None


def prefill_len(remaining: int, budget: int, config: SchedulerConfig, *, may_chunk: bool) -> int:
    """The number of the `remaining` tokens of a prompt to prefill now; 0 means that the request is not admitted.

    `budget` is the rest of the launch's tokens. At most one request may be in the middle of its prefill afterwards
    (BATCH-2), so a prompt is cut only if `may_chunk`; else it is prefilled whole or waits (20476).
    """
    room = min(budget, config.chunked_prefill_size)
    if remaining <= room:
        return remaining
    return room if may_chunk else 0


def expected_growth(remaining: int, new_token_ratio: float) -> int:
    """The number of the `remaining` output tokens to reserve room for."""
    return int(remaining * new_token_ratio)


def next_decode_pages(committed: Iterable[int], decode_len: int, page_size: int) -> int:
    """Pages that the next decode step takes: one for each page border that a request crosses.

    It counts from the committed lengths. A count from the token lengths would miss requests at a border, and decode
    would run out of pages that admission has given away (994).
    """
    return sum([-(-(length + decode_len) // page_size) + -length // page_size for length in committed])


def decayed(new_token_ratio: float, config: SchedulerConfig) -> float:
    """The share to reserve after one more decode step that found room."""
    step = (config.init_new_token_ratio - config.min_new_token_ratio) / NEW_TOKEN_RATIO_DECAY_STEPS
    return max(config.min_new_token_ratio, new_token_ratio - step)


def is_due(launches: int, last: int, interval: int) -> bool:
    """Whether an event of every `interval` launches, last at `last`, is due now; an interval of 0 is never."""
    return interval > 0 and launches - last >= interval


def accepted(position: int, drafts: int) -> int:
    """The positions that a speculative step from `position` on commits, 1 to drafts + 1: the oracle of a draft model.

    Any fixed rule will do if it yields every count, at page borders and elsewhere.
    """
    return 1 + (position * 2654435761 >> 7) % (drafts + 1)
