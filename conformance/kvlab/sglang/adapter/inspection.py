"""SGLang's objects for one memory, and the figures and holders that they report."""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Any, ClassVar, Literal

from kvconform.scheduler_state import SchedulerState
from kvlab.sglang.adapter.engine import Engine
from kvlab.sglang.adapter.pools import Free, Freed, Pools
from kvspec.events import Config, Figures, HolderView, Refusal, SnapshotAnswer
from kvspec.pages import Runs, ceil_align, compress

OVERSHOT = 1 << 50
"""The first of the token ids for accepted tokens that a request does not keep."""


class Memory:
    """SGLang's objects for one memory, their figures, and the helpers that all operations share."""

    engine: ClassVar[Engine]
    lacks: ClassVar[frozenset[str]]

    def __init__(self, config: Config) -> None:
        """Make SGLang's objects of these sizes."""
        engine = self.engine
        self.config = config
        self.scheduling = SchedulerState(config)
        self._speculates = False
        self._set_server_args()
        self.pool = engine.pool(config)
        self.allocator = engine.allocator(config)
        self.pools = Pools(config, self.pool, self.allocator)
        self.prefix_cache = engine.prefix_cache(config, self.pool, self.allocator)
        self.tree_cache = self.prefix_cache if engine.session_cache is None else engine.with_sessions(self.prefix_cache)
        self.sessions = engine.session_controller and engine.session_controller(self.tree_cache)
        self.first_row: int = min(self.pool.free_slots)
        """Newer releases keep row 0 for padding."""
        self._overshot = count(OVERSHOT)
        self._clock = 0.0

    # Looking

    def report(self, mode: Literal["idle", "busy"]) -> Figures:
        """The figures that SGLang's own memory check sums."""
        holders = self._holders()
        if mode == "idle" and holders:
            raise Refusal("OP-1", f"{len(holders)} requests hold memory: this is not idle")
        page_size, pools = self.config.page_size, self.pools
        owned = {req.req_pool_idx for req in holders.values()}
        known = (owned,) if self.engine.excludes_lent_slots else ()
        counted = self._counted_as_requests(holders)
        held, held_rows = self._session_held(*known)
        size = "full_{}_size" if pools.window is not None or pools.states is not None else "{}_size"
        figures = Figures(
            available=int(pools.pages.available_size()),
            evictable=int(getattr(self.prefix_cache, size.format("evictable"))() or 0),
            protected=int(getattr(self.prefix_cache, size.format("protected"))() or 0),
            session_held=held,
            uncached=sum(
                ceil_align(int(req.kv_allocated_len), page_size) - int(req.cache_protected_len) for req in counted
            ),
            rows_available=len(self.pool.free_slots),
            rows_requests=len(counted),
            rows_sessions=held_rows,
        )
        if pools.window is not None:
            figures.window_available = int(pools.window.available_size())
            figures.window_evictable = int(self.prefix_cache.swa_evictable_size())
            figures.window_protected = int(self.prefix_cache.swa_protected_size())
            figures.window_session_held = self._session_window(*known)
            figures.window_uncached = sum(map(self._window_of, counted))
        if pools.states is not None:
            figures.states_available = int(pools.states.available_size())
            figures.states_evictable = int(self.prefix_cache.mamba_evictable_size()) if self.config.prefix_cache else 0
            figures.states_protected = int(self.prefix_cache.mamba_protected_size()) if self.config.prefix_cache else 0
            counted = self._counted_as_requests({name: entry.req for name, entry in self.scheduling.entries.items()})
            figures.states_requests = sum(self._states_of(req).total() for req in counted)
            figures.states_sessions = self._session_states(*known)
        return figures

    def snapshot(self) -> SnapshotAnswer:
        """A snapshot of all that SGLang's objects hold."""
        holders, slots = self._holders(), self._idle_slots()
        rows = {self._row(holder): self._slots_of(holder) for holder in (*holders.values(), *slots.values())}
        free = self.pools.free()
        snapshot = SnapshotAnswer(
            rows=rows,
            free_pages=compress(sorted(free.pages.elements())),
            store_pages=compress(sorted(self._store_pages())),
            requests={name: self._view(req) for name, req in holders.items()},
            sessions={name: self._view(slot) for name, slot in slots.items()},
        )
        if free.window is not None:
            # The mapping of a free page is left from its last holder.
            in_use = set(range(1, self.config.num_pages + 1)) - free.pages.keys()
            snapshot.window_sides = self.pools.sides(in_use)
        if free.states is not None:
            snapshot.free_states = compress(sorted(free.states.elements()))
            snapshot.store_states = compress(sorted(self._store_states()))
        return snapshot

    def _counted_as_requests(self, holders: dict[str, Any]) -> list[Any]:
        """The requests whose memory counts as held by requests."""
        return list(holders.values())

    def _session_held(self, *known: set[int]) -> tuple[int, int]:
        """Tokens and rows that session slots report as held."""
        if self.sessions is None:
            return 0, 0
        return int(self.tree_cache.session_held_tokens(*known)), int(self.tree_cache.session_held_req_count(*known))

    def _session_window(self, *known: set[int]) -> int:
        """Tokens of window pages that session slots report as held."""
        return 0 if self.sessions is None else int(self.tree_cache.session_held_swa_tokens(*known))

    def _session_states(self, *known: set[int]) -> int | None:
        """State slots that session slots report as held; `None` in releases without that report."""
        if self.sessions is None or not hasattr(self.tree_cache, "session_held_mamba_slots"):
            return None
        return int(self.tree_cache.session_held_mamba_slots(*known))

    def _window_of(self, holder: Any) -> int:
        """Tokens of window pages that a request or a session slot has to itself."""
        return ceil_align(int(holder.kv_allocated_len), self.config.page_size) - cursor(holder)

    def _session_slots(self) -> dict[str, Any]:
        """The session slots that report memory."""
        return {name: slot for name, slot in self.tree_cache.slots.items() if self.engine.holds(slot)}

    def _holders(self) -> dict[str, Any]:
        """The requests that report a row."""
        return {
            name: entry.req for name, entry in self.scheduling.entries.items() if entry.req.req_pool_idx is not None
        }

    def _idle_slots(self) -> dict[str, Any]:
        """The session slots that hold memory and have not lent it to a turn."""
        if self.sessions is None:
            return {}
        owned = {req.req_pool_idx for req in self._holders().values()}
        return {name: slot for name, slot in self._session_slots().items() if slot.req_pool_idx not in owned}

    def _view(self, holder: Any) -> HolderView:
        return HolderView(
            self._row(holder),
            int(holder.cache_protected_len),
            int(holder.kv_committed_len),
            int(holder.kv_allocated_len),
            None if self.pools.window is None else cursor(holder),
            None if self.pools.states is None else compress(sorted(self._states_of(holder).elements())),
        )

    def _states_of(self, holder: Any) -> Counter[int]:
        """The state slots that a request or a session slot names."""
        if self.pools.states is None:
            return Counter()
        working, kept = holder.mamba_pool_idx, holder.mamba_ping_pong_track_buffer
        slots = [*([] if working is None else [working]), *([] if kept is None else kept)]
        return Counter(self.pools.state(slot) for slot in slots)

    def _row(self, holder: Any) -> int:
        return int(holder.req_pool_idx) - self.first_row

    def _slots_of(self, holder: Any) -> Runs:
        return compress(self.pool.req_to_token[holder.req_pool_idx, : holder.kv_allocated_len].tolist())

    def _nodes(self) -> Iterable[Any]:
        """The nodes of the prefix cache without its root; a chunk cache has none."""
        root = getattr(self.prefix_cache, "root_node", None)
        waiting = [] if root is None else list(root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _store_pages(self) -> Iterable[int]:
        for node in self._nodes():
            yield from (slot // self.config.page_size for slot in node.value.tolist()[:: self.config.page_size])

    def _store_states(self) -> set[int]:
        if self.pools.states is None:
            return set()
        return {self.pools.state(node.mamba_value) for node in self._nodes() if node.mamba_value is not None}

    # Shared by several operations

    def _set_server_args(self) -> None:
        self.engine.set_page_size(self.config.page_size, speculates=self._speculates)

    def _pages_of(self, req: Any, start: int, end: int) -> list[int]:
        """The pages of the positions from the first whole page after `start` up to `end`."""
        page_size = self.config.page_size
        first = ceil_align(start, page_size)
        slots = self.pool.req_to_token[req.req_pool_idx, first:end:page_size].tolist()
        return [slot // page_size for slot in slots]

    def _sides_of(self, pages: dict[str, list[int]]) -> dict[str, Runs] | None:
        """The window pages behind new pages, as in an answer."""
        if self.pools.window is None:
            return None
        return {name: compress(self.pools.side(page) for page in new) for name, new in pages.items()}

    def _freed(self, before: Free) -> Freed:
        """The pages and slots that became free since."""
        return self.pools.free().since(before)


def runs(pages: dict[str, list[int]]) -> dict[str, Runs]:
    """Pages by request, as in an answer."""
    return {name: compress(new) for name, new in pages.items()}


def cursor(holder: Any) -> int:
    """The position (tokens) up to which a request or a session slot has released its window pages."""
    return max(int(holder.swa_evicted_seqlen), int(holder.cache_protected_len))


def only(numbers: Iterable[int]) -> int | None:
    """The first of `numbers`, or `None`."""
    return next(iter(numbers), None)
