"""A scope small enough for a test, with each pool."""

import msgspec

from kvconform.exploring import Arrival, Scope
from kvspec.events import Config

SMALL = Scope(
    name="small",
    about="",
    config=Config(page_size=1, num_pages=3, num_rows=2, max_context_len=5),
    arrivals=(Arrival("a", (0, 0)), Arrival("s1", (0,), "s"), Arrival("s2", (0,), "s")),
    operations=frozenset(("cache_unfinished", "retract", "preempt", "evict")),
    sometimes=frozenset(),
)


POOLS = {
    "": {},
    "sliding window": {"sliding_window": 1, "num_window_pages": 3},
    "recurrent states": {"num_states": 4},
}


def small_with(pools: str) -> Scope:
    """The small scope, with a second pool."""
    return SMALL._replace(
        config=msgspec.structs.replace(SMALL.config, **POOLS[pools]),
        operations=SMALL.operations | {"swa_evict", "take_state", "free_state"},
    )
